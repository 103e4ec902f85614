"""Kills runs that learn from datasets, and recordings, with SIGKILL; compares the results with undisturbed ones.

`make chaos-offline` writes `results/chaos_offline.md`. Every algorithm that needs a dataset is there, those that can
learn from one, and `record` in both formats. After each kill `resume`, or the same command, goes on. A kill comes at a
random moment of the time that an undisturbed run needs after it has begun; a run that was faster than its kill is
compared as well, and another one is killed in its place.
"""

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from chaos import Trial, compare, find_run_dir, finish, launch, table

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.folders import read_pointer
from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
ALSO_FROM_DATA = ("td3", "sac", "dqn")
SMALL = (
    "--batch-size",
    "32",
    "--hidden-sizes",
    "32",
    "32",
    "--num-eval-episodes",
    "2",
    "--seed",
    "3",
    "--quiet",
)
CADENCE = (
    *("--checkpoint-every-timesteps", "150", "--eval-every-timesteps", "600"),
    *("--log-every-timesteps", "100", "--held-out-fraction", "0.2"),
)
EPISODES = {"Pendulum-v1": 20, "CartPole-v1": 60}
PLACES = {
    "starting": "starting",
    "training": "training",
    "evaluating": "evaluating",
    "writing": "writing a checkpoint",
    "plotting": "drawing the curve",
    "playing": "playing episodes",
    "keeping": "writing episodes",
    "finishing": "writing the dataset",
    "ending": "ending",
}
"""What a process can be killed in, with the words of the report."""
AFTERWARDS = ("plotting", "ending")
"""What comes when the work is done."""
LONGEST = 120.0
"""Seconds after which a process that should have begun is given up."""


@dataclass(frozen=True)
class Work:
    """What is killed: a run that learns from a dataset, or a recording."""

    flags: tuple[str, ...]
    title: str

    @property
    def records(self) -> bool:
        return self.flags[0] == "record"

    def start(self, output: Path, marker: Path | None = None) -> subprocess.Popen[str]:
        """Start it, or let it go on where it was."""
        output.mkdir(parents=True, exist_ok=True)
        if self.records:
            return launch([*self.flags, "--to", str(output / "data set")], marker)
        for run in output.glob("*__*"):
            if (run / "config.yaml").exists():
                return launch(["resume", str(run), "--quiet"], marker)
            shutil.rmtree(run)  # killed before there was anything to go on from
        return launch([*self.flags, "--output-dir", str(output)], marker)

    def finish(self, process: subprocess.Popen[str], output: Path) -> None:
        """Wait for the end of the process."""
        if not self.records:
            finish(process, output)
            return
        _, errors = process.communicate(timeout=300)
        if process.returncode:
            raise RuntimeError(f"a recording ended with {process.returncode}: {errors.strip()}")

    def differences(self, reference: Path, output: Path) -> list[str]:
        """Return what differs between two finished ones."""
        if not self.records:
            return compare(find_run_dir(reference), find_run_dir(output))
        known, found = (dataset_hashes(folder / "data set" / "data") for folder in (reference, output))
        return [
            f"{output.name}: {name}"
            for name in known.keys() | found.keys()
            if known.get(name) != found.get(name)
        ]


@dataclass
class Scenario:
    """A work with the title that the report gives it."""

    title: str


@dataclass
class Killer:
    """Kills one work until there were enough kills, and compares every one that came to its end."""

    work: Work
    folder: Path
    rng: random.Random
    trial: Trial = field(init=False)
    seconds: float = 0.0
    """How long the undisturbed one took after it had begun."""

    def __post_init__(self) -> None:
        self.trial = Trial(Scenario(self.work.title))  # type: ignore[arg-type]  # the table needs its title only
        self.marker = self.folder / "marker"

    def torture(self, kills: int) -> Trial:
        """Return what happened."""
        self.folder.mkdir(parents=True)
        process = self.begin(self.folder / "reference")
        begun = time.monotonic()
        while process.poll() is None and self.activity() not in AFTERWARDS:
            time.sleep(0.005)
        self.seconds = time.monotonic() - begun
        self.work.finish(process, self.folder / "reference")
        round_ = 0
        while len(self.trial.kills) < kills:
            round_ += 1
            output = self.folder / f"killed {round_}"
            process = self.begin(output)
            while len(self.trial.kills) < kills and self.kill(process, output):
                process = self.begin(output)
            self.work.finish(process, output)
            self.trial.differences += self.work.differences(self.folder / "reference", output)
            shutil.rmtree(output)
        return self.trial

    def begin(self, output: Path) -> subprocess.Popen[str]:
        """Start a process and wait until it has begun to work, or sometimes not."""
        self.marker.unlink(missing_ok=True)
        process = self.work.start(output, self.marker)
        limit = time.monotonic() + LONGEST
        early = bool(self.seconds) and self.rng.random() < 0.1
        while not early and not self.marker.exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        return process

    def kill(self, process: subprocess.Popen[str], output: Path) -> bool:
        """Kill the process at a random moment; False if it was faster."""
        time.sleep(self.rng.random() * self.seconds * 0.6)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        if process.returncode != -signal.SIGKILL:
            return False
        process.communicate()
        self.trial.kills.append(self.place(output))
        return True

    def activity(self) -> str:
        """Return what the process says it is doing."""
        return self.marker.read_text() if self.marker.exists() else "starting"

    def place(self, output: Path) -> str:
        """Tell what the process was doing when it died: one of `PLACES`."""
        activity = self.activity()
        for run in output.glob("*__*"):
            checkpoints = run / "checkpoints"
            leftovers = [path.name for path in checkpoints.rglob(".*") if path.suffix in (".tmp", ".old")]
            newest = max((int(path.name[5:]) for path in checkpoints.glob("step_*")), default=0)
            pointed = read_pointer(checkpoints, "last")
            if activity == "training" and (leftovers or (pointed and pointed != f"step_{newest}")):
                return "writing"
        return activity


def dataset_hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file of a dataset."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def learning_algorithms() -> list[str]:
    """Return the algorithms that need a dataset, and those that also learn from one."""
    return [name for name, face in ALGORITHMS.items() if face.config_class.needs_dataset] + [*ALSO_FROM_DATA]


def prepare(folder: Path) -> dict[str, Path]:
    """Save two agents for each environment, and record a dataset with them; return the datasets."""
    found = {}
    for env_id, algo in (("Pendulum-v1", "SAC"), ("CartPole-v1", "PPO")):
        agents = [folder / "agents" / f"{env_id}-{seed}" for seed in (1, 2)]
        for seed, agent in enumerate(agents):
            getattr(rl_training, algo)(env_id, seed=seed, hidden_sizes=(32, 32)).save(agent)
        found[env_id] = rl_training.record(
            agents, folder / f"{env_id}-dataset", num_episodes=EPISODES[env_id], random_fraction=0.3
        )
    return found


def fitting(algo: str, datasets: dict[str, Path], folder: Path) -> Path:
    """Return the dataset whose actions an algorithm can learn: the continuous one, if it takes both."""
    problem: Exception | None = None
    for dataset in datasets.values():
        try:
            model = ALGORITHMS[algo](dataset=str(dataset), total_updates=1, output_dir=str(folder))
            assert model.agent is not None
            return dataset
        except UserError as error:
            problem = error
    raise RuntimeError(f"{algo} learns from none of the datasets: {problem}")


def all_work(folder: Path, updates: int) -> list[Work]:
    """Return everything that is killed."""
    datasets = prepare(folder)
    works = []
    for algo in learning_algorithms():
        dataset = fitting(algo, datasets, folder)
        budget = ("--dataset", str(dataset), "--total-updates", str(updates))
        works.append(
            Work(("train", algo, *budget, *SMALL, *CADENCE), f"{algo.upper()}, {dataset.name.split('-')[0]}")
        )
    for env_id, data_format, episodes in (("Pendulum-v1", "hdf5", "300"), ("CartPole-v1", "arrow", "200")):
        agents = [str(path) for path in sorted((folder / "agents").glob(f"{env_id}-*"))]
        how = (
            "--episodes",
            episodes,
            "--random-fraction",
            "0.3",
            "--weights",
            "1",
            "2",
            "--format",
            data_format,
        )
        works.append(Work(("record", *agents, *how), f"record, {data_format}"))
    return works


@dataclass
class Args:
    """How much chaos."""

    kills: int = 36
    """Kills in all, spread over everything; at least three for each."""
    updates: int = 3_000
    """Length of a run that learns from a dataset."""
    seed: int = 0
    """Seed of the kill times."""
    jobs: int = 2
    """How many are killed side by side."""


def torture_all(works: Sequence[Work], args: Args, folder: Path) -> list[Trial]:
    """Kill everything, side by side."""
    each = max(3, -(-args.kills // len(works)))

    def torture(number: int) -> Trial:
        trial = Killer(works[number], folder / str(number), random.Random(f"{args.seed} {number}")).torture(
            each
        )
        print(
            f"{works[number].title}: {len(trial.kills)} kills, {len(trial.differences)} differences",
            flush=True,
        )
        return trial

    with ThreadPoolExecutor(args.jobs) as pool:
        return list(pool.map(torture, range(len(works))))


def main(args: Args) -> int:
    """Run the chaos, print and write what it led to."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        trials = torture_all(all_work(Path(temporary), args.updates), args, Path(temporary))
    text = report(trials)
    print(text, f"{time.monotonic() - begun:.0f} s", sep="\n")
    write_text(ROOT / "results" / "chaos_offline.md", text)
    return 1 if any(trial.differences for trial in trials) else 0


def report(trials: list[Trial]) -> str:
    """Return the Markdown report."""
    about = (
        "Made by `make chaos-offline`: runs that learn from a dataset, and recordings, are killed with SIGKILL at "
        "random moments; `resume`, or the same command, goes on. The final checkpoints, pointers and metric files "
        "(wall-clock columns apart) of runs, and all files of recorded datasets, are compared with undisturbed ones. "
        "The columns in the middle show what the process was doing when it was killed."
    )
    return "\n".join(["# Chaos: learning from datasets and recording", "", about, "", *table(trials, PLACES)])


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
