"""`rl-training record`: play episodes with trained agents and write them as a dataset."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from rl_training.cli.arguments import Option, parse
from rl_training.cli.env_flags import chosen_env
from rl_training.core.errors import printable
from rl_training.experiment.interrupts import closing_on_sigterm
from rl_training.experiment.recording.record import record


@dataclass(frozen=True, kw_only=True)
class Record:
    """Play episodes with trained agents and write them as a Minari dataset, from which agents can learn.

    Interrupted at any moment, the same command goes on. `rl-training eval RUN --record DIR` records a video instead.
    """

    run: Annotated[tuple[str, ...], Option(positional=True, metavar="RUN")]
    """Run folders, checkpoint folders, or last/best of a run; with several, each episode's agent is drawn at random."""
    to: Annotated[str, Option(metavar="DIR")]
    """Folder of the dataset."""
    num_episodes: Annotated[int, Option(aliases=("--episodes",))] = 100
    """Episodes to record."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise that is added to continuous actions, scaled to [-1, 1]."""
    random_fraction: float = 0.0
    """Probability that an episode has uniformly random actions from its first step to its last."""
    weights: tuple[float, ...] = ()
    """How often each agent plays, relative to the others; by default equally often."""
    seed: int = 0
    """Seed of episodes, actions and choices of agents."""
    deterministic: bool = False
    """Take the most likely action instead of a sampled one."""
    data_format: Annotated[Literal["hdf5", "arrow"], Option(aliases=("--format",))] = "hdf5"
    """Format of Minari's files."""
    env_id: str | None = None
    """Environment to play in; by default the one the agents were trained in."""
    env_factory: str | None = None
    """Function that builds the environment to play in, as module:function."""
    trust_modules: bool = False
    """Import the modules that someone else's run names for algorithm, environment, wrappers, encoder and schedules."""


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    """Say after an interruption how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = stop.args or ("interrupted; repeat the same command to go on",)
        raise


def run(argv: list[str]) -> int:
    """Parse the flags, record and print."""
    flags = parse(Record, argv, "rl-training record")
    env = chosen_env(flags.env_id, flags.env_factory)

    def say(text: str) -> None:
        print(printable(text), flush=True)

    with closing_on_sigterm(), _resumable():
        done = record(
            flags.run,
            to=flags.to,
            num_episodes=flags.num_episodes,
            noise=flags.noise,
            random_fraction=flags.random_fraction,
            seed=flags.seed,
            weights=flags.weights or None,
            env=env,
            deterministic=flags.deterministic,
            data_format=flags.data_format,
            trust_modules=flags.trust_modules,
            say=say,
        )
    if done.mean_return is not None:
        say(
            f"{done.num_episodes:,} episodes, {done.num_steps:,} steps, mean return of the episodes recorded now "
            f"{done.mean_return:.1f}"
        )
    say(f"dataset: {done.path}")
    return 0
