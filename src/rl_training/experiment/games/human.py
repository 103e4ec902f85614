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
from rl_training.experiment.games.matches import Fixture, Table, actions_of, asked
from rl_training.experiment.games.opponents import agent_player
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
    if agent.spec.game is None:
        raise UserError(
            f"{agent.name} plays '{agent.config.env_id}', which has a single agent: against nobody"
        )
    agents = agent.spec.game.agents
    if seat is not None and seat not in agents:
        raise UserError(f"seat is '{seat}'{did_you_mean(seat, agents)}; use one of {', '.join(agents)}")
    config, factory = agent.environment(env)
    seats = agents if seat is None else (seat,)
    with evaluation_generators(seed):
        mode = _checked(make_game(config, factory=factory), seats, config.env_id)
        rules = rules_of(config, factory, {name: (name,) for name in agents}, render_mode=mode)
        player = agent_player(agent, agent.name, deterministic=not sampled)
        human = Human(terminal, config.env_id)
        check_players(rules, [player])
        _check_shown(rules.build(), seats, config.env_id)
        writer = None if record is None else GameWriter(record, config.env_id)
        if writer is not None:
            rules.began, rules.watch = writer.begin, writer.watch
        table = Table(rules, 0, watching=player.watches)
        rng, counts = numpy_generator(seed, MATCH_PLAYERS), {"win": 0, "draw": 0, "loss": 0}
        number = 0
        try:
            while True:
                own = seats[number % len(seats)]
                seating: dict[str, Player] = {name: human if name == own else player for name in agents}
                terminal.say(f"\nGame {number + 1}: you are {own}.")
                table.begin(Fixture(seating, episode_seed(seed, 0, number, EVALUATION_EPISODES)))
                _play(table, human, terminal, rng)
                result = table.played().results[own]
                counts[result] += 1
                if writer is not None:
                    writer.finish(table.played())
                last = asked(rules, "observe", partial(table.play.observe, own, last=True))
                if last is not None:
                    terminal.say("\n" + human.board(own, last))
                terminal.say({"win": "You won.", "draw": "A draw.", "loss": "You lost."}[result])
                number += 1
                terminal.answer("Enter for another game, q to quit: ")
        except Quit:
            return counts
        finally:
            table.close()


def _play(table: Table, human: Human, terminal: Terminal, rng: np.random.Generator) -> None:
    """Play a game to its end."""
    while not table.over:
        told = []
        for player, turn in table.turns():
            if player is human:
                table.actions[turn.agent] = human.act([turn], rng)[0]
                continue
            action = actions_of(table.rules, player, [turn], rng)[0]
            if turn.acts:
                table.actions[turn.agent] = action
                told.append(f"{turn.agent} plays {action}")
        table.step()
        for line in told:
            terminal.say(line)


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
