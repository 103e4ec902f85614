"""Kills runs of games with SIGKILL and resumes them; compares the results with undisturbed ones.

`make chaos-games` writes `results/chaos_games.md`: games at once and in turns, one policy and several, memory, masks,
replay, worker processes, central critics and opponents of a pool. A kill comes at a random moment of the time that an
undisturbed run needs after it has begun; a run that was faster than its kill is compared as well, and another one is
killed in its place.
"""

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tyro
from chaos import Trial, table
from chaos_offline import Killer, Work

from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
FOUR, TOE = "pettingzoo://classic/connect_four_v3", "pettingzoo://classic/tictactoe_v3"
SPREAD = "pettingzoo://mpe2/simple_spread_v3"
PAIR = "pettingzoo://mpe2/simple_speaker_listener_v4"
REFERENCE = "pettingzoo://mpe2/simple_reference_v3"
COMMON = (
    *("--num-envs", "4", "--hidden-sizes", "32", "--seed", "3", "--num-eval-episodes", "3", "--quiet"),
    *(
        "--checkpoint-every-timesteps",
        "400",
        "--eval-every-timesteps",
        "1200",
        "--log-every-timesteps",
        "300",
    ),
)
ON_POLICY = ("--num-steps", "32", "--batch-size", "64", "--update-epochs", "2")
MEMORY = ("--core-size", "16", "--sequence-length", "8")
REPLAY = (
    *("--learning-starts", "200", "--batch-size", "32", "--buffer-size", "2000", "--train-freq", "8"),
    *("--target-update-every-timesteps", "200"),
)
POOL = ("--opponents", "pool", "--opponent-update-every", "500", "--opponent-pool-size", "4")
SCENARIOS: dict[str, tuple[str, ...]] = {
    "PPO, at once": ("ppo", SPREAD, *ON_POLICY),
    "PPO, at once, worker processes": ("ppo", SPREAD, *ON_POLICY, "--env-backend", "async"),
    "PPO, at once, separate policies": ("ppo", PAIR, *ON_POLICY, "--policies", "each"),
    "PPO, at once, cut off by a limit": ("ppo", SPREAD, *ON_POLICY, "--max-episode-steps", "10"),
    "PPO, in turns, masks": ("ppo", FOUR, *ON_POLICY),
    "PPO, in turns, masks, worker processes": ("ppo", TOE, *ON_POLICY, "--env-backend", "async"),
    "PPO, in turns, separate policies": ("ppo", TOE, *ON_POLICY, "--policies", "each"),
    "RecurrentPPO, at once": ("recurrent_ppo", REFERENCE, *ON_POLICY, *MEMORY),
    "RecurrentPPO, in turns, masks": ("recurrent_ppo", TOE, *ON_POLICY, *MEMORY),
    "DQN, in turns, masks": ("dqn", TOE, *REPLAY),
    "DQN, at once, separate policies, n-step": ("dqn", PAIR, *REPLAY, "--policies", "each", "--n-step", "3"),
    "A2C, in turns": ("a2c", TOE, "--num-steps", "16"),
    "MAPPO, at once": ("mappo", SPREAD, *ON_POLICY),
    "MAPPO, at once, separate policies": ("mappo", PAIR, *ON_POLICY, "--policies", "each"),
    "PPO, in turns, opponents of a pool": ("ppo", TOE, *ON_POLICY, *POOL),
}
"""What is killed: the algorithm, the game and settings."""
PLACES = {
    "starting": "starting",
    "replaying": "replaying games",
    "training": "training",
    "evaluating": "evaluating",
    "writing": "writing a checkpoint",
    "plotting": "drawing the curve",
    "ending": "ending",
}
"""What a process can be killed in, with the words of the report."""


@dataclass
class Args:
    """How much chaos."""

    kills: int = 48
    """Kills in all, spread over everything; at least three for each."""
    timesteps: int = 4_000
    """Length of a run."""
    seed: int = 0
    """Seed of the kill times."""
    jobs: int = 2
    """How many are killed side by side."""
    only: str = ""
    """Kill only what has this in its title."""


def all_work(timesteps: int, only: str = "") -> list[Work]:
    """Return everything that is killed."""
    return [
        Work(
            ("train", algo, "--env-id", game, *settings, *COMMON, "--total-timesteps", str(timesteps)), title
        )
        for title, (algo, game, *settings) in SCENARIOS.items()
        if only in title
    ]


def torture_all(works: Sequence[Work], args: Args, folder: Path) -> list[Trial]:
    """Kill everything, side by side."""
    each = max(3, -(-args.kills // len(works)))

    def torture(number: int) -> Trial:
        rng = random.Random(f"{args.seed} {number}")
        trial = Killer(works[number], folder / str(number), rng).torture(each)
        told = f"{len(trial.kills)} kills, {len(trial.differences)} differences"
        print(f"{works[number].title}: {told}", flush=True)
        return trial

    with ThreadPoolExecutor(args.jobs) as pool:
        return list(pool.map(torture, range(len(works))))


def report(trials: list[Trial]) -> str:
    """Return the Markdown report."""
    about = (
        "Made by `make chaos-games`: runs of games with several agents are killed with SIGKILL at random moments and "
        "resumed. The final checkpoints, pointers, replay data and metric files (wall-clock columns apart) are "
        "compared with those of undisturbed runs. The columns in the middle show what the process was doing when it "
        "was killed."
    )
    return "\n".join(["# Chaos: games with several agents", "", about, "", *table(trials, PLACES)])


def main(args: Args) -> int:
    """Run the chaos, print and write what it led to."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        trials = torture_all(all_work(args.timesteps, args.only), args, Path(temporary))
    text = report(trials)
    print(text, f"{time.monotonic() - begun:.0f} s", sep="\n")
    if not args.only:
        write_text(ROOT / "results" / "chaos_games.md", text)
    return 1 if any(trial.differences for trial in trials) else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
