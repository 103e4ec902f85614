"""`rl-training tournament`: all pairs of players play games; a cross table and Elo ratings."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rl_training.cli.arguments import Option, parse
from rl_training.cli.env_flags import chosen_env
from rl_training.cli.plan import ProgressLine
from rl_training.core.errors import printable
from rl_training.experiment.games.tournament import play_tournament
from rl_training.experiment.interrupts import closing_on_sigterm
from rl_training.lab.tournament_report import tournament_text, write_tournament


@dataclass(frozen=True, kw_only=True)
class TournamentFlags:
    """Let all pairs of players of a game with two agents play from both seats; print scores and Elo ratings.

    Writes tournament.json, tournament.md and tournament.png into the output folder.
    """

    players: Annotated[tuple[str, ...], Option(positional=True, metavar="RUN")]
    """Run folders, checkpoint folders, or last/best of a run; also random, and module:function, which maps an
    observation and a mask to an action. The first run decides which game is played."""
    games: int = 50
    """Games of each pair, half of them from each seat."""
    random_openings: int = 2
    """Number of random moves at the start of each game. Two agents that never sample play only one game from each seat
    without them."""
    sampled: Annotated[bool, Option(aliases=("--stochastic",))] = False
    """Sample actions instead of taking the most likely ones."""
    seed: int = 0
    """Seed of games, openings and sampled actions."""
    output_dir: Annotated[str, Option(metavar="DIR")] = "runs/tournament"
    """Folder for the results."""
    json: bool = False
    """Print the result as one JSON object."""
    env_id: str | None = None
    """Game to play; by default that of the first run."""
    env_factory: str | None = None
    """Function that builds the game, as module:function."""
    trust_modules: bool = False
    """Import the modules that someone else's run names for algorithm, environment, wrappers, encoder and schedules."""


def run(argv: list[str]) -> int:
    """Parse the flags, play, print and write."""
    flags = parse(TournamentFlags, argv, "rl-training tournament")
    env = chosen_env(flags.env_id, flags.env_factory)
    line = ProgressLine("playing")
    try:
        with closing_on_sigterm():
            played = play_tournament(
                flags.players,
                games=flags.games,
                random_openings=flags.random_openings,
                sampled=flags.sampled,
                seed=flags.seed,
                env=env,
                trust_modules=flags.trust_modules,
                say=line.show,
            )
    finally:
        line.clear()
    files, found = write_tournament(played, Path(flags.output_dir)), played.to_dict()
    if flags.json:
        print(json.dumps(found))
        return 0
    print(tournament_text(found))
    if not flags.sampled and not flags.random_openings:
        print("Without random openings or sampled actions, two agents repeat one game from each seat.\n")
    print("\n".join(printable(file) for file in files))
    return 0
