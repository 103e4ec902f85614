"""The replay data of a run as a recording: finds the episodes again in its transitions.

A row of replay data is a transition. The environments of a run step together, so rows of one episode are never far
apart: the next observation of one is the observation of the next.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.columns import field_name
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.types import Array
from rl_training.datasets.dataset import RecordedIn
from rl_training.datasets.recording import Episode, Recording
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.format import Checkpoint, refuse_large_replay
from rl_training.experiment.checkpoints.replay import FOLDER
from rl_training.experiment.checkpoints.tensor_files import read_tensors

ROWS = "transitions"


def read_run(folder: Path) -> Recording:
    """Return the replay data of the newest checkpoint of a run; raise one error for all that does not fit."""
    checkpoint = open_checkpoint(folder)
    refuse_large_replay(checkpoint)
    _refuse(checkpoint, folder)
    config, spec = checkpoint.config, checkpoint.spec
    columns = _columns(checkpoint)
    _check_columns(columns, checkpoint, folder)
    order, ends = episodes_in(
        [columns[field_name("obs", key)] for key in observation_leaves(spec.observation_space)],
        [columns[field_name("next_obs", key)] for key in observation_leaves(spec.observation_space)],
        columns["discounts"] == 0,
        config.num_envs,
    )
    facts = {"algorithm_name": config.algo, "run": folder.name, "timesteps": checkpoint.progress.timesteps}
    return Recording(
        str(folder), spec.observation_space, spec.action_space, len(order), len(ends),
        partial(_episodes, columns, order, ends, checkpoint),
        RecordedIn(config.env_id, config.env_kwargs, config.max_episode_steps), facts,
    )  # fmt: skip


def _refuse(checkpoint: Checkpoint, folder: Path) -> None:
    config, listed = checkpoint.config, checkpoint.facts.get("replay") or {}
    problems = []
    if ROWS not in listed:
        problems.append(f"{config.algo} keeps no replay data; record a dataset with its agent instead")
    if set(listed) - {ROWS}:
        problems.append("its observations are stacks of frames, which are stored apart")
    if (n_step := getattr(config.algorithm, "n_step", 1)) > 1:
        problems.append(f"its n_step is {n_step}: sums of rewards cannot be taken apart")
    if getattr(config.algorithm, "gamma", 1.0) == 0:
        problems.append("its gamma is 0, so every step looks terminal")
    if "memory" in config.algo or hasattr(config.algorithm, "core_size"):
        problems.append("its policy has a memory, whose states are not part of a dataset")
    if problems:
        raise ConfigError(problems, f"dataset '{folder}' is a run whose replay data cannot be used")


def _columns(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the stored rows, oldest first, column by column; each file is verified while it is read."""
    entry = checkpoint.facts["replay"][ROWS]
    parts, first = list[Mapping[str, Any]](), entry["total_rows"] - entry["kept_rows"]
    for segment in sorted(entry["segments"], key=lambda each: each["start"]):
        path = checkpoint.path.parent / FOLDER / Path(segment["name"]).name
        rows = read_tensors(path, segment["size"], segment["sha256"])
        skipped = max(first - segment["start"], 0)
        parts.append({name: column.numpy()[skipped:] for name, column in rows.items()})
    if not parts:
        raise UserError(f"dataset '{checkpoint.path}' has no transitions yet")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _check_columns(columns: Mapping[str, Array], checkpoint: Checkpoint, folder: Path) -> None:
    keys = observation_leaves(checkpoint.spec.observation_space)
    wanted = {field_name(kind, key) for kind in ("obs", "next_obs") for key in keys}
    wanted |= {"actions", "rewards", "discounts"}
    if missing := sorted(wanted - set(columns)):
        raise UserError(f"dataset '{folder}': the replay data has no {', '.join(missing)}")
    others = [name for name in columns if name.startswith(("obs", "next_obs")) and name not in wanted]
    if others:
        raise UserError(
            f"dataset '{folder}': the replay data has action masks ({', '.join(others)}), which datasets do not have"
        )


def episodes_in(
    obs: list[Array], next_obs: list[Array], terminated: Array, num_envs: int
) -> tuple[Array, Array]:
    """Return the order [N] in which rows form episodes, and how many rows there are up to each end [E].

    A row follows the oldest unfinished one whose next observation is its observation, among those of the last two steps
    of all environments. Rows that nothing follows are the ends of episodes.
    """
    starts, follows = _row_bytes(obs), _row_bytes(next_obs)
    waiting: dict[bytes, list[int]] = {}
    chains, chain_of = list[list[int]](), dict[int, int]()
    for row, seen in enumerate(starts):
        before = waiting.get(seen, [])
        while before and before[0] < row - 2 * num_envs:
            before.pop(0)
        if before:
            chain = chain_of.pop(before.pop(0))
            chains[chain].append(row)
        else:
            chain = len(chains)
            chains.append([row])
        if not before:
            waiting.pop(seen, None)
        if not terminated[row]:
            chain_of[row] = chain
            waiting.setdefault(follows[row], []).append(row)
    order = np.array([row for chain in chains for row in chain], np.int64)
    return order, np.cumsum([len(chain) for chain in chains])


def _row_bytes(columns: list[Array]) -> list[bytes]:
    flat = [np.ascontiguousarray(column).reshape(len(column), -1).view(np.uint8) for column in columns]
    return [row.tobytes() for row in np.concatenate(flat, axis=1)]


def _episodes(
    columns: Mapping[str, Array], order: Array, ends: Array, checkpoint: Checkpoint
) -> Iterator[Episode]:
    adapter, keys = (
        ActionAdapter(checkpoint.spec.action_space),
        observation_leaves(checkpoint.spec.observation_space),
    )
    for start, stop in zip(np.concatenate(([0], ends[:-1])), ends, strict=True):
        rows = order[start:stop]
        terminated = columns["discounts"][rows] == 0
        truncated = np.zeros(len(rows), np.bool_)
        truncated[-1] = not terminated[-1]
        obs = {
            key: np.concatenate(
                [columns[field_name("obs", key)][rows], columns[field_name("next_obs", key)][rows[-1:]]]
            )
            for key in keys
        }
        yield Episode(
            obs, adapter.to_env(columns["actions"][rows]), columns["rewards"][rows], terminated, truncated
        )
