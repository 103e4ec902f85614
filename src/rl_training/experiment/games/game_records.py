"""Recorded games: a JSON-lines file with one game per line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.as_data import space_from_data, space_to_data
from rl_training.core.types import Array
from rl_training.envs.games.seats import split_observation, without_mask
from rl_training.experiment.games.matches import PlayedGame, Step
from rl_training.experiment.games.players import mask_of

FILE = "games.jsonl"


@dataclass(frozen=True)
class RecordedStep:
    """A step of a recorded game; all by agent."""

    observations: dict[str, Any]
    """What the agents saw that acted, without masks."""
    masks: dict[str, Array]
    """Which actions were allowed; empty in games without masks."""
    actions: dict[str, Any]
    rewards: dict[str, float]


@dataclass(frozen=True)
class RecordedGame:
    """A game: its seed, the name of each agent's player, its steps, and what each agent was paid."""

    env_id: str
    seed: int
    players: dict[str, str]
    returns: dict[str, float]
    results: dict[str, str]
    steps: list[RecordedStep] = field(default_factory=list)


class GameWriter:
    """Appends whole games to `games.jsonl` in a folder."""

    def __init__(self, folder: Path | str, env_id: str) -> None:
        self.path, self.env_id = Path(folder) / FILE, env_id
        self._steps: list[Step] = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}; choose another folder"
            ) from error

    def begin(self, table: int, game: Any) -> None:
        """Begin a game; one that was not finished is forgotten."""
        self._steps, self._game = [], game

    def watch(self, step: Step) -> None:
        """Keep a step; its observations are converted at once, as the game may reuse their memory."""
        self._steps.append(step)
        step.turns = [
            type(turn)(turn.table, turn.agent, _plain(turn.observation), _mask_info(turn.info), turn.acts)
            for turn in step.turns
        ]

    def finish(self, played: PlayedGame) -> None:
        """Append the game as one line."""
        agents = list(played.seating)
        line = {
            "env_id": self.env_id,
            "seed": played.seed,
            "players": played.seating,
            "returns": played.returns,
            "results": played.results,
            "observation_spaces": {
                agent: space_to_data(without_mask(self._game.observation_space(agent))) for agent in agents
            },
            "action_spaces": {agent: space_to_data(self._game.action_space(agent)) for agent in agents},
            "steps": [_step_data(step) for step in self._steps],
        }
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror}") from error


def _step_data(step: Step) -> dict[str, Any]:
    masks = {turn.agent: mask_of(turn) for turn in step.turns}
    return {
        "observations": {turn.agent: split_observation(turn.observation)[0] for turn in step.turns},
        "masks": {agent: mask.astype(int).tolist() for agent, mask in masks.items() if mask is not None},
        "actions": {agent: _plain(action) for agent, action in step.actions.items()},
        "rewards": step.rewards,
    }


def _mask_info(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(info[name]) for name in ("action_mask",) if name in info}


def _plain(value: Any) -> Any:
    """Return arrays and numbers as lists and Python's numbers."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def read_games(folder: Path | str) -> list[RecordedGame]:
    """Return the games that `play --record` wrote into a folder; raise an error for a damaged line."""
    path = Path(folder) / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; give a folder that play --record wrote") from error
    games = []
    for number, line in enumerate(lines, 1):
        try:
            games.append(_game(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged in line {number}: {type(error).__name__}: {error}") from error
    return games


def _game(data: dict[str, Any]) -> RecordedGame:
    seen = {agent: space_from_data(space) for agent, space in data["observation_spaces"].items()}
    done = {agent: space_from_data(space) for agent, space in data["action_spaces"].items()}
    steps = [
        RecordedStep(
            {agent: _of_space(seen[agent], value) for agent, value in step["observations"].items()},
            {agent: np.array(mask, np.bool_) for agent, mask in step["masks"].items()},
            {agent: _of_space(done[agent], value) for agent, value in step["actions"].items()},
            {agent: float(reward) for agent, reward in step["rewards"].items()},
        )
        for step in data["steps"]
    ]
    return RecordedGame(
        str(data["env_id"]),
        int(data["seed"]),
        dict(data["players"]),
        dict(data["returns"]),
        dict(data["results"]),
        steps,
    )


def _of_space(space: Space[Any], value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _of_space(part, value[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_of_space(part, each) for part, each in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return int(value)
    return np.array(value, space.dtype)
