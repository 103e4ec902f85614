"""One run: starting, resuming and evaluating it, its folder, checkpoints, logs and videos."""

from typing import TYPE_CHECKING, Any

import rl_training.experiment.checkpoints.locking  # noqa: F401  # raises at once on Windows

if TYPE_CHECKING:
    from rl_training.experiment.start import evaluate_checkpoint

__all__ = ["evaluate_checkpoint"]


def __getattr__(name: str) -> Any:
    """Import `evaluate_checkpoint` on first use, because listing run folders must not import torch."""
    if name == "evaluate_checkpoint":
        from rl_training.experiment.start import evaluate_checkpoint

        return evaluate_checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
