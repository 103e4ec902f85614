"""Averages what updates return between two log rows, and gives it the names dashboards know."""

import torch

from rl_training.core.types import Metrics

LOGGED_NAMES = {
    "policy_loss": "policy_gradient_loss",
}
"""Where a loss's own name differs from the one users look for; the rest is logged as it is called."""


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
        table = torch.stack([torch.stack([step[name].float() for name in names]) for step in self._history])
        values = table.mean(0).tolist()
        self._history.clear()
        return {
            f"train/{LOGGED_NAMES.get(name, name)}": value for name, value in zip(names, values, strict=True)
        }
