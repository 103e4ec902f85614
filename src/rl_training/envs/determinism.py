"""Finds environments that keep something across resets, or never end, before a run relies on their not doing so.

Exact resume rests on an episode being a function of its reset seed and its actions. Here a reused environment plays
against a fresh one, with the same seed and the same actions, and a second fresh one is the control.
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
from rl_training.envs.masks import NAME, has_mask_entry, sample_allowed
from rl_training.envs.observations import nested_leaves
from rl_training.envs.workers import WorkerVectorEnv

EARLIER_EPISODES = 3
"""What the reused environment has behind it."""
MAX_STEPS = 60
"""Of each episode: a bound in steps, so that the finding does not depend on the machine's speed."""
STEPS_TO_END, SECONDS_TO_END = 2_000, 1.0
"""How long an episode's end is waited for where nothing announces one."""

Environments: TypeAlias = SyncVectorEnv | WorkerVectorEnv


class StepRecord(NamedTuple):
    """What an environment said at one step."""

    observation: int
    reward: float
    end: tuple[bool, bool]


@dataclass(frozen=True)
class Finding:
    """What the check saw."""

    rebuild: bool = False
    """Something is kept across resets, and building the environment anew clears it."""
    problems: list[str] = field(default_factory=list)
    """Why a resumed run will not be exact, whatever is done."""
    seconds_per_rebuild: float = 0.0


def settle_rebuilding(
    config: TrainConfig, factory: EnvFactory | None, notice: Callable[[str], None]
) -> TrainConfig:
    """Return the config with `rebuild_envs: auto` replaced by what this environment needs; say what was found."""
    if config.rebuild_envs != "auto":
        return config
    finding = Finding() if config.env_backend == "native" else check_determinism(config, factory)
    for problem in finding.problems:
        notice(
            f"environment '{config.env_id}' {problem}: after an interruption this run may not go on exactly as it "
            "would have"
        )
    if finding.rebuild:
        notice(
            f"environment '{config.env_id}' keeps something across resets, so it is built anew for every episode, "
            f"which takes {finding.seconds_per_rebuild * 1000:.2g} ms; --rebuild-envs off saves that, and gives up "
            "exact resume"
        )
    if config.env_backend != "native" and _never_ends(config, factory):
        remedy = "wrap it in gymnasium.wrappers.TimeLimit"
        if factory is None:
            remedy = "max_episode_steps: 1000 gives it one"
        notice(
            f"environment '{config.env_id}' has no time limit, and did not end in {STEPS_TO_END:,} steps by chance: "
            f"returns are counted when episodes end; {remedy}"
        )
    return config.with_overrides(rebuild_envs="on" if finding.rebuild else "off")


def _never_ends(config: TrainConfig, factory: EnvFactory | None) -> bool:
    """Tell whether nothing announces an end and none comes while it is waited for; a slow one has no time to tell."""
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
    except Exception:  # as in `check_determinism`
        return False


def check_determinism(config: TrainConfig, factory: EnvFactory | None = None) -> Finding:
    """Play a few short episodes in one environment after the other; an environment that fails is left to the run.

    Workers are used where the run uses them, so that an environment that hangs or dies does no harm here either.
    """
    try:
        with callers_generators_kept():
            return _compare(config, factory)
    except Exception:  # training will meet the same fault and report it with its address
        return Finding()


def _compare(config: TrainConfig, factory: EnvFactory | None) -> Finding:
    fresh, control = (_last_episode(config, factory, earlier=0) for _ in range(2))
    if (difference := _difference(fresh.moments, control.moments)) is not None:
        problem = f"is not a function of its seed and actions: two fresh ones {difference}"
        return Finding(problems=[problem])
    reused = _last_episode(config, factory, earlier=EARLIER_EPISODES)
    difference = _difference(fresh.moments, reused.moments)
    if difference is None and not reused.world_was_kept:
        return Finding()
    anew = _last_episode(
        config.with_overrides(rebuild_envs="on"), factory, earlier=EARLIER_EPISODES, rebuilds=True
    )
    if (remaining := _difference(fresh.moments, anew.moments)) is not None:
        problem = (
            "keeps something across resets that building it anew does not clear: a fresh one and one that had played "
            f"{EARLIER_EPISODES} episodes {remaining}"
        )
        return Finding(problems=[problem])
    return Finding(rebuild=True, seconds_per_rebuild=anew.seconds_per_rebuild)


@dataclass(frozen=True)
class _Played:
    moments: list[StepRecord]
    world_was_kept: bool
    seconds_per_rebuild: float


def _last_episode(
    config: TrainConfig, factory: EnvFactory | None, *, earlier: int, rebuilds: bool = False
) -> _Played:
    """Build an environment, play `earlier` episodes, and return what it shows in the one that is compared."""
    env = make_vector_env(config, 1, factory=factory)
    assert isinstance(env, SyncVectorEnv | WorkerVectorEnv)
    masked = config.use_action_masks == "on"
    try:
        statistics = env.call("wrapper_statistics")
        for episode in range(earlier):
            _play(env, episode, masked=masked)
        env.set_attr("new_statistics", list(statistics))  # kept in checkpoints: no hindrance
        moments = _play(env, EARLIER_EPISODES, masked=masked)
        kept = earlier > 0 and not rebuilds and env.call("reuses_box2d_world")[0]
        seconds = min(env.call("rebuild")[0] for _ in range(3)) if rebuilds else 0.0
        return _Played(moments, kept, seconds)
    finally:
        env.close()


def random_action(env: Environments, obs: Any, told: dict[str, Any], *, masked: bool) -> Any:
    """Draw an action [1, ...], one that is allowed where masks are heeded."""
    if not masked:
        return env.action_space.sample()
    mask = _mask(env, obs, told)
    return np.asarray([sample_allowed(env.single_action_space, np.asarray(mask[0], np.bool_).reshape(-1))])


def _mask(env: Environments, obs: Any, told: dict[str, Any]) -> Any:
    """Return what is allowed [1, M]."""
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
        if any(end):  # what was returned belongs to the next episode already
            final = info["final_obs"]
            obs = final[0] if isinstance(final, np.ndarray) else final
        if not all(np.isfinite(leaf).all() for _, leaf in nested_leaves((obs, reward))):
            raise EnvironmentFault("what is not a number is not compared")
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
