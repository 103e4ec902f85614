"""Checks before a run whether an environment keeps state across resets, or never ends.

Exact resume requires that an episode is a function of its reset seed and its actions. The check compares a reused
environment with a new one, with the same seed and actions, and a second new one is the control.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium.vector import SyncVectorEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault
from rl_training.core.seeding import HISTORY_CHECK, callers_generators_kept, derived_seed
from rl_training.envs.episodes import trace
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.envs.games.building import game_of, masks_of
from rl_training.envs.masks import NAME, has_mask_entry, sample_allowed
from rl_training.envs.observations import nested_leaves
from rl_training.envs.workers import WorkerVectorEnv

EARLIER_EPISODES = 3
"""Episodes that the reused environment plays first."""
MAX_STEPS = 60
"""Steps of each episode; a limit in steps, so that the result does not depend on the speed of the machine."""
STEPS_TO_END, SECONDS_TO_END = 2_000, 1.0
"""How long to wait for the end of an episode without a time limit."""

Environments: TypeAlias = SyncVectorEnv | WorkerVectorEnv


class StepRecord(NamedTuple):
    """The result of one step."""

    observation: int
    reward: float
    end: tuple[bool, bool]


@dataclass(frozen=True)
class Finding:
    """Result of the check."""

    rebuild: bool = False
    """The environment keeps state across resets, and rebuilding it clears the state."""
    problems: list[str] = field(default_factory=list)
    """Why resuming a run will not be exact."""
    seconds_per_rebuild: float = 0.0


def settle_rebuilding(
    config: TrainConfig, factory: EnvFactory | None, notice: Callable[[str], None]
) -> TrainConfig:
    """Return the config with `rebuild_envs: auto` replaced by `on` or `off`; report what was found."""
    if config.rebuild_envs != "auto":
        return config
    finding = Finding() if config.native_backend else check_determinism(config, factory)
    for problem in finding.problems:
        notice(f"environment '{config.env_id}' {problem}: resuming this run may not be exact")
    if finding.rebuild:
        notice(
            f"environment '{config.env_id}' keeps state across resets, so it is rebuilt for every episode, which takes "
            f"{finding.seconds_per_rebuild * 1000:.2g} ms; --rebuild-envs off avoids this, but resume is not exact"
        )
    if not config.native_backend and _never_ends(config, factory):
        remedy = "wrap it in gymnasium.wrappers.TimeLimit"
        if factory is None:
            remedy = "set max_episode_steps"
        notice(
            f"environment '{config.env_id}' has no time limit and did not end within {STEPS_TO_END:,} random steps; "
            f"returns are only known when episodes end: {remedy}"
        )
    return config.with_overrides(rebuild_envs="on" if finding.rebuild else "off")


def _never_ends(config: TrainConfig, factory: EnvFactory | None) -> bool:
    """Return whether there is no time limit and no episode ends within `STEPS_TO_END`; False if that takes too long."""
    try:
        with (
            callers_generators_kept(),
            contextlib.closing(make_vector_env(config, 1, factory=factory)) as env,
        ):
            assert isinstance(env, SyncVectorEnv | WorkerVectorEnv)
            if env.call("has_time_limit")[0]:
                return False
            last, masked = time.monotonic() + SECONDS_TO_END, config.use_action_masks == "on"
            obs, told = env.reset()
            for _ in range(STEPS_TO_END):
                obs, _, terminated, truncated, told = env.step(random_action(env, obs, told, masked=masked))
                if terminated[0] or truncated[0] or time.monotonic() > last:
                    return False
            return True
    except Exception:  # training will raise the same error
        return False


def check_determinism(config: TrainConfig, factory: EnvFactory | None = None) -> Finding:
    """Play a few short episodes in several environments and compare them; errors are left to the run.

    Workers are used if the run uses them, so that an environment that hangs or crashes does no harm.
    """
    try:
        with callers_generators_kept():
            return _compare(config, factory)
    except Exception:  # training will raise the same error
        return Finding()


def _compare(config: TrainConfig, factory: EnvFactory | None) -> Finding:
    fresh, control = (_last_episode(config, factory, earlier=0) for _ in range(2))
    if (difference := _difference(fresh.moments, control.moments)) is not None:
        problem = f"is not deterministic: two new ones with the same seed and actions {difference}"
        return Finding(problems=[problem])
    reused = _last_episode(config, factory, earlier=EARLIER_EPISODES)
    difference = _difference(fresh.moments, reused.moments)
    if difference is None and not reused.world_was_kept:
        return Finding()
    rebuilding = config.with_overrides(rebuild_envs="on")
    rebuilt = _last_episode(rebuilding, factory, earlier=EARLIER_EPISODES, rebuilds=True)
    if (remaining := _difference(fresh.moments, rebuilt.moments)) is not None:
        problem = (
            "keeps state across resets even if it is rebuilt: a new one and one that has played "
            f"{EARLIER_EPISODES} episodes {remaining}"
        )
        return Finding(problems=[problem])
    return Finding(rebuild=True, seconds_per_rebuild=rebuilt.seconds_per_rebuild)


@dataclass(frozen=True)
class _Played:
    moments: list[StepRecord]
    world_was_kept: bool
    seconds_per_rebuild: float


def _last_episode(
    config: TrainConfig, factory: EnvFactory | None, *, earlier: int, rebuilds: bool = False
) -> _Played:
    """Build an environment, play `earlier` episodes, and return the steps of the next one."""
    env = make_vector_env(config, 1, factory=factory)
    assert isinstance(env, SyncVectorEnv | WorkerVectorEnv)
    masked = config.use_action_masks == "on"
    try:
        statistics = env.call("statistics")
        for episode in range(earlier):
            _play(env, episode, masked=masked)
        env.set_attr("new_statistics", list(statistics))  # they are saved in checkpoints, so they may differ
        moments = _play(env, EARLIER_EPISODES, masked=masked)
        kept = earlier > 0 and not rebuilds and env.call("reuses_box2d_world")[0]
        seconds = min(env.call("rebuild")[0] for _ in range(3)) if rebuilds else 0.0
        return _Played(moments, kept, seconds)
    finally:
        env.close()


def random_action(env: Environments, obs: Any, told: dict[str, Any], *, masked: bool) -> Any:
    """Sample an action [1, ...], an allowed one if the environment is `masked`."""
    if (game := game_of(env.single_observation_space)) is not None:
        return env.single_action_space.sample(masks_of(obs, game))[None]
    if not masked:
        return env.action_space.sample()
    mask = _mask(env, obs, told)
    return np.asarray([sample_allowed(env.single_action_space, np.asarray(mask[0], np.bool_).reshape(-1))])


def _mask(env: Environments, obs: Any, told: dict[str, Any]) -> Any:
    return obs[NAME] if has_mask_entry(env.single_observation_space) else told[NAME]


def _play(env: Environments, episode: int, *, masked: bool) -> list[StepRecord]:
    env.set_attr("episode", [episode - 1])
    env.action_space.seed(derived_seed(episode, HISTORY_CHECK))
    env.single_action_space.seed(derived_seed(episode, HISTORY_CHECK, 1))
    obs, told = env.reset()
    moments = [StepRecord(trace(obs), 0.0, (False, False))]
    for _ in range(MAX_STEPS):
        obs, reward, terminated, truncated, info = env.step(random_action(env, obs, told, masked=masked))
        told = info
        end = bool(terminated[0]), bool(truncated[0])
        if any(end):  # `obs` belongs to the next episode
            final = info["final_obs"]
            obs = final[0] if isinstance(final, np.ndarray) else final
        if not all(np.isfinite(leaf).all() for _, leaf in nested_leaves((obs, reward))):
            raise EnvironmentFault("numbers that are not finite cannot be compared")
        seen = (obs, _mask(env, obs, told)) if masked and not any(end) else obs
        moments.append(StepRecord(trace(seen), float(reward[0]), end))
        if any(end):
            break
    return moments


def _difference(expected: list[StepRecord], found: list[StepRecord]) -> str | None:
    for step, (one, other) in enumerate(zip(expected, found, strict=False)):
        names = [name for name in StepRecord._fields if getattr(one, name) != getattr(other, name)]
        if names:
            return f"differ after {step} steps in the {' and the '.join(names)}"
    return None
