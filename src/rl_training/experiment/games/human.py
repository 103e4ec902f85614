"""A person plays against an agent: what is shown, what is asked, and what is understood."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.core.errors import UserError, did_you_mean
from rl_training.core.seeding import (
    EVALUATION_EPISODES,
    MATCH_PLAYERS,
    episode_seed,
    evaluation_generators,
    numpy_generator,
)
from rl_training.core.spaces.layout import space_text
from rl_training.envs.factory import EnvFactory, make_game
from rl_training.experiment.agent import Agent
from rl_training.experiment.games.boards import render_mode_for, shown_by
from rl_training.experiment.games.game_records import GameWriter
from rl_training.experiment.games.judging import check_players, rules_of
from rl_training.experiment.games.matches import Fixture, PlayedGame, Result, Table, actions_of, asked
from rl_training.experiment.games.opponents import agent_player, game_of
from rl_training.experiment.games.players import Player, Turn, allowed_actions, mask_of

QUIT = ("q", "quit", "exit")


class Quit(Exception):
    """The person leaves, or the input ends."""


@dataclass(frozen=True)
class Terminal:
    """How a person is spoken to: `ask` shows a prompt and returns a line; it raises EOFError at the end."""

    say: Callable[[str], None]
    ask: Callable[[str], str]

    def answer(self, prompt: str) -> str:
        """Return what is typed, without spaces around it."""
        try:
            typed = self.ask(prompt).strip()
        except EOFError:
            raise Quit from None
        if typed.lower() in QUIT:
            raise Quit
        return typed


class Human:
    """Asks for every action."""

    name, watches, legal = "person", False, True

    def __init__(self, terminal: Terminal, env_id: str) -> None:
        self.terminal, self.env_id = terminal, env_id

    def begin(self, table: int, game: Any, agents: Sequence[str]) -> None:
        self.game = game

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> list[Any]:
        return [self._action(turn) for turn in turns]

    def _action(self, turn: Turn) -> int:
        terminal = self.terminal
        terminal.say("\n" + self.board(turn.agent, turn.observation))
        allowed = allowed_actions(self.game.action_space(turn.agent), mask_of(turn))
        listed = ", ".join(str(each) for each in allowed)
        while True:
            typed = terminal.answer(f"{turn.agent}, your action ({listed}; q quits): ")
            if typed.lstrip("-").isdecimal() and int(typed) in allowed:
                return int(typed)
            problem = "is not allowed now" if typed.lstrip("-").isdecimal() else "is not a number"
            terminal.say(f"'{typed[:40]}' {problem}; type one of {listed}")

    def board(self, agent: str, observation: Any) -> str:
        """Return the game as text, as an agent sees it."""
        return shown_by(self.game, agent, self.env_id)(self.game, agent, observation)


def play_against(
    agent: Agent,
    terminal: Terminal,
    *,
    seat: str | None = None,
    record: Path | str | None = None,
    sampled: bool = False,
    seed: int = 0,
    env: EnvFactory | str | None = None,
) -> dict[str, int]:
    """Let a person play games against an agent until they leave; return how many they won, drew and lost.

    Without a `seat` the person takes all seats in turn. `record` is a folder for the games that were finished.
    """
    agents = game_of(agent).agents
    if seat is not None and seat not in agents:
        raise UserError(f"seat is '{seat}'{did_you_mean(seat, agents)}; use one of {', '.join(agents)}")
    config, factory = agent.environment(env)
    seats = agents if seat is None else (seat,)
    with evaluation_generators(seed):
        mode = _checked(make_game(config, factory=factory), seats, config.env_id)
        rules = rules_of(config, factory, {name: (name,) for name in agents}, render_mode=mode)
        player = agent_player(agent, agent.name, deterministic=not sampled)
        check_players(rules, [player])
        _check_shown(rules.build(), seats, config.env_id)
        writer = None if record is None else GameWriter(record, config.env_id)
        if writer is not None:
            rules.began, rules.watch = writer.begin, writer.watch
        session = _Session(Human(terminal, config.env_id), player, Table(rules, 0, watching=player.watches))
        counts, number = {"win": 0, "draw": 0, "loss": 0}, 0
        try:
            while True:
                terminal.say(f"\nGame {number + 1}: you are {seats[number % len(seats)]}.")
                played, result = session.play(seats[number % len(seats)], seed, number)
                counts[result] += 1
                if writer is not None:
                    writer.finish(played)
                number += 1
                terminal.answer("Enter for another game, q to quit: ")
        except Quit:
            return counts
        finally:
            session.table.close()


class _Session:
    """A person and an agent at a table."""

    def __init__(self, human: Human, player: Player, table: Table) -> None:
        self.human, self.player, self.table = human, player, table

    def play(self, seat: str, seed: int, number: int) -> tuple[PlayedGame, Result]:
        """Play a game, show how it ended, and return it with the person's result."""
        human, table, terminal = self.human, self.table, self.human.terminal
        agents = [agent for side in table.rules.sides.values() for agent in side]
        seating = {agent: human if agent == seat else self.player for agent in agents}
        table.begin(Fixture(seating, episode_seed(seed, 0, number, EVALUATION_EPISODES)))
        rng = numpy_generator(seed, MATCH_PLAYERS, number)
        while not table.over:
            self._step(rng)
        played = table.played()
        last = asked(table.rules, "observe", partial(table.play.observe, seat, last=True))
        if last is not None:
            terminal.say("\n" + human.board(seat, last))
        terminal.say({"win": "You won.", "draw": "A draw.", "loss": "You lost."}[played.results[seat]])
        return played, played.results[seat]

    def _step(self, rng: np.random.Generator) -> None:
        """Play a step, and show what the agents did."""
        table, done = self.table, []
        for player, turn in table.turns():
            action = actions_of(table.rules, player, [turn], rng)[0]
            if turn.acts:
                table.actions[turn.agent] = action
            if turn.acts and player is not self.human:
                done.append(f"{turn.agent} plays {action}")
        table.step()
        for line in done:
            self.human.terminal.say(line)


def _checked(game: Any, seats: Sequence[str], env_id: str) -> str | None:
    """Return the render mode that shows a game as text, if any; raise an error for actions that are not numbers."""
    try:
        for agent in seats:
            space = game.action_space(agent)
            if not isinstance(space, spaces.Discrete):
                raise UserError(
                    f"game '{env_id}' has actions {space_text(space)} of agent '{agent}', which cannot be typed; play "
                    "is for games with Discrete actions"
                )
        return render_mode_for(game)
    finally:
        game.close()


def _check_shown(game: Any, seats: Sequence[str], env_id: str) -> None:
    """Raise an error if a game cannot be shown as text."""
    try:
        for agent in seats:
            shown_by(game, agent, env_id)
    finally:
        game.close()
