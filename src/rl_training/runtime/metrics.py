"""Averages what updates return between two log rows, and gives it the names dashboards know."""

import torch
from torch import Tensor

from rl_training.core.types import Metrics, State

LOGGED_NAMES = {
    "policy_loss": "train/policy_gradient_loss",
    "exploration_rate": "rollout/exploration_rate",
}
"""Where a metric's own name differs from the one users look for; the rest is logged as `train/<name>`."""


def first_non_finite(metrics: Metrics) -> str | None:
    """Return the name of the first loss or gradient norm that is nan or infinite; the rest may be undefined."""
    watched = [name for name in metrics if name.endswith(("loss", "norm"))]
    finite = torch.isfinite(torch.stack([metrics[name] for name in watched])).tolist() if watched else []
    return next((name for name, fine in zip(watched, finite, strict=True) if not fine), None)


class MetricMeans:
    """What updates said since the last log row; read once per row, the only device synchronisation.

    Not every update says the same: a delayed actor has no loss in between. Each name has a mean of its own.
    """

    def __init__(self) -> None:
        self._history: dict[str, list[Tensor]] = {}

    def add(self, metrics: Metrics) -> None:
        """Remember one update's metrics."""
        for name, value in metrics.items():
            self._history.setdefault(name, []).append(value)

    def drain(self) -> dict[str, float]:
        """Return the means under the names of the log and forget them."""
        means = {name: _stacked(values).float().mean() for name, values in self._history.items()}
        self._history.clear()
        if not means:
            return {}
        numbers = torch.stack([mean.cpu() for mean in means.values()]).tolist()
        return {
            LOGGED_NAMES.get(name, f"train/{name}"): number
            for name, number in zip(means, numbers, strict=True)
        }

    def state_dict(self) -> State:
        """Return what was added since the last row."""
        values = {name: _stacked(values).cpu() for name, values in self._history.items()}
        return {"names": list(values), "values": values}  # the order is that of the log's columns

    def load_state_dict(self, state: State) -> None:
        """Restore it."""
        if "table" in state:  # as it was saved when every update said the same
            state = state | {"values": dict(zip(state["names"], state["table"].T, strict=True))}
        self._history = {name: list(state["values"][name]) for name in state.get("names", [])}


def _stacked(values: list[Tensor]) -> Tensor:
    """Stack numbers where the newest lies: restored ones and settings are on the CPU, losses beside the network."""
    device = values[-1].device
    return torch.stack([value.to(device) for value in values])
