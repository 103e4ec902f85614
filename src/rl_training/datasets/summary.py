"""What a dataset holds, as plain data and as a picture."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.layout import space_text
from rl_training.core.types import Array, leaves
from rl_training.datasets.dataset import ROWS_AT_ONCE, Dataset

BINS = 10
MAX_DIMENSIONS = 64
"""Dimensions of actions and observations that are listed."""


def summary(dataset: Dataset) -> dict[str, Any]:
    """Return sizes, returns, lengths, coverage of actions and ranges of observations, as JSON can hold them."""
    returns, lengths = dataset.returns(), dataset.lengths
    counts, edges = np.histogram(returns, BINS)
    where = dataset.recorded_in
    return {
        "name": dataset.name,
        "episodes": dataset.num_episodes,
        "steps": dataset.num_steps,
        "bytes": dataset.nbytes,
        "terminated_episodes": int(np.count_nonzero(dataset.terminated[dataset.ends - 1])),
        "lengths": _moments(lengths.astype(np.float64)),
        "returns": _moments(returns),
        "return_histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        "observation_space": space_text(dataset.observation_space),
        "action_space": space_text(dataset.action_space),
        "observations": _observations(dataset),
        "actions": _actions(dataset),
        "env_id": where.env_id or None,
        "env_kwargs": dict(where.env_kwargs),
        "max_episode_steps": where.max_episode_steps,
        "facts": dict(dataset.facts),
        "remarks": list(dataset.remarks),
        "digest": dataset.digest,
    }


def _moments(values: Array) -> dict[str, float]:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return {
        "min": float(values.min()), "quartile_1": low, "median": middle, "quartile_3": high,
        "max": float(values.max()), "mean": float(values.mean()), "std": float(values.std()),
    }  # fmt: skip


def _observations(dataset: Dataset) -> list[dict[str, Any]]:
    """Return the observed range of each number; of an entry with many numbers, such as an image, of all together."""
    found = []
    for key, column in leaves(dataset.obs):
        width = int(np.prod(column.shape[1:], dtype=np.int64))
        low, high = _range(column)
        if width > MAX_DIMENSIONS:
            low, high = low.min(keepdims=True), high.max(keepdims=True)
        found.append({"entry": key, "numbers": width, "low": low.tolist(), "high": high.tolist()})
    return found


def _range(column: Array) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each number of a column."""
    parts = [_flat_rows(column, start) for start in range(0, len(column), ROWS_AT_ONCE)]
    low = np.min([part.min(axis=0) for part in parts], axis=0)
    return low, np.max([part.max(axis=0) for part in parts], axis=0)


def _flat_rows(column: Array, start: int) -> Array:
    part = column[start : start + ROWS_AT_ONCE]
    return part.reshape(len(part), -1)


def _actions(dataset: Dataset) -> dict[str, Any]:
    """Return how often each discrete action was taken, or how continuous ones fill their bounds, per dimension."""
    column, space = dataset.actions, dataset.action_space
    rows = np.asarray(column).reshape(len(column), -1)
    if not isinstance(space, spaces.Box):
        start = np.broadcast_to(np.reshape(getattr(space, "start", 0), -1), rows.shape[1:])
        counts = [
            {
                int(value + first): int(count)
                for value, count in zip(*np.unique(part, return_counts=True), strict=True)
            }
            for part, first in zip(rows.T[:MAX_DIMENSIONS], start, strict=False)
        ]
        return {"counts": counts}
    low, high = (ActionAdapter(space).to_env(side[None]).reshape(-1) for side in _range(column))
    bounded = np.isfinite(space.low.reshape(-1)) & np.isfinite(space.high.reshape(-1))
    edges = np.linspace(-1, 1, BINS + 1)
    histograms = [
        np.histogram(np.clip(part, -1, 1), edges)[0].tolist() if has_bounds else None
        for part, has_bounds in zip(rows.T[:MAX_DIMENSIONS], bounded, strict=False)
    ]
    return {
        "bounds": [_finite(space.low), _finite(space.high)],
        "observed": [low.tolist(), high.tolist()],
        "normalized": [bool(part) for part in bounded],
        "histograms": histograms,
        "coverage": [None if part is None else float(np.mean(np.array(part) > 0)) for part in histograms],
    }


def _finite(bounds: Array) -> list[float | None]:
    """Return bounds with None for infinite ones, which JSON does not have."""
    return [value if np.isfinite(value) else None for value in bounds.reshape(-1).tolist()]


def save_picture(dataset: Dataset, path: Path) -> None:
    """Write histograms of returns, lengths and actions as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.hist(dataset.returns(), bins=30)
    left.set(xlabel="return", ylabel="episodes")
    middle.hist(dataset.lengths, bins=30)
    middle.set(xlabel="steps of an episode", ylabel="episodes")
    rows = _flat_rows(dataset.actions, 0)
    for number, part in enumerate(rows.T[:8]):
        right.hist(part, bins=30, histtype="step", label=str(number))
    right.set(xlabel="action, as a policy stores it", ylabel="steps")
    if rows.shape[1] > 1:
        right.legend(title="dimension", fontsize=7)
    figure.suptitle(
        f"{dataset.name}: {dataset.num_episodes:,} episodes, {dataset.num_steps:,} steps", fontsize=10
    )
    figure.savefig(path, dpi=110)
