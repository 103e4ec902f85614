"""Environments of EnvPool, which steps all of them in C++ threads with one call."""

import importlib
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.config import TrainConfig
from rl_training.core.cpu import usable_cores
from rl_training.core.errors import UserError
from rl_training.core.types import Array, Info
from rl_training.envs.preprocessing.atari_native import NO_LIMIT, seeds_of_games

OF_THE_THREADS = ("num_threads", "thread_affinity_offset")
"""`env_kwargs` that only EnvPool understands; evaluations and videos use single environments without them."""
RESERVED = (
    "num_envs",
    "batch_size",
    "seed",
    "env_seed",
    "max_num_players",
    "gym_reset_return_info",
    "base_path",
)
NOT_INFO = ("env_id", "players", "elapsed_step", "ram")
"""Entries of EnvPool's info that say nothing about an environment, or are large."""


def import_envpool() -> Any:
    """Return the package; raise an error that names the extra if it is not installed."""
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        raise UserError(
            "env_backend 'envpool' needs a package that is not installed: pip install 'rl-training[envpool]'"
        ) from error


class Pool:
    """N environments of one task. Its seeds are set when it is built, so a seeded reset builds it again.

    EnvPool resets an environment in the step after its end, and calls an episode that terminates in the step of its
    time limit truncated. Both are avoided: the pool has no time limit, and the caller restarts what has ended.
    """

    def __init__(self, config: TrainConfig, task: str, num_envs: int, **options: Any) -> None:
        envpool = import_envpool()
        if task not in envpool.list_all_envs():
            raise UserError(
                f"EnvPool has no environment '{config.env_id}'; use env_backend 'sync' or 'async' (EnvPool's ids: "
                "python -c 'import envpool; print(envpool.list_all_envs())')"
            )
        if reserved := [name for name in RESERVED if name in config.env_kwargs]:
            raise UserError(
                f"env_kwargs has '{reserved[0]}', which env_backend 'envpool' sets itself; leave it out"
            )
        threads = {"num_threads": min(num_envs, usable_cores())}
        threads |= {name: config.env_kwargs[name] for name in OF_THE_THREADS if name in config.env_kwargs}
        for name, number in threads.items():
            if not isinstance(number, int) or (name == "num_threads" and number < 1):
                raise UserError(f"env_kwargs has {name} {number!r}; use a whole number of 1 or more")
        self._task, self._num_envs = task, num_envs
        self._options = {**options, **threads, "num_envs": num_envs, "max_episode_steps": NO_LIMIT}
        spec = envpool.make_spec(task, **self._options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its bounds are of another type than its numbers
            self.observation_space: gymnasium.Space[Any] = spec.gymnasium_observation_space
            self.action_space: gymnasium.Space[Any] = spec.gymnasium_action_space
        self._pool: Any = None

    def reset(self, seeds: Array | None) -> tuple[Array, Info]:
        """Start all episodes; without seeds, the next ones of a pool that exists."""
        if seeds is not None or self._pool is None:
            if seeds is None:
                seeds = np.random.default_rng().integers(2**31, size=self._num_envs)
            self.close()
            self._pool = import_envpool().make_gymnasium(self._task, **self._options, seed=seeds.tolist())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it makes its space at the first reset
                obs, info = self._pool.reset()
            return obs, info
        obs, info = self._pool.reset()
        return obs, info

    def step(self, actions: Array) -> tuple[Array, Array, Array, Info]:
        """Return observations, rewards, `terminated` and info of all environments."""
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        return obs, reward, terminated | truncated, info

    def restart(self, rows: Array) -> tuple[Array, Info]:
        """Start new episodes in the mask `rows` [N]; return their first observations and info, only of these rows."""
        obs, info = self._pool.reset(np.flatnonzero(rows).astype(np.int32))
        return obs, info

    def close(self) -> None:
        """Close the pool and end its threads."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None


class EnvPoolVector(VectorEnv[Array, Array, Array]):
    """N environments of EnvPool with the spaces and the time limit of Gymnasium's environment of the same id.

    Autoreset is same-step: `info["final_obs"]` has the last observations of episodes that ended.
    """

    def __init__(self, config: TrainConfig, single: gymnasium.Env[Any, Any], num_envs: int) -> None:
        spec = single.spec
        assert spec is not None
        arguments = {k: v for k, v in config.env_kwargs.items() if k not in OF_THE_THREADS}
        arguments.pop("max_episode_steps", None)
        self._pool = Pool(config, spec.id, num_envs, **arguments)
        refuse_other_spaces(config, single.observation_space, self._pool.observation_space, "observations")
        refuse_other_spaces(config, single.action_space, self._pool.action_space, "actions")
        self.spec, self.num_envs = spec, num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = (
            single.observation_space,
            single.action_space,
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._dtype = self.single_observation_space.dtype
        self._limit = spec.max_episode_steps or NO_LIMIT
        self._steps = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start new episodes; with a seed, all following ones are a function of it and the actions."""
        super().reset(seed=seed)
        obs, info = self._pool.reset(None if seed is None else seeds_of_games(seed, self.num_envs))
        self._steps[:] = 0
        return obs.astype(self._dtype), _told(info)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Info]:
        """Step all environments; an episode that ended starts again at once."""
        found, reward, terminated, said = self._pool.step(actions)
        obs, info = found.astype(self._dtype), _told(said)
        self._steps += 1
        truncated = (self._steps >= self._limit) & ~terminated
        ended = terminated | truncated
        if ended.any():
            info |= {"final_info": dict(info), "final_obs": obs.copy()}
            obs[ended], _ = self._pool.restart(ended)
            self._steps[ended] = 0
        return obs, reward.astype(np.float64), terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()


def refuse_other_spaces(config: TrainConfig, ours: Any, theirs: Any, what: str) -> None:
    """Raise if EnvPool's space is not that of Gymnasium's environment, in which the policy is evaluated."""
    if isinstance(ours, spaces.Box) and isinstance(theirs, spaces.Box):
        same = ours.shape == theirs.shape and all(
            np.allclose(mine, other, rtol=1e-5)
            for mine, other in ((ours.low, theirs.low), (ours.high, theirs.high))
        )
    else:
        same = ours == theirs
    if not same:
        raise UserError(
            f"EnvPool's environment '{config.env_id}' has {what} {theirs}, but Gymnasium's, in which a policy is "
            f"evaluated, has {ours}; use env_backend 'sync' or 'async'"
        )


def _told(info: Info) -> Info:
    return {name: value for name, value in info.items() if name not in NOT_INFO}
