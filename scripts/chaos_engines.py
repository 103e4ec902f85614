"""Kills and stops the processes of training runs at random moments, and compares with runs in one process.

`make chaos-engines` writes `results/chaos_engines.md`. The promise under test: engine, number of samplers and number of
learners never change a byte, even if samplers, learner ranks, the fork server, the run's own process or all of them die
(SIGKILL) or hang (SIGSTOP), and even if a run goes on with other numbers of processes.

Every run that loses its own process is resumed with other numbers. After each run no process of it may be left.

`make chaos-ray` does the same with runs on Ray clusters that they start, whose actors and nodes are struck as well, and
writes `results/chaos_ray.md`.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chaos
import tyro
from chaos import CATCH, LOCKS, NORMALISED, PENDULUM, POLE, Args, Finished, Scenario, Trial

from rl_training.experiment.checkpoints.folders import read_pointer
from rl_training.experiment.files import write_text

TIMEOUT = 3.0
"""Seconds after which a sampler that does not answer is replaced."""
SECONDS_TO_END = 15.0
"""Seconds that the processes of a run may take to end after the run."""
LONGEST_DELAY = 1.0
MACHINE = ("--engine", "--num-samplers", "--num-learners")
SMALL_REPLAY = (
    "--buffer-size",
    "3000",
    "--learning-starts",
    "200",
    "--batch-size",
    "32",
    "--hidden-sizes",
    "32",
    "32",
)
PPO = ("ppo", "--num-steps", "32", "--batch-size", "64", "--update-epochs", "4")
RECURRENT = ("recurrent_ppo", *PPO[1:], "--sequence-length", "16")
STATISTICS = ("--env-wrappers", "gymnasium.wrappers:NormalizeObservation")


@dataclass(frozen=True)
class EngineScenario(Scenario):
    """A run that several processes may share."""

    groups: int = 1
    lag: int = 0
    shards: int = 1
    ray: bool = False
    """Whether every start is on a Ray cluster of its own, every other time."""

    @property
    def title(self) -> str:
        """Its name in the report."""
        numbers = f"{self.groups} group{'s' * (self.groups > 1)}, lag {self.lag}"
        return f"{super().title}, {numbers}{f', {self.shards} shards' if self.shards > 1 else ''}"

    @property
    def experiment(self) -> tuple[str, ...]:
        """The flags that belong to the experiment, besides those of the algorithm and the environment."""
        flags = {"env-groups": self.groups, "lag": self.lag, "learner-shards": self.shards}
        return ("--env-timeout", f"{TIMEOUT:g}", *(f"--{name}={value}" for name, value in flags.items()))

    @property
    def layouts(self) -> list[tuple[str, int, int]]:
        """Every engine, number of samplers and number of learners that the run may have."""
        found = [
            ("process", samplers, learners)
            for samplers in (0, 1, 2, 4)
            for learners in (1, 2)
            if samplers <= self.groups and learners <= self.shards
        ]
        if self.ray:  # a run on two learners is on the cluster only if the cluster is not the run's own
            found = [("ray", samplers, 1) for samplers in (1, 2) if samplers <= self.groups]
        return [("local", 0, 1), *(each for each in found if each != ("process", 0, 1))]


SCENARIOS = (
    EngineScenario(
        "normalised, wrappers with statistics",
        (*PPO, *PENDULUM, *NORMALISED, *STATISTICS, "--num-envs", "6"), 24_000, 1_500, groups=3, lag=0,
    ),
    EngineScenario(
        "normalised, wrappers with statistics",
        (*PPO, *PENDULUM, *NORMALISED, *STATISTICS, "--num-envs", "6"), 24_000, 1_500, groups=3, lag=1,
    ),
    EngineScenario("four groups", (*PPO, *POLE, "--num-envs", "8"), 48_000, 3_000, groups=4, lag=1),
    EngineScenario("one group", (*PPO, *POLE, "--num-envs", "4"), 24_000, 1_500, groups=1, lag=0),
    EngineScenario("one group", (*PPO, *POLE, "--num-envs", "4"), 24_000, 1_500, groups=1, lag=1),
    EngineScenario("async", (*PPO, *POLE, "--num-envs", "4", "--env-backend", "async"), 16_000, 1_500, groups=2, lag=1),
    EngineScenario("masks", (*RECURRENT, *LOCKS, "{hint_steps: 1}", "--num-envs", "4"), 12_000, 1_000, groups=2, lag=0),
    EngineScenario("masks", (*RECURRENT, *LOCKS, "{hint_steps: 1}", "--num-envs", "4"), 12_000, 1_000, groups=2, lag=1),
    EngineScenario("uneven groups", ("a2c", *POLE, "--num-envs", "7"), 60_000, 4_000, groups=3, lag=0),
    EngineScenario(
        "prioritised, 3-step",
        ("dqn", *SMALL_REPLAY, *POLE, "--prioritized", "--n-step", "3", "--num-envs", "4", "--train-freq", "16"),
        8_000, 600, groups=2, lag=0,
    ),
    EngineScenario(
        "prioritised, 3-step",
        ("dqn", *SMALL_REPLAY, *POLE, "--prioritized", "--n-step", "3", "--num-envs", "4", "--train-freq", "16"),
        8_000, 600, groups=4, lag=1,
    ),
    EngineScenario(
        "rounds of 16 steps", ("sac", *SMALL_REPLAY, *PENDULUM, "--num-envs", "4", "--train-freq", "16"),
        3_200, 400, groups=2, lag=0,
    ),
    EngineScenario(
        "rounds of 16 steps", ("td3", *SMALL_REPLAY, *PENDULUM, "--num-envs", "4", "--train-freq", "16"),
        4_000, 400, groups=2, lag=1,
    ),
    EngineScenario("pixels", (*PPO, *CATCH, "--num-envs", "4"), 3_000, 300, groups=2, lag=1),
    EngineScenario("shards", (*PPO, *POLE, "--num-envs", "4"), 24_000, 1_500, groups=1, lag=0, shards=2),
    EngineScenario("shards", (*PPO, *POLE, *NORMALISED, "--num-envs", "4"), 24_000, 1_500, groups=2, lag=1, shards=2),
    EngineScenario(
        "shards", ("sac", *SMALL_REPLAY, *PENDULUM, "--num-envs", "4", "--train-freq", "16"),
        2_400, 300, groups=2, lag=1, shards=2,
    ),
)  # fmt: skip

RAY_SCENARIOS = (
    EngineScenario(
        "normalised, wrappers with statistics",
        (*PPO, *PENDULUM, *NORMALISED, *STATISTICS, "--num-envs", "6"), 24_000, 1_500, groups=3, lag=0, ray=True,
    ),
    EngineScenario("masks", (*RECURRENT, *LOCKS, "{hint_steps: 1}", "--num-envs", "4"), 12_000, 1_000, groups=2, lag=1,
        ray=True),
    EngineScenario(
        "prioritised, 3-step",
        ("dqn", *SMALL_REPLAY, *POLE, "--prioritized", "--n-step", "3", "--num-envs", "4", "--train-freq", "16"),
        8_000, 600, groups=2, lag=1, ray=True,
    ),
)  # fmt: skip

STRIKES = {
    "sampler killed": "sampler killed",
    "sampler stopped": "sampler stopped",
    "learner killed": "learner rank killed",
    "learner stopped": "learner rank stopped",
    "actor killed": "Ray actor killed",
    "actor stopped": "Ray actor stopped",
    "node killed": "Ray node killed",
    "server killed": "fork server killed",
    "server stopped": "fork server stopped",
    "driver killed": "run killed",
    "driver terminated": "run SIGTERM",
    "driver interrupted": "run SIGINT",
    "tree killed": "whole tree killed",
}
"""What happens to a process, with the words of the report."""
SIGNALS = {
    "killed": signal.SIGKILL,
    "stopped": signal.SIGSTOP,
    "terminated": signal.SIGTERM,
    "interrupted": signal.SIGINT,
}


@dataclass
class EngineArgs(Args):
    """Arguments of the command line."""

    ray: bool = False
    """Strike runs on Ray clusters."""


def main(args: EngineArgs) -> int:
    """Run the chaos, print and write what came of it."""
    name, known = ("chaos_ray", RAY_SCENARIOS) if args.ray else ("chaos_engines", SCENARIOS)
    chosen = [known[i] for i in args.scenarios] or list(known)
    finished = Finished(chaos.ROOT / "runs" / f"{name}.json", fresh=args.fresh)
    trials = chaos.torture_all(chosen, args.kills or 8 * len(known), args.seed, finished, torture)
    text = report(trials, name)
    print(text)
    if not args.scenarios:
        write_text(chaos.ROOT / "results" / f"{name}.md", text)
    finished.path.unlink(missing_ok=True)
    return 1 if any(trial.differences for trial in trials) else 0


def torture(scenario: EngineScenario, strikes: int, seed: float, folder: Path) -> Trial:
    """Strike the processes of one scenario's runs; start over if one finishes early, and compare each of them."""
    trial, rng = Trial(scenario), random.Random(seed)
    home = folder / f"{seed}"
    shared = shared_files()
    try:
        reference = chaos.finish(chaos.start(scenario, home / "reference", more=scenario.experiment))
    except RuntimeError as error:
        trial.differences.append(f"{scenario.title}: in one process, {error}")
        return trial
    attempt = failures = 0
    while len(trial.kills) < strikes and failures < chaos.MOST_FAILURES:
        attempt += 1
        victim = Victim(scenario, home / str(attempt), rng)
        try:
            run_dir = victim.live(trial, strikes)
            found = chaos.compare(reference, run_dir, more_checkpoints=True)
            trial.differences += [f"{scenario.title}: {each}" for each in found]
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failures += 1
            told = f"{scenario.title}: with {victim.told}, after {victim.last}, {error}"
            trial.differences.append(told)
        trial.differences += [f"{scenario.title}: {each}" for each in victim.remains()]
        shutil.rmtree(victim.output, ignore_errors=True)
        counts = f"{len(trial.kills)} strikes, {len(trial.differences)} differences"
        print(f"{scenario.title}: {counts}", file=sys.stderr, flush=True)
    if left := sorted(name for name in shared_files() - shared if not mapped(name)):
        trial.differences.append(f"{scenario.title}: left in /dev/shm: {', '.join(left)}")
    return trial


class Victim:
    """One run whose processes are struck until it ends by itself."""

    def __init__(self, scenario: EngineScenario, output: Path, rng: random.Random) -> None:
        self.scenario, self.output, self.rng = scenario, output, rng
        self.token = {TOKEN: str(output)}
        self.last = "no strike"
        self.layout = self.told = ""
        self._order = rng.sample(list(STRIKES), len(STRIKES))
        output.mkdir(parents=True)

    def live(self, trial: Trial, strikes: int) -> Path:
        """Strike until there are `strikes` in all, let the run finish, and return its folder."""
        process = self.launch()
        while len(trial.kills) < strikes and (kind := self.strike(process)) is not None:
            trial.kills.append(kind)
            self.last = kind
            if kind.startswith(("driver", "tree", "node")):  # a run ends with the only node of its cluster
                process.communicate(timeout=120)
                self.wait_for_the_end()
                process = self.launch()
        return chaos.finish(process, self.output)

    def launch(self) -> subprocess.Popen[str]:
        """Start the run or resume it, with other numbers of processes."""
        others = [each for each in self.scenario.layouts if str(each) != self.layout]
        weights = [1 + 2 * (samplers + learners - 1) for _, samplers, learners in others]
        chosen = self.rng.choices(others, weights)[0]
        self.layout = str(chosen)
        flags = [f"{name}={value}" for name, value in zip(MACHINE, chosen, strict=True)]
        self.told = " ".join(flags)
        runs = list(self.output.glob("*__*"))
        if runs and (runs[0] / "config.yaml").exists():
            return chaos.resume(runs[0], more=flags, variables=self.token)
        for run_dir in runs:
            shutil.rmtree(run_dir)
        own = (*self.scenario.experiment, *flags)
        return chaos.start(self.scenario, self.output, more=own, variables=self.token)

    def strike(self, process: subprocess.Popen[str]) -> str | None:
        """Wait for a random moment and strike; return what was done, or None if the run was faster."""
        before, deadline = self.newest(), time.monotonic() + self.rng.choice((4.0, 60.0, 60.0, 60.0))
        while process.poll() is None and self.newest() in (None, "step_0", before):
            if (
                time.monotonic() > deadline
            ):  # some strikes come before the first checkpoint, or during a start
                break
            time.sleep(0.01)
        time.sleep(self.rng.random() * LONGEST_DELAY)
        found = self.processes(process.pid)
        kind = next((kind for kind in self._order if found[kind.split()[0]]), None)
        if kind is None or process.poll() is not None:
            return None
        self._order.remove(kind)  # those that were not possible come first next time
        self._order += [kind]
        who, _, how = kind.partition(" ")
        for pid in found[who] if who == "tree" else [self.rng.choice(found[who])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGNALS[how])
        return kind

    def processes(self, pid: int) -> dict[str, list[int]]:
        """Return the processes of a run by what they are."""
        found: dict[str, list[int]] = {"sampler": [], "learner": [], "server": [], "driver": [pid]}
        found["tree"] = [pid, *descendants(pid)]
        found["actor"] = [each for each in found["tree"] if "ray::HostActor" in command_of(each)]
        found["node"] = [each for each in found["tree"] if "raylet/raylet" in command_of(each)]
        for child in children(pid):
            command = command_of(child)
            if "fork_server" in command:
                found["server"].append(child)
                found["sampler"] += children(child)
            elif "learner_ranks" in command:
                found["learner"].append(child)
        return found

    def newest(self) -> str | None:
        """Return the name of the newest checkpoint, if there is one."""
        runs = list(self.output.glob("*__*"))
        return read_pointer(runs[0] / "checkpoints", "last") if runs else None

    def wait_for_the_end(self) -> None:
        """Wait until no process of the run is left."""
        deadline = time.monotonic() + SECONDS_TO_END
        while (left := with_token(str(self.output))) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            raise RuntimeError(f"processes are left: {', '.join(map(command_of, left))}")

    def remains(self) -> list[str]:
        """Return complaints about processes that are left, and end them."""
        try:
            self.wait_for_the_end()
        except RuntimeError as error:
            for pid in with_token(str(self.output)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return [str(error)]
        return []


TOKEN = "CHAOS_ENGINES_RUN"
"""An environment variable that every process of a run inherits."""


def with_token(token: str) -> list[int]:
    """Return the processes of a run, even those whose parents have died; not those that are only not waited for."""
    wanted, found = f"{TOKEN}={token}".encode(), list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0") and alive(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    """Tell whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, by any of its threads."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in file.read_text(encoding="ascii").split()]
    return [child for child in found if alive(child)]


def descendants(pid: int) -> list[int]:
    """Return all processes below a process."""
    return [below for child in children(pid) for below in (child, *descendants(child))]


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def shared_files() -> set[str]:
    """Return the names of shared memory that has names."""
    return {path.name for path in Path("/dev/shm").glob("*")}


def mapped(name: str) -> bool:
    """Tell whether a process uses named shared memory: it may belong to somebody else."""
    wanted = f"/dev/shm/{name}"
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "maps").read_text(errors="replace"):
                return True
    return False


WHAT_IS_COMPARED = (
    "processes of runs are killed (SIGKILL), stopped (SIGSTOP) or asked to end at random moments. Every start and "
    "every resume has another engine, number of samplers (0, 1, 2, 4) and number of learners (1, 2). Everything in the "
    "final checkpoint, all rows of replay data, the checkpoint pointers and all metric files (wall-clock columns "
    "apart) are compared with a run in one process that nobody disturbed. A process or a file in `/dev/shm` that is "
    f"left behind counts as a difference. A sampler counts as hung after {TIMEOUT:g} s (`--env-timeout`)."
)


ON_RAY = (
    "Runs are on Ray clusters that they start themselves, or in one process. A run ends with the only node of its "
    "cluster, and is then resumed."
)


def report(trials: Sequence[Trial], name: str) -> str:
    """Return the Markdown report, with the strikes that took place."""
    struck = {kind.split()[0] for trial in trials for kind in trial.kills}
    columns = {kind: told for kind, told in STRIKES.items() if kind.split()[0] in struck}
    title, ray = ("Chaos on Ray clusters", f" {ON_RAY}") if name == "chaos_ray" else ("Chaos in engines", "")
    return "\n".join(
        [
            f"# {title}",
            "",
            f"Made by `make {name.replace('_', '-')}`: {WHAT_IS_COMPARED}{ray}",
            "",
            *chaos.table(list(trials), columns, "kills and stops"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(tyro.cli(EngineArgs, description=__doc__, default=EngineArgs(kills=0))))
