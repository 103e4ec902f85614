"""Runs on disk: folders, checkpoints, logs, curves and videos."""

from typing import TYPE_CHECKING, Any

import rl_training.experiment.checkpoints.locking  # noqa: F401  # says so at once where there is no POSIX

if TYPE_CHECKING:
    from rl_training.experiment.start import evaluate_checkpoint

__all__ = ["evaluate_checkpoint"]


def __getattr__(name: str) -> Any:
    """Import the promised name when it is asked for: it brings torch, and looking after folders does without."""
    if name == "evaluate_checkpoint":
        from rl_training.experiment.start import evaluate_checkpoint

        return evaluate_checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
