"""`rl-training play`: a person plays a game against a trained agent in the terminal."""

from dataclasses import dataclass
from typing import Annotated

from rl_training.cli.arguments import Option, parse
from rl_training.cli.env_flags import chosen_env
from rl_training.core.errors import printable
from rl_training.experiment.games.game_records import FILE
from rl_training.experiment.games.human import Terminal, play_against
from rl_training.experiment.interrupts import closing_on_sigterm
from rl_training.experiment.loading import load_agent


@dataclass(frozen=True, kw_only=True)
class Play:
    """Play a game against a trained agent: type the number of an action, or q to quit.

    For games with Discrete actions that render as text, or whose observations are a small board. On a board, X marks
    your pieces and O those of the other player.
    """

    run: Annotated[str, Option(positional=True, metavar="RUN")]
    """A run folder, a checkpoint folder, or last/best of a run."""
    seat: str | None = None
    """The agent of the game that you play; by default all of them in turn, a game each. The trained agent plays the
    others."""
    record: Annotated[str | None, Option(metavar="DIR")] = None
    """Folder with a file games.jsonl, to which each finished game is appended as a line: seed, observations, masks,
    actions and rewards."""
    sampled: Annotated[bool, Option(aliases=("--stochastic",))] = False
    """Let the agent sample its actions instead of taking the most likely one."""
    seed: int = 0
    """Seed of the games and of sampled actions."""
    env_id: str | None = None
    """Game to play; by default the one the agent was trained in."""
    env_factory: str | None = None
    """Function that builds the game, as module:function."""
    trust_modules: bool = False
    """Import the modules that someone else's run names for algorithm, environment, wrappers, encoder and schedules."""


def _ask(prompt: str) -> str:
    try:
        return input(printable(prompt))
    except UnicodeDecodeError:  # bytes that are no text
        return "?"


def run(argv: list[str]) -> int:
    """Parse the flags, and play until the person leaves."""
    flags = parse(Play, argv, "rl-training play")
    env = chosen_env(flags.env_id, flags.env_factory)
    agent = load_agent(flags.run, env=env, trust_modules=flags.trust_modules, probe=False)
    terminal = Terminal(lambda text: print(printable(text), flush=True), _ask)
    with closing_on_sigterm():
        counts = play_against(
            agent,
            terminal,
            seat=flags.seat,
            record=flags.record,
            sampled=flags.sampled,
            seed=flags.seed,
            env=env,
        )
    print(f"\nYou won {counts['win']}, drew {counts['draw']} and lost {counts['loss']}.")
    if flags.record is not None:
        print(printable(f"games: {flags.record}/{FILE}"))
    return 0
