"""Runs on disk: folders, checkpoints, logs, curves and videos."""

from rl_training.experiment.runs import evaluate_checkpoint

__all__ = ["evaluate_checkpoint"]
