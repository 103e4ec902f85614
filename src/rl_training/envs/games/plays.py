"""One interface for PettingZoo's two kinds of games: all agents act at once, or one after another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_training.core.types import Info
from rl_training.envs.checks import InvalidResult

LARGE_SEED = 2**31


@dataclass
class Outcome:
    """What a step of a game brought, by agent."""

    rewards: dict[str, float] = field(default_factory=dict)
    ended: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """Whether the game ended for the agent: by a terminal state, by a limit of time."""
    infos: dict[str, Info] = field(default_factory=dict)


class Play(Protocol):
    """A game in progress. `acting` are the agents whose actions the next step takes; the game is over without any.

    `observe` returns what an agent sees now, or None; `last` asks for the last observation of a game that is cut off.
    `break_off` adds to an outcome what the agents that wait have not been paid yet, because the game is cut off.
    """

    game: Any
    in_turns: bool
    acting: tuple[str, ...]

    def reset(self, seed: int | None, options: Info | None) -> Outcome: ...
    def step(self, actions: Mapping[str, Any]) -> Outcome: ...
    def observe(self, agent: str, *, last: bool = False) -> Any: ...
    def break_off(self, outcome: Outcome) -> None: ...


def begin(game: Any, seed: int | None, options: Info | None = None) -> Any:
    """Reset a game; where only seeds of 31 bits are taken, as by hanabi of open_spiel, without the highest bit."""
    try:
        return game.reset(seed=seed, options=options)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        if seed is None or seed < LARGE_SEED:
            raise
        return game.reset(seed=seed % LARGE_SEED, options=options)


class SimultaneousPlay:
    """A game of PettingZoo's parallel API."""

    in_turns = False

    def __init__(self, game: Any) -> None:
        self.game = game
        self.acting: tuple[str, ...] = ()
        self._seen: Mapping[str, Any] = {}

    def reset(self, seed: int | None, options: Info | None) -> Outcome:
        """Begin a game."""
        result = begin(self.game, seed, options)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Mapping):
            raise InvalidResult(
                "returned something else than (observations, infos) from reset, two dicts by agent"
            )
        self._seen, infos = result
        self.acting = tuple(self.game.agents)
        return Outcome(infos=dict(infos or {}))

    def step(self, actions: Mapping[str, Any]) -> Outcome:
        """Let all agents act."""
        result = self.game.step({agent: actions[agent] for agent in self.acting})  # in the order of the game
        if not isinstance(result, tuple) or len(result) != 5:
            raise InvalidResult(
                "returned something else than five dicts from step (observations, rewards, terminations, "
                "truncations, infos)"
            )
        self._seen, rewards, terminations, truncations, infos = result
        ended = {
            agent: (bool(terminations.get(agent)), bool(truncations.get(agent)))
            for agent in {**terminations, **truncations}
            if terminations.get(agent) or truncations.get(agent)
        }
        self.acting = tuple(agent for agent in self.game.agents if agent not in ended)
        return Outcome(dict(rewards), ended, dict(infos or {}))

    def observe(self, agent: str, *, last: bool = False) -> Any:
        """Return what an agent sees now; None if it takes no part."""
        return self._seen.get(agent)

    def break_off(self, outcome: Outcome) -> None:
        """Do nothing: nobody waits."""


class TurnPlay:
    """A game of PettingZoo's AEC API. An agent is paid when its turn comes, and when it leaves the game."""

    in_turns = True

    def __init__(self, game: Any, *, watching: bool = False) -> None:
        """With `watching`, agents also observe the game while they wait for their turn."""
        self.game, self.watching = game, watching
        self.acting: tuple[str, ...] = ()

    def reset(self, seed: int | None, options: Info | None) -> Outcome:
        """Begin a game."""
        begin(self.game, seed, options)
        outcome = Outcome()
        self._find_mover(outcome)
        outcome.rewards.clear()  # of a game that has not begun
        return outcome

    def step(self, actions: Mapping[str, Any]) -> Outcome:
        """Let the agent whose turn it is act."""
        outcome = Outcome()
        self.game.step(actions[self.acting[0]])
        self._find_mover(outcome)
        return outcome

    def observe(self, agent: str, *, last: bool = False) -> Any:
        """Return what an agent sees now; None where that is not needed."""
        if agent in self.acting:
            return self._seen
        if agent in self._last:
            return self._last[agent]
        return self.game.observe(agent) if (self.watching or last) and agent in self.game.agents else None

    def break_off(self, outcome: Outcome) -> None:
        """Pay the agents that wait what they would be paid at their next turn."""
        owed = getattr(self.game, "_cumulative_rewards", {})
        for agent in self.game.agents:
            if agent in self.acting:  # it was paid already
                continue
            outcome.rewards[agent] = outcome.rewards.get(agent, 0.0) + float(owed.get(agent, 0.0))
            if self.game.terminations.get(agent):
                outcome.ended[agent] = (True, False)

    def _find_mover(self, outcome: Outcome) -> None:
        """Let agents that have ended leave; then find the next one that acts, and what it is paid."""
        game = self.game
        self._last: dict[str, Any] = {}
        self.acting = ()
        while game.agents:
            agent = game.agent_selection
            obs, reward, terminated, truncated, info = game.last()
            outcome.rewards[agent] = outcome.rewards.get(agent, 0.0) + float(reward)
            outcome.infos[agent] = info
            if not (terminated or truncated):
                self.acting, self._seen = (agent,), obs
                return
            self._last[agent] = obs
            outcome.ended[agent] = (bool(terminated), bool(truncated))
            game.step(None)
            if agent in game.agents:
                raise InvalidResult(
                    f"keeps agent '{agent}' in agents after it ended and took its last step; remove it there"
                )


CHECKS = {"OrderEnforcingWrapper", "AssertOutOfBoundsWrapper"}
"""PettingZoo's wrappers that only check how a game is used."""
REFEREE = "TerminateIllegalWrapper"
"""Its wrapper that ends a game after an action that the mask forbids."""


def play_of(game: Any, *, watching: bool, legal: bool = False) -> Play:
    """Return the interface of a game of either kind; what it has says which. `legal` actions need no referee."""
    if not hasattr(game, "agent_iter"):
        return SimultaneousPlay(game)
    return TurnPlay(without_checks(game, CHECKS | {REFEREE} if legal else CHECKS), watching=watching)


def without_checks(game: Any, names: set[str]) -> Any:
    """Return a game without PettingZoo's outer wrappers of these names, which take half of a step's time."""
    while type(game).__module__.startswith("pettingzoo.utils.wrappers") and type(game).__name__ in names:
        game = game.env
    return game
