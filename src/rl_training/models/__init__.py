"""Networks and their parts: tensors in, tensors out."""

from rl_training.models.mlp import MLPActorCritic

__all__ = ["MLPActorCritic"]
