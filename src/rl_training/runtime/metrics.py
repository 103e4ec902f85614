"""Averages what updates return between two log rows, and gives it the names dashboards know."""

import torch
from torch import Tensor

from rl_training.core.types import Metrics, State

LOGGED_NAMES = {
    "policy_loss": "policy_gradient_loss",
}
"""Where a loss's own name differs from the one users look for; the rest is logged as it is called."""


def first_non_finite(metrics: Metrics) -> str | None:
    """Return the name of the first loss or gradient norm that is nan or infinite; the rest may be undefined."""
    watched = [name for name in metrics if name.endswith(("loss", "norm"))]
    finite = torch.isfinite(torch.stack([metrics[name] for name in watched])).tolist() if watched else []
    return next((name for name, fine in zip(watched, finite, strict=True) if not fine), None)


class MetricMeans:
    """Running list of update metrics; read once per log row, which is the only device synchronisation."""

    def __init__(self) -> None:
        self._history: list[Metrics] = []

    def add(self, metrics: Metrics) -> None:
        """Remember one update's metrics."""
        self._history.append(metrics)

    def drain(self) -> dict[str, float]:
        """Return the means under their `train/` names and forget them."""
        if not self._history:
            return {}
        names = list(self._history[-1])
        values = self._table().mean(0).tolist()
        self._history.clear()
        return {
            f"train/{LOGGED_NAMES.get(name, name)}": value for name, value in zip(names, values, strict=True)
        }

    def state_dict(self) -> State:
        """Return what was added since the last row."""
        return {"names": list(self._history[-1]), "table": self._table()} if self._history else {}

    def load_state_dict(self, state: State) -> None:
        """Restore it."""
        self._history = (
            [dict(zip(state["names"], row, strict=True)) for row in state["table"]] if state else []
        )

    def _table(self) -> Tensor:
        names = list(self._history[-1])
        return torch.stack(
            [torch.stack([step[name].float() for name in names]) for step in self._history]
        ).cpu()
