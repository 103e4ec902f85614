"""Environments: how they are built, seeded, stepped and translated."""

from rl_training.envs.factory import make_env, make_vector_env

__all__ = ["make_env", "make_vector_env"]
