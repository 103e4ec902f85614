"""`check_env`: checks an environment before training and reports all problems at once."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import SyncVectorEnv

from rl_training.algorithms import ALGORITHMS, refuse_actions
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import BuildContext
from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import Wrappers
from rl_training.config.policies import SHARED, Policies
from rl_training.core.errors import RunFault, UserError, reason
from rl_training.core.games import Game
from rl_training.core.seeding import callers_generators_kept, episode_seed
from rl_training.core.spaces.layout import action_layout, observation_leaves, space_text
from rl_training.core.types import Array
from rl_training.envs.determinism import check_determinism, random_action
from rl_training.envs.factory import (
    EnvFactory,
    checked_factory,
    make_vector_env,
    naming_errors,
    plain_env,
)
from rl_training.envs.games.building import joint_env
from rl_training.envs.games.opening import is_game
from rl_training.envs.observations import nested_leaves
from rl_training.envs.preprocessing.atari import raw_game_hint
from rl_training.envs.specs import env_spec
from rl_training.envs.wrappers import with_game_wrappers
from rl_training.experiment.building import UserObjects, with_masks
from rl_training.experiment.environment_remarks import Observed, environment_remarks
from rl_training.experiment.game_check import Findings, check_game, state_text

MASKS_ARE_IN = ("observations", "info")
EPISODES, MAX_STEPS = 5, 1_000
"""Random episodes to play, and the longest one in steps."""


@dataclass
class EnvReport:
    """Result of `check_env`: `problems` prevent training, `remarks` are worth knowing."""

    name: str
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    algorithms: list[str] = field(default_factory=list)
    """Algorithms that can train in it: those for its action space that need no dataset."""

    @property
    def ok(self) -> bool:
        """There are no problems."""
        return not self.problems

    def __str__(self) -> str:
        width = max((len(name) for name in self.facts), default=0)
        lines = [self.name, *(f"  {name:<{width}}  {value}" for name, value in self.facts.items())]
        lines += [f"remark: {text}" for text in self.remarks]
        lines += [f"problem: {text}" for text in self.problems]
        return "\n".join([*lines, "ok" if self.ok else f"{len(self.problems)} problem(s)"])


def check_env(
    env: "gymnasium.Env[Any, Any] | EnvFactory | str",
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    env_wrappers: Wrappers = (),
    max_episode_steps: int | None = None,
    critic_obs: Sequence[str] = (),
    policies: Policies = SHARED,
) -> EnvReport:
    """Check an environment before training; return a report with all problems and remarks.

    `env` is an id, a function that builds an environment, or an environment. The last one is not checked for
    determinism, because that needs a second environment. `critic_obs` and, for a game with several agents, `policies`
    are as in a run's settings.
    """
    factory: EnvFactory | None = None
    given: Any = env
    alone = isinstance(env, gymnasium.Env) or is_game(env)
    if isinstance(env, str):
        name = env
    elif alone:
        name, factory = type(getattr(given, "unwrapped", given)).__name__, lambda **kwargs: given
    else:
        name, factory = str(getattr(env, "__name__", type(env).__name__)), checked_factory(env)
    report = EnvReport(name)
    config = TrainConfig(
        algo="ppo",
        env_id=report.name,
        env_kwargs=dict(env_kwargs or {}),
        env_wrappers=env_wrappers,
        max_episode_steps=max_episode_steps,
        seed=seed,
        num_envs=1,
        critic_obs=tuple(critic_obs),
        policies=policies,
    )
    try:
        with callers_generators_kept():
            with naming_errors(config):
                plain = plain_env(config, factory)
            if is_game(plain):
                _examine_game(report, config, factory, with_game_wrappers(plain, config), alone=alone)
                return report
            if not alone and hasattr(plain, "close"):
                plain.close()
            _examine(report, config, factory, alone=alone)
    except (UserError, RunFault) as error:
        report.problems.append(str(error))
    return report


def _examine(report: EnvReport, config: TrainConfig, factory: EnvFactory | None, *, alone: bool) -> None:
    env = make_vector_env(config, 1, factory=factory, backend="sync")
    assert isinstance(env, SyncVectorEnv)
    space, actions = env.single_observation_space, env.single_action_space
    if not alone:
        env.close()
    for check in (
        lambda: observation_leaves(space),
        lambda: action_layout(actions),
        lambda: None if report.problems else _check_encoding(space, actions, config),
    ):
        try:
            check()
        except UserError as error:
            report.problems.append(str(error))
    if report.problems:
        return
    report.facts |= {"observations": space_text(space), "actions": space_text(actions)}
    online = {name: face for name, face in ALGORITHMS.items() if not face.config_class.needs_dataset}
    report.algorithms = [name for name, face in online.items() if _takes(face, actions, config)]
    report.facts["algorithms"] = ", ".join(report.algorithms)
    masks: list[str] = []
    config = with_masks(config, UserObjects(factory=factory), masks.append)
    report.remarks += masks
    env = make_vector_env(config, 1, factory=factory, backend="sync")
    assert isinstance(env, SyncVectorEnv)
    try:
        _play(report, env, config)
    finally:
        if not alone:
            env.close()
    _check_determinism(report, config, factory, alone=alone)


def _check_determinism(
    report: EnvReport, config: TrainConfig, factory: EnvFactory | None, *, alone: bool
) -> None:
    if alone:
        report.remarks.append(
            "determinism was not checked, because an environment was given; give a function that builds it"
        )
        return
    finding = check_determinism(config, factory)
    report.remarks += [f"it {problem}: resuming a run may not be exact" for problem in finding.problems]
    if finding.rebuild:
        cost = finding.seconds_per_rebuild * 1000
        report.remarks.append(
            f"it keeps state across resets, so it is rebuilt for every episode ({cost:.2g} ms)"
        )
    if not finding.problems:
        report.facts["deterministic"] = "yes, under a seed"


def _examine_game(
    report: EnvReport, config: TrainConfig, factory: EnvFactory | None, game: Any, *, alone: bool
) -> None:
    """Play a game by its own rules first, which finds every problem; then as a run would."""
    seeds = [episode_seed(config.seed, 0, number) for number in range(EPISODES)]
    found = check_game(game, seeds, max_steps=MAX_STEPS, limit=config.max_episode_steps)
    report.problems += found.problems
    report.remarks += found.remarks
    if not found.problems:
        try:
            _add_game_facts(report, config, joint_env(game, config).game, found, state_text(game))
        except UserError as error:
            report.problems.append(str(error))
    if not alone and hasattr(game, "close"):
        game.close()
    if report.problems:
        return
    if found.num_endless:
        report.remarks.append(
            f"{found.num_endless} of {EPISODES} random games did not end within {MAX_STEPS:,} steps, and there is no "
            "time limit; set one with --max-episode-steps 1000"
        )
    if not alone:
        report.remarks += environment_remarks(config, factory, max_seconds=None)
        report.remarks += _problem_in_a_worker(config, factory)
    _check_determinism(report, config, factory, alone=alone)


def _add_game_facts(report: EnvReport, config: TrainConfig, game: Game, found: Findings, state: str) -> None:
    """Add who plays, what the policies see and do, and which algorithms can learn it."""
    for spec in game.team_specs(1).values():
        BuildContext(spec, seed=0).encoding(config.algorithm)
    report.algorithms = [name for name, face in ALGORITHMS.items() if _plays(face, game)]
    facts = {"kind": "in turns" if game.in_turns else "simultaneous", "agents": ", ".join(game.agents)}
    for team in game.teams:
        facts[f"policy {team.name}"] = (
            f"plays {', '.join(seat.name for seat in team.seats)}; observations {space_text(team.observation_space)}; "
            f"actions {space_text(team.action_space)}"
        )
    facts["masks"] = "; ".join(_masks_by_place(game, found)) or "none"
    facts["state"] = state
    facts["algorithms"] = ", ".join(report.algorithms)
    facts["random games"] = f"{min(found.lengths)} to {max(found.lengths)} steps"
    facts["returns"] = ", ".join(
        f"{agent} {np.mean([returns[agent] for returns in found.games]):.4g}" for agent in game.agents
    )
    facts["rewards"] = f"{min(found.rewards):.4g} to {max(found.rewards):.4g}"
    facts["step"] = f"{np.mean(found.seconds) * 1e6:,.0f} µs"
    facts["time limit"] = (
        f"{config.max_episode_steps:,} steps" if config.max_episode_steps else "the game's own"
    )
    report.facts |= facts


def _masks_by_place(game: Game, found: Findings) -> list[str]:
    places = {place: [agent for agent, own in found.masked.items() if own == place] for place in MASKS_ARE_IN}
    return [
        f"of {'all agents' if len(agents) == len(game.agents) else ', '.join(agents)}, in {place}"
        for place, agents in places.items()
        if agents
    ]


def _plays(face: type[Algorithm], game: Game) -> bool:
    """Return whether an algorithm can learn a game without a dataset."""
    if face.config_class.needs_dataset or not face.config_class.plays_games:
        return False
    try:
        for team in game.teams:
            refuse_actions(face, team.action_space)
    except UserError:
        return False
    return True


def _problem_in_a_worker(config: TrainConfig, factory: EnvFactory | None) -> list[str]:
    """Return a remark if the game does not run in a process of its own."""
    try:
        with contextlib.closing(make_vector_env(config, 1, factory=factory, backend="async")) as env:
            env.reset()
    except Exception as error:
        return [f"it does not run with env_backend async: {type(error).__name__}: {reason(error)}"]
    return []


def _check_encoding(space: Space[Any], actions: Space[Any], config: TrainConfig) -> None:
    """Raise if no encoder reads the observations, or if `critic_obs` does not fit them."""
    spec = env_spec(space, actions, 1, masked=False, critic_obs=config.critic_obs)
    context = BuildContext(spec, seed=0)
    context.encoding(config.algorithm)
    context.entries_encoding(config.algorithm)


def _takes(face: type[Algorithm], actions: Space[Any], config: TrainConfig) -> bool:
    """Return whether an algorithm can train with these actions and `critic_obs`."""
    if config.critic_obs and face.config_class().critic_problems(face.name):
        return False
    if face.needs_critic_space and not config.critic_obs:
        return False
    try:
        refuse_actions(face, actions)
    except UserError:
        return False
    return True


def _play(report: EnvReport, env: SyncVectorEnv, config: TrainConfig) -> None:
    """Play episodes with random actions; report lengths, rewards, bounds and time."""
    returns, lengths, rewards = list[float](), list[int](), list[float]()
    masked, outside, ended = config.use_action_masks == "on", False, 0
    if (hint := raw_game_hint(config, env)) is not None:
        report.remarks.append(hint)
    seen = Observed(env.single_observation_space, config.algorithm.image_channels, atari=hint is not None)
    env.action_space.seed(0)
    env.single_action_space.seed(0)
    obs, info = env.reset()
    total, length = 0.0, 0
    while len(returns) < EPISODES:
        action = random_action(env, obs, info, masked=masked)
        before = time.perf_counter()
        obs, reward, terminated, truncated, info = env.step(action)
        seconds = time.perf_counter() - before
        _refuse_not_finite(obs, reward, steps=sum(lengths) + length + 1)
        outside = outside or not env.observation_space.contains(obs)
        rewards.append(float(reward[0]))
        seen.add(obs, rewards[-1], seconds)
        total, length = total + rewards[-1], length + 1
        over = bool(terminated[0] or truncated[0])
        if over or length == MAX_STEPS:
            ended += over
            returns.append(total)
            lengths.append(length)
            total, length = 0.0, 0
            if not over:
                obs, info = env.reset()
    report.facts |= {
        "random episodes": f"{min(lengths)} to {max(lengths)} steps, return {np.mean(returns):.4g}",
        "rewards": f"{min(rewards):.4g} to {max(rewards):.4g}",
        "step": f"{sum(seen.seconds) / len(seen.seconds) * 1e6:,.0f} µs",
    }
    spec = env.envs[0].spec
    limit = spec.max_episode_steps if spec is not None else None
    report.facts["time limit"] = f"{limit:,} steps" if limit else "none"
    if not ended and limit is None:
        report.remarks.append(
            f"no episode ended within {MAX_STEPS:,} steps, and there is no time limit; set one with "
            "--max-episode-steps 1000"
        )
    if outside:
        report.remarks.append(
            "an observation was outside the bounds of its space; only images rely on the bounds"
        )
    report.remarks += seen.remarks(config)


def _refuse_not_finite(obs: Any, reward: Array, steps: int) -> None:
    numbers = [np.asarray(leaf, np.float64) for _, leaf in nested_leaves(obs)] + [np.asarray(reward)]
    if not all(np.isfinite(part).all() for part in numbers):
        raise RunFault(f"it returned a number that is not finite after {steps} random steps")
