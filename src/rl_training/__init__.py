"""Reinforcement learning with PyTorch and Gymnasium: `PPO("CartPole-v1", seed=1).learn(50_000)`.

Importing this package is quick: PyTorch, Gymnasium and NumPy are imported when they are first used.
"""

from os import PathLike

from rl_training.version import __version__

# not imported from typing: under `python -m`, a `typing.py` in the working folder would be imported instead
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any, Literal

    import gymnasium

    from rl_training.algorithms import (
        A2C,
        AWAC,
        BC,
        CQL,
        DQN,
        IQL,
        MAPPO,
        PPO,
        SAC,
        TD3,
        TD3BC,
        ReBRAC,
        RecurrentPPO,
    )
    from rl_training.algorithms.base import Algorithm
    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.environment_check import EnvReport
    from rl_training.experiment.records.search import Runs
    from rl_training.models.encoders import EncoderClass

__all__ = [
    "A2C",
    "AWAC",
    "BC",
    "CQL",
    "DQN",
    "IQL",
    "MAPPO",
    "PPO",
    "SAC",
    "TD3",
    "TD3BC",
    "ReBRAC",
    "RecurrentPPO",
    "__version__",
    "check_env",
    "load",
    "load_runs",
    "record",
]

if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name):
        """Import an algorithm when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rl_training import algorithms

        return getattr(algorithms, name)

    def __dir__():
        """List the algorithms as well."""
        return sorted({*globals(), *__all__})


def load(
    path: "str | PathLike[str]",
    *,
    env: "EnvFactory | str | None" = None,
    encoder: "EncoderClass | None" = None,
    device: "str | None" = None,
    trust_modules: bool = False,
    **overrides: "Any",
) -> "Algorithm":
    """Return the agent saved at `path` (a run, a checkpoint, or `last`/`best` of a run), whatever its algorithm.

    It predicts without its environment, which is built only to evaluate or to train. `env` replaces the environment:
    an id, or a function that builds one; `encoder` is your own encoder class. Modules that the saved agent names are
    imported only if you trained it yourself, or with `trust_modules=True`. `overrides` replace settings of the run or
    the algorithm.
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
    critic_obs: "Sequence[str]" = (),
    policies: "Literal['shared', 'each'] | dict[str, Any]" = "shared",
) -> "EnvReport":
    """Check an environment before training and report every problem: `print(check_env("CartPole-v1"))`.

    `env` is an id, a function that builds an environment, or an environment. For an environment, the checks that
    compare it with a new one are skipped. `env_wrappers`, `max_episode_steps`, `critic_obs` and, for a
    game with several agents, `policies` are as in a run's settings.
    """
    from rl_training.experiment.environment_check import check_env as check

    return check(
        env,
        env_kwargs,
        seed,
        env_wrappers=env_wrappers,
        max_episode_steps=max_episode_steps,
        critic_obs=critic_obs,
        policies=policies,
    )


def load_runs(*patterns: "str | PathLike[str]") -> "Runs":
    """Return records of the runs in folders (default: `runs`) or of those that match patterns such as `runs/ppo__*`.

    A record has `path`, `name`, `algo`, `env_id`, `seed`, `status`, `timesteps`, `score`, `best`, `evaluations`,
    `config` and more; `load_runs("runs").to_frame()` returns a pandas DataFrame. Does not import PyTorch.
    """
    from rl_training.experiment.records.search import load_runs as load_all

    return load_all(*patterns)


def record(
    runs: "str | PathLike[str] | Algorithm | Sequence[str | PathLike[str] | Algorithm]",
    to: "str | PathLike[str]",
    *,
    num_episodes: int = 100,
    noise: float = 0.0,
    random_fraction: float = 0.0,
    weights: "Sequence[float] | None" = None,
    seed: int = 0,
    deterministic: bool = False,
    data_format: "Literal['hdf5', 'arrow']" = "hdf5",
    env: "EnvFactory | str | None" = None,
    trust_modules: bool = False,
) -> "Path":
    """Play episodes with one or more saved agents and write them to the folder `to` as a Minari dataset; return it.

    `runs` are runs, checkpoints or models. Each episode is played by one of them, drawn with `weights`, or with
    probability `random_fraction` by uniformly random actions from its first step to its last. Actions are sampled
    unless `deterministic`. `noise` is the standard deviation of Gaussian noise on continuous actions, scaled to
    [-1, 1]. Episode k depends only on these settings and on `seed` and k: called again after an interruption,
    `record` goes on and writes the same dataset. `env` replaces the environment: an id, or a function that builds one.
    """
    from rl_training.experiment.recording.record import record as record_all

    return record_all(
        runs, to=to, num_episodes=num_episodes, noise=noise, random_fraction=random_fraction, weights=weights,
        seed=seed, deterministic=deterministic, data_format=data_format, env=env, trust_modules=trust_modules,
    ).path  # fmt: skip
