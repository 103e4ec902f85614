"""Plays a game with random actions and collects everything that is wrong with it, instead of stopping at the first."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import reason
from rl_training.core.spaces.masks import NoMask, as_masks, mask_counts, possible
from rl_training.core.types import Array
from rl_training.envs.checks import ResultCheck
from rl_training.envs.games.plays import begin
from rl_training.envs.games.seats import split_observation, without_mask
from rl_training.envs.masks import NAME, sample_allowed
from rl_training.envs.observations import nested_leaves

BOTH_KINDS = ("possible_agents", "observation_space", "action_space", "reset", "step")
IN_TURNS = ("agent_selection", "rewards", "terminations", "truncations", "infos")


class Unplayable(Exception):
    """The game cannot go on; why is a problem that is noted already."""


@dataclass
class Findings:
    """What was found: each problem once, with the first agent and step at which it came up."""

    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    games: list[dict[str, float]] = field(default_factory=list)
    """The returns of the agents in each game."""
    lengths: list[int] = field(default_factory=list)
    num_endless: int = 0
    rewards: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    masked: dict[str, str] = field(default_factory=dict)
    """Where each agent's masks are: `observations` or `info`."""
    seen: set[str] = field(default_factory=set)

    def once(self, kind: str, agent: str, sentence: str, *, remark: bool = False) -> None:
        """Note a problem, if this kind is new for the agent."""
        if f"{kind} {agent}" not in self.seen:
            self.seen.add(f"{kind} {agent}")
            (self.remarks if remark else self.problems).append(sentence)


def missing_parts(game: Any) -> list[str]:
    """Return what a game lacks of both of PettingZoo's interfaces."""
    lacking = [name for name in BOTH_KINDS if not hasattr(game, name)]
    if lacking:
        return [f"it has no {', '.join(lacking)}, which games of PettingZoo have"]
    agents = game.possible_agents
    if (
        not isinstance(agents, list | tuple)
        or not agents
        or not all(isinstance(each, str) for each in agents)
    ):
        return [f"possible_agents is {agents!r}; list the names of all agents, as text"]
    found = []
    if len(set(agents)) < len(agents):
        found.append(f"possible_agents is {agents!r}, with a name twice; give each agent its own")
    if hasattr(game, "agent_iter") and (
        lacking := [name for name in ("last", "observe") if not hasattr(game, name)]
    ):
        found.append(f"it has agent_iter, as games in turns, but no {', '.join(lacking)}")
    return found


def spaces_of(game: Any, findings: Findings) -> None:
    """Note agents without a space."""
    for agent in game.possible_agents:
        for name in ("observation_space", "action_space"):
            try:
                space = getattr(game, name)(agent)
            except Exception as error:
                findings.problems.append(f"{name}('{agent}') raised {type(error).__name__}: {reason(error)}")
                continue
            if not isinstance(space, Space):
                findings.problems.append(
                    f"{name}('{agent}') is {space!r}; return a space of gymnasium.spaces"
                )


class Referee:
    """Plays games by PettingZoo's own loop, and notes what breaks the rules."""

    def __init__(self, game: Any, findings: Findings) -> None:
        self.game, self.findings = game, findings
        self.known = set(game.possible_agents)
        self.actions = {agent: game.action_space(agent) for agent in game.possible_agents}
        full = {agent: game.observation_space(agent) for agent in game.possible_agents}
        self.spaces = {agent: without_mask(space) for agent, space in full.items()}
        self.checks = {agent: ResultCheck(space) for agent, space in self.spaces.items()}
        for number, agent in enumerate(self.actions):
            self.actions[agent].seed(number)
        self.step = 0

    def play(self, seed: int, max_steps: int, limit: int | None) -> None:
        """Play one game; `limit` is where a run would cut it off."""
        self.step, self.ended, self.present = 0, set[str](), set[str]()
        self.returns = dict.fromkeys(self.actions, 0.0)
        turns = hasattr(self.game, "agent_iter")
        over = (self._in_turns if turns else self._at_once)(seed, min(max_steps, limit or max_steps))
        self.findings.games.append(self.returns)
        self.findings.lengths.append(self.step)
        self.findings.num_endless += not over and limit is None

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            before = time.perf_counter()
            result = function(*arguments, **options)
        except Exception as error:
            said = f"{type(error).__name__}: {reason(error)}"
            self.findings.once("raised", name, f"{name} raised {said}, {self._when}")
            raise Unplayable from error
        if name == "step":
            self.findings.seconds.append(time.perf_counter() - before)
        return result

    @property
    def _when(self) -> str:
        return f"at step {self.step} of game {len(self.findings.games)}"

    def _note(self, kind: str, agent: str, sentence: str, *, remark: bool = False) -> None:
        self.findings.once(kind, agent, f"{sentence}, {self._when}", remark=remark)

    def _stop(self, kind: str, sentence: str) -> None:
        self._note(kind, "", sentence)
        raise Unplayable

    def _at_once(self, seed: int, max_steps: int) -> bool:
        result = self._call("reset", begin, self.game, seed)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], dict):
            self._stop("reset", "reset does not return (observations, infos), two dicts by agent")
        seen, infos = result
        self._names("observations", seen)
        acting = self._acting()
        if not acting:
            self._stop("nobody", "agents is empty after reset; let at least one begin")
        while acting and self.step < max_steps:
            chosen = {}
            for agent in acting:
                if agent not in seen:
                    self._note("blind", agent, f"agent '{agent}' acts next, but has no observation")
                chosen[agent] = self._action(agent, seen.get(agent), (infos or {}).get(agent))
            result = self._call("step", self.game.step, chosen)
            self.step += 1
            if (
                not isinstance(result, tuple)
                or len(result) != 5
                or not all(isinstance(d, dict) for d in result)
            ):
                self._stop(
                    "step",
                    "step does not return (observations, rewards, terminations, truncations, infos), dicts by agent",
                )
            seen, infos = result[0], result[4]
            self._look_at(result, acting)
            acting = self._acting()
        return not acting

    def _look_at(self, result: Any, acting: list[str]) -> None:
        """Note what is wrong with the outcome of a step that all agents made at once."""
        seen, rewards, terminations, truncations, _ = result
        for name, found in (("observations", seen), ("rewards", rewards), ("terminations", terminations)):
            self._names(name, found)
        for agent in acting:
            if agent not in rewards:
                self._note("unpaid", agent, f"agent '{agent}' acted, but rewards has no entry for it")
        for agent, reward in rewards.items():
            self._pay(agent, reward)
        ended = {agent for agent in self.known if terminations.get(agent) or truncations.get(agent)}
        self.ended |= ended
        for agent, obs in seen.items():
            self._check_observation(agent, obs)

    def _in_turns(self, seed: int, max_steps: int) -> bool:
        game = self.game
        self._call("reset", begin, game, seed)
        if not getattr(game, "agents", None):
            self._stop("nobody", "agents is empty after reset; let at least one begin")
        if lacking := [name for name in IN_TURNS if not hasattr(game, name)]:
            self._stop("parts", f"it has no {', '.join(lacking)} after reset, which games in turns have")
        while game.agents and self.step < max_steps:
            self._acting()
            agent = game.agent_selection
            if agent not in game.agents or agent not in self.known:
                self._stop(
                    "selection", f"agent_selection is {agent!r}, which is not in agents {list(game.agents)}"
                )
            result = self._call("last", game.last)
            if not isinstance(result, tuple) or len(result) != 5:
                self._stop("last", "last does not return (observation, reward, terminated, truncated, info)")
            obs, reward, terminated, truncated, info = result
            self._pay(agent, reward)
            self._check_observation(agent, obs)
            if terminated or truncated:
                self.ended.add(agent)
                self._call("step", game.step, None)
                if agent in game.agents:
                    self._stop(
                        "stays", f"agent '{agent}' is still in agents after it ended and took step(None)"
                    )
                continue
            self._call("step", game.step, self._action(agent, obs, info))
            self.step += 1
        return not game.agents

    def _acting(self) -> list[str]:
        """Return the agents that act next; note unlisted ones, those that come back, and those that just left."""
        agents = list(self.game.agents)
        self._names("agents", agents)
        for agent in self.ended & set(agents):
            self._note("again", agent, f"agent '{agent}' is back after it ended; give a new agent a new name")
        for agent in self.present - set(agents) - self.ended:
            self._note(
                "left", agent, f"agent '{agent}' left without being terminated or truncated", remark=True
            )
        self.present = set(agents)
        self.ended -= self.present
        return [agent for agent in agents if agent in self.known]

    def _names(self, what: str, found: Iterable[str]) -> None:
        for agent in found:
            if agent not in self.known:
                self._note("unlisted", str(agent), f"agent {agent!r} of {what} is not in possible_agents")

    def _pay(self, agent: str, reward: Any) -> None:
        try:
            number = float(reward)
        except (TypeError, ValueError):
            self._note("reward", agent, f"agent '{agent}' is paid {reward!r}, which is not a number")
            return
        if not math.isfinite(number):
            self._note("reward", agent, f"agent '{agent}' is paid {number}; rewards must be finite")
        elif agent in self.ended:
            if number:
                self._note(
                    "late",
                    agent,
                    f"agent '{agent}' is paid after it ended, which does not count",
                    remark=True,
                )
        elif agent in self.returns:
            self.returns[agent] += number
            self.findings.rewards.append(number)

    def _check_observation(self, agent: str, raw: Any) -> None:
        if agent not in self.known or raw is None:
            return
        obs, _ = split_observation(raw)
        if (problem := self.checks[agent].observation(obs)) is not None:
            self._note("observation", agent, f"agent '{agent}': it {problem}")
            return
        for _, leaf in nested_leaves(obs):
            if not np.isfinite(np.asarray(leaf, np.float64)).all():
                self._note("finite", agent, f"agent '{agent}' sees a number that is not finite")
                return
        space = self.spaces[agent]
        if not space.contains(obs) and not _inside(space, obs):
            what = f"agent '{agent}' sees something outside the bounds of its space"
            self._note("bounds", agent, what, remark=_only_boxes(space))

    def _action(self, agent: str, raw: Any, info: Any) -> Any:
        """Return a random action, an allowed one where there is a mask; note masks that are wrong."""
        space, counts = self.actions[agent], mask_counts(self.actions[agent])
        if raw is not None:
            self._check_observation(agent, raw)
        said = split_observation(raw)[1]
        where = "observations" if said is not None else "info"
        said = (info or {}).get(NAME) if said is None else said
        if counts is None:
            return space.sample()
        if said is None:
            if agent in self.findings.masked:
                self._note(
                    "mask", agent, f"agent '{agent}' acts next without a mask, although it had one before"
                )
            return space.sample()
        self.findings.masked.setdefault(agent, where)
        try:
            mask: Array = as_masks(said, sum(counts))
        except NoMask as problem:
            self._note("mask", agent, f"the action mask of agent '{agent}' is one {problem}")
            return space.sample()
        if not possible(mask[None], counts).all():
            self._note("mask", agent, f"the action mask of agent '{agent}', who acts next, allows no action")
            return space.sample()
        return sample_allowed(space, mask)


def _only_boxes(space: Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return all(_only_boxes(part) for part in space.spaces.values())
    return isinstance(space, spaces.Box)


def _inside(space: Space[Any], obs: Any) -> bool:
    """Return whether values are within the bounds, whatever their type is: float64 fits a Box of float32."""
    if isinstance(space, spaces.Dict):
        return all(_inside(part, obs[name]) for name, part in space.spaces.items())
    if isinstance(space, spaces.Box):
        array = np.asarray(obs)
        return bool((array >= space.low).all() and (array <= space.high).all())
    return bool(space.contains(np.asarray(obs, space.dtype) if space.shape else obs))


def check_game(game: Any, seeds: Iterable[int], *, max_steps: int, limit: int | None) -> Findings:
    """Play a game once with each seed; return what was found."""
    findings = Findings(problems=missing_parts(game))
    if not findings.problems:
        spaces_of(game, findings)
    if findings.problems:
        return findings
    referee = Referee(game, findings)
    for seed in seeds:
        with contextlib.suppress(Unplayable):
            referee.play(seed, max_steps, limit)
    return findings


def state_text(game: Any) -> str:
    """Say whether a game has a state, which a central critic can read; it must have been played."""
    try:
        game.reset(seed=0)
        state = np.asarray(game.state())
    except Exception:  # most games raise NotImplementedError
        return "none: central critics read all observations"
    return f"{state.dtype} of shape {state.shape}"
