"""Reinforcement learning that resumes, reports and runs fast: PyTorch and Gymnasium.

Importing this package imports no heavy dependency; `torch` comes in with the first algorithm.
"""

from os import PathLike

from rl_training.version import __version__

# `python -m` reads this file while it would take a `typing.py` out of the working folder
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import gymnasium

    from rl_training.algorithms.base import Algorithm
    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.environment_check import EnvReport
    from rl_training.experiment.records.search import Runs
    from rl_training.models.encoders import EncoderClass

__all__ = ["__version__", "check_env", "load", "load_runs"]


def load(
    path: "str | PathLike[str]",
    *,
    env: "EnvFactory | str | None" = None,
    encoder: "EncoderClass | None" = None,
    device: "str | None" = None,
    trust_modules: bool = False,
    **overrides: "Any",
) -> "Algorithm":
    """Return the agent saved at `path` (a run, a checkpoint, or `last`/`best` of one), whatever its algorithm.

    It predicts wherever this package is installed; its environment is built when it is asked to play or to learn.
    `env` puts it into another one: an id, or a function that builds one; `encoder` is the class of an encoder of your
    own. A module that the agent itself names is imported if this user made it, or with `trust_modules`. `overrides`
    replace settings of either level.
    """
    from rl_training.algorithms.base import Algorithm

    return Algorithm.load(
        path, env=env, encoder=encoder, device=device, trust_modules=trust_modules, **overrides
    )


def check_env(
    env: "gymnasium.Env[Any, Any] | EnvFactory | str",
    env_kwargs: "Mapping[str, Any] | None" = None,
    seed: int = 0,
    *,
    env_wrappers: "Sequence[Any]" = (),
    max_episode_steps: "int | None" = None,
) -> "EnvReport":
    """Return every problem of an environment at once, and what to know of it: `print(check_env("CartPole-v1"))`.

    `env` is an id, a function that builds one, or one itself, which then cannot be compared with a fresh one;
    `env_wrappers` and `max_episode_steps` are as in a run's settings.
    """
    from rl_training.experiment.environment_check import check_env as check

    return check(env, env_kwargs, seed, env_wrappers=env_wrappers, max_episode_steps=max_episode_steps)


def load_runs(*patterns: "str | PathLike[str]") -> "Runs":
    """Return records of the runs in a folder, by default `runs`, or of what a pattern such as `runs/ppo__*` names.

    A record has `path`, `name`, `algo`, `env_id`, `seed`, `status`, `timesteps`, `score`, `best`, `evaluations`,
    `config` and more; `load_runs("runs").to_frame()` makes a frame of pandas of them. Imports no torch.
    """
    from rl_training.experiment.records.search import load_runs as load_all

    return load_all(*patterns)
