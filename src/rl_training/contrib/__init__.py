"""Algorithms beside the usual ones, with the same life cycle."""

from rl_training.algorithms.recurrent_ppo import RecurrentPPO

__all__ = ["RecurrentPPO"]
