"""Kills training runs with SIGKILL again and again, resumes them, and compares with runs that were left alone.

`make chaos` writes `results/chaos.md`. The promise under test: the final checkpoint, the replay data and the metric
files (wall-clock columns apart) of a killed and resumed run are byte for byte those of an uninterrupted one. Kills are
aimed: at the first second of a run, at a resume that has just begun, at evaluations, at checkpoints being written, at
the end of a run and at the drawing of its curve; the others come at any moment.

`python scripts/chaos.py --kills N` spreads N kills over the scenarios: five times their number is five for each.
`--scenarios 31 32` takes some of them, by number, and writes no report.

Finished scenarios are kept in `runs/chaos.json` until the report is written, so that a second call goes on.
"""

import contextlib
import csv
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
import yaml
from safetensors.numpy import load_file

from rl_training.experiment.checkpoints.folders import read_pointer
from rl_training.experiment.files import write_json, write_text
from rl_training.experiment.logs.sinks import WALL_CLOCK

ROOT = Path(__file__).resolve().parents[1]
PPO = ("ppo", "--num-steps", "64", "--batch-size", "128", "--num-envs", "4", "--update-epochs", "8")
TWO_THREADS = ("ppo", "--num-steps", "32", "--batch-size", "64", "--update-epochs", "2", "--num-threads", "2")
A2C = ("a2c", "--num-envs", "4")
RECURRENT = ("recurrent_ppo", *PPO[1:], "--core-layers", "2", "--no-share-core")
REPLAY = (
    "--buffer-size",
    "3000",
    "--learning-starts",
    "300",
    "--batch-size",
    "64",
    "--hidden-sizes",
    "64",
    "64",
)
DQN = ("dqn", *REPLAY, "--num-envs", "3", "--train-freq", "3", "--target-update-every-timesteps", "250")
RAINBOW = ("--double", "--dueling", "--noisy", "--prioritized", "--n-step", "3", "--distribution", "c51")
SAC = ("sac", *REPLAY, "--num-envs", "2", "--train-freq", "2", "--n-step", "2")
TD3 = ("td3", *REPLAY, "--num-envs", "2", "--train-freq", "2", "--action-noise", "ornstein_uhlenbeck")
SMOOTH_SAC = ("sac", *REPLAY, "--num-envs", "2", "--train-freq", "16", "--use-sde", "--sde-sample-freq", "3")
NORMALISED = ("--normalize-obs", "--normalize-reward")
POLE = ("--env-id", "CartPole-v1")
WALKER = ("--env-id", "BipedalWalker-v3", "--rebuild-envs", "on")
ATARI = (
    "--env-id",
    "BreakoutNoFrameskip-v4",
    "--preprocessing",
    "atari",
    "--image-size",
    "42",
    "--features-dim",
    "32",
)
CATCH = ("--env-id", "rl_training.envs.tasks:rl_training/Catch-v0", "--features-dim", "32")
PENDULUM = ("--env-id", "Pendulum-v1")
OWN_ENCODER = ("--encoder", "chaos_envs:Forgetful", "--features-dim", "32")
LOCKS = ("--env-id", "rl_training.envs.tasks:rl_training/Locks-v0", "--env-kwargs")
WRAPPED = ("--env-id", "chaos_envs:WrappedPendulum-v0")

FIRST_SECOND, STARTING, RESUMING, BEGUN = "first second", "starting again", "resuming", "just begun"
WRITING, EVALUATING, ANY = "writing", "evaluating", "any moment"
NEAR_END, PLOTTING = "near the end", "plotting"
AIMS = {
    FIRST_SECOND: 4, STARTING: 2, RESUMING: 3, BEGUN: 3, WRITING: 6, EVALUATING: 4, ANY: 8, NEAR_END: 2, PLOTTING: 1,
}  # fmt: skip
"""What a kill may be aimed at, and how often it is."""
LONGEST_DELAYS = {FIRST_SECOND: 0.1, STARTING: 3.0, BEGUN: 0.1, ANY: 1.2, NEAR_END: 0.5}
"""Seconds that the kill may come after its aim is in sight; 0.01 for the others."""
AT_THE_END = {NEAR_END: 4, EVALUATING: 2, WRITING: 2, PLOTTING: 2}
JUST_EXTENDED = {STARTING: 1, RESUMING: 3, BEGUN: 5, EVALUATING: 1, WRITING: 2, ANY: 1, PLOTTING: 1}

PLACES = {
    "first second": "no checkpoint yet",
    "starting": "starting again",
    "replaying": "playing episodes again",
    "training": "training",
    "evaluating": "evaluating",
    "writing": "writing a checkpoint",
    "plotting": "drawing the curve",
    "ending": "ending",
}
"""What a process can be killed in, with the words of the report."""


@dataclass(frozen=True)
class Scenario:
    """A run that is killed several times."""

    name: str
    flags: tuple[str, ...]
    timesteps: int = 24_000
    checkpoint_every: int = 1_500
    extended_to: int | None = None
    """The run is left alone until its end, extended to so many timesteps, and killed from then on."""
    aims: Mapping[str, int] = field(default_factory=lambda: AIMS)
    """What kills are aimed at, with weights."""

    @property
    def title(self) -> str:
        """Its name in the report."""
        return f"{self.flags[0].upper()}, {self.name}"

    @property
    def cadence(self) -> tuple[str, ...]:
        """How often it saves, evaluates and logs."""
        numbers = {
            "checkpoint": self.checkpoint_every,
            "eval": 4 * self.checkpoint_every,
            "log": self.checkpoint_every // 2 - 50,
        }
        flags = [(f"--{name}-every-timesteps", str(number)) for name, number in numbers.items()]
        return tuple(word for flag in flags for word in flag)


def burst(train_freq: int, gradient_steps: int) -> tuple[str, ...]:
    """Return the flags for several updates at once."""
    return ("--train-freq", str(train_freq), "--gradient-steps", str(gradient_steps))


SCENARIOS = (
    Scenario(
        "sync, time limit", (*PPO, "--env-id", "CartPole-v1", "--env-kwargs", "{max_episode_steps: 60}")
    ),
    Scenario("async, time limit", (*PPO, "--env-id", "CartPole-v1", "--env-backend", "async")),
    Scenario("sync, stochastic", (*PPO, "--env-id", "FrozenLake-v1", "--normalize-reward")),
    Scenario("sync, MuJoCo", (*PPO, "--env-id", "Hopper-v5", *NORMALISED)),
    Scenario(
        "async, MuJoCo", (*PPO, "--env-id", "InvertedPendulum-v5", "--env-backend", "async", *NORMALISED)
    ),
    Scenario("sync, nested Dict", (*PPO, "--env-id", "chaos_envs:LongNestedDict-v0", *NORMALISED)),
    Scenario(
        "async, nested Dict", (*PPO, "--env-id", "chaos_envs:LongNestedDict-v0", "--env-backend", "async")
    ),
    Scenario(
        "sync, time limit",
        (*A2C, "--env-id", "CartPole-v1", "--env-kwargs", "{max_episode_steps: 60}", *NORMALISED),
        timesteps=160_000,
        checkpoint_every=10_000,
    ),
    Scenario(
        "all of Rainbow", (*DQN, *RAINBOW, "--env-id", "CartPole-v1"), timesteps=8_000, checkpoint_every=500
    ),
    Scenario(
        "random actions, nested Dict, normalised",
        (*DQN, "--prioritized", "--env-id", "chaos_envs:LongNestedDict-v0", *NORMALISED),
        timesteps=12_000,
        checkpoint_every=700,
    ),
    Scenario("2-step", (*SAC, "--env-id", "Pendulum-v1"), timesteps=6_000, checkpoint_every=400),
    Scenario(
        "async, correlated noise",
        (*TD3, "--env-id", "Pendulum-v1", "--env-backend", "async"),
        timesteps=9_000,
        checkpoint_every=600,
    ),
    Scenario("Box2D", (*PPO, *WALKER)),
    Scenario("Box2D", (*SAC, *WALKER), timesteps=4_000, checkpoint_every=400),
    Scenario("wrappers with statistics", (*PPO, *WRAPPED)),
    Scenario("wrappers with statistics", (*TD3, *WRAPPED), timesteps=6_000, checkpoint_every=400),
    Scenario(
        "stopped by its reward",
        (*PPO, *POLE, "--stop-at-reward", "100"),
        checkpoint_every=1_000,
        aims=AT_THE_END,
    ),
    Scenario(
        "stopped by a plateau",
        (*A2C, *POLE, "--learning-rate", "1e-9", "--stop-after-stale-evals", "3"),
        timesteps=100_000,
        checkpoint_every=3_000,
        aims=AT_THE_END,
    ),
    Scenario(
        "stopped by its reward, 3-step",
        (*DQN, *POLE, "--n-step", "3", "--stop-at-reward", "9"),
        timesteps=8_000,
        checkpoint_every=500,
        aims=AT_THE_END,
    ),
    Scenario("Atari, sync", (*PPO, *ATARI), timesteps=6_000, checkpoint_every=600),
    Scenario("Atari, async", (*PPO, *ATARI, "--env-backend", "async"), timesteps=6_000, checkpoint_every=600),
    Scenario("Atari, prioritised", (*DQN, *ATARI, "--prioritized"), timesteps=5_000, checkpoint_every=500),
    Scenario("memory, sync", (*RECURRENT, *POLE, *NORMALISED)),
    Scenario("memory, async", (*RECURRENT, "--core", "gru", *POLE, "--env-backend", "async")),
    Scenario("memory, Atari", (*RECURRENT, *ATARI), timesteps=4_000, checkpoint_every=500),
    Scenario("masks", (*PPO, *LOCKS, "{choices: [3, 4]}")),
    Scenario(
        "masks, async",
        (*A2C, *LOCKS, "{tell: method}", "--env-backend", "async"),
        timesteps=60_000,
        checkpoint_every=4_000,
    ),
    Scenario(
        "masks, all of Rainbow",
        (*DQN, *RAINBOW, *LOCKS, "{tell: entry}"),
        timesteps=8_000,
        checkpoint_every=500,
    ),
    Scenario("masks and memory", (*RECURRENT, *LOCKS, "{hint_steps: 1}")),
    Scenario("extended", (*PPO, *POLE), timesteps=6_000, extended_to=18_000, aims=JUST_EXTENDED),
    Scenario(
        "extended",
        (*SAC, "--env-id", "Pendulum-v1"),
        timesteps=1_500,
        checkpoint_every=400,
        extended_to=4_500,
        aims=JUST_EXTENDED,
    ),
    # ways of an update that those above do not take
    Scenario("encoder of one's own", (*PPO, *POLE, *OWN_ENCODER), timesteps=12_000, checkpoint_every=800),
    Scenario("encoder of one's own", (*A2C, *POLE, *OWN_ENCODER), timesteps=12_000, checkpoint_every=800),
    Scenario(
        "encoder of one's own", (*RECURRENT, *POLE, *OWN_ENCODER), timesteps=8_000, checkpoint_every=600
    ),
    Scenario("pixels", (*A2C, *CATCH), timesteps=8_000, checkpoint_every=600),
    Scenario("pixels, two threads", (*TWO_THREADS, *CATCH), timesteps=1_024, checkpoint_every=200),
    Scenario("quantiles", (*DQN, *POLE, "--distribution", "quantile"), timesteps=6_000, checkpoint_every=500),
    Scenario(
        "prioritised, 3-step",
        (*DQN, *POLE, "--prioritized", "--n-step", "3"),
        timesteps=8_000,
        checkpoint_every=500,
    ),
    Scenario("encoder of one's own", (*SAC, *PENDULUM, *OWN_ENCODER), timesteps=2_400, checkpoint_every=300),
    Scenario("encoder of one's own", (*TD3, *PENDULUM, *OWN_ENCODER), timesteps=2_400, checkpoint_every=300),
    Scenario(
        "ensemble",
        (*SAC, *PENDULUM, "--num-critics", "5", "--critic-subset", "2"),
        timesteps=3_000,
        checkpoint_every=400,
    ),
    # several updates at once, in whose midst targets move, actors wait and checkpoints fall due
    Scenario(
        "bursts",
        ("dqn", *REPLAY, *POLE, "--num-envs", "3", *burst(60, 20), "--target-update-every-updates", "7"),
        timesteps=8_000,
        checkpoint_every=500,
    ),
    Scenario(
        "bursts, prioritised",
        ("dqn", *REPLAY, *POLE, "--num-envs", "3", *burst(45, 15), "--prioritized", "--n-step", "3"),
        timesteps=8_000,
        checkpoint_every=500,
    ),
    Scenario(
        "bursts",
        ("sac", *REPLAY, *PENDULUM, "--num-envs", "2", *burst(50, -1)),
        timesteps=4_000,
        checkpoint_every=400,
    ),
    Scenario(
        "bursts, 3-step",
        ("td3", *REPLAY, *PENDULUM, "--num-envs", "2", *burst(64, 33), "--n-step", "3"),
        timesteps=6_000,
        checkpoint_every=400,
    ),
    Scenario(
        "state-dependent noise",
        (*PPO, *PENDULUM, "--use-sde", "--sde-sample-freq", "5", *NORMALISED),
    ),
    Scenario(
        "state-dependent noise",
        (*SMOOTH_SAC, *PENDULUM),
        timesteps=6_000,
        checkpoint_every=400,
    ),
    Scenario(
        "correlated noise",
        (*SAC, *PENDULUM, "--action-noise", "ornstein_uhlenbeck"),
        timesteps=6_000,
        checkpoint_every=400,
    ),
)


@dataclass
class Trial:
    """What happened to the killed runs of one scenario."""

    scenario: Scenario
    kills: list[str] = field(default_factory=list)
    """What the process was doing, kill by kill."""
    aims: list[str] = field(default_factory=list)
    """What was aimed at."""
    differences: list[str] = field(default_factory=list)


@dataclass
class Args:
    """How much chaos."""

    kills: int = 231
    """Kills in all, spread over the scenarios."""
    seed: int = 0
    """Seed of the kill times."""
    scenarios: Annotated[tuple[int, ...], tyro.conf.arg(help="Which scenarios, by number; none is all.")] = ()
    """Which scenarios, by number; none is all."""
    fresh: bool = False
    """Forget the finished scenarios of a call that was interrupted."""


class Finished:
    """Results of finished scenarios in a small file, from which an interrupted call goes on."""

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self.path, self._lock = path, threading.Lock()
        self.results: dict[str, Any] = {}
        if path.exists() and not fresh:
            self.results = json.loads(path.read_text(encoding="utf-8"))

    def key(self, scenario: Scenario, kills: int, seed: float) -> str:
        """Everything that the result depends on."""
        return json.dumps([asdict(scenario), kills, seed], sort_keys=True)

    def get(self, scenario: Scenario, kills: int, seed: float) -> Trial | None:
        """Return the result of an earlier call, if there is one."""
        known = self.results.get(self.key(scenario, kills, seed))
        return Trial(scenario, **known) if known else None

    def put(self, trial: Trial, kills: int, seed: float) -> None:
        """Keep a result."""
        found = {"kills": trial.kills, "aims": trial.aims, "differences": trial.differences}
        with self._lock:
            self.results[self.key(trial.scenario, kills, seed)] = found
            self.path.parent.mkdir(exist_ok=True)
            write_json(self.path, self.results)


def main(args: Args) -> int:
    """Run the chaos, print and write what came of it."""
    chosen = [SCENARIOS[i] for i in args.scenarios] or list(SCENARIOS)
    finished = Finished(ROOT / "runs" / "chaos.json", fresh=args.fresh)
    trials = torture_all(chosen, args.kills, args.seed, finished)
    text = report(trials)
    print(text)
    if not args.scenarios:
        write_text(ROOT / "results" / "chaos.md", text)
    finished.path.unlink(missing_ok=True)
    return 1 if any(trial.differences for trial in trials) else 0


def torture_all(
    chosen: Sequence[Scenario],
    kills: int,
    seed: int,
    finished: Finished,
    how: Callable[[Any, int, float, Path], Trial] | None = None,
) -> list[Trial]:
    """Spread the kills over scenarios, two at a time; those in `finished` are not repeated.

    `how` tortures one scenario; by default `torture` does.
    """
    rng = random.Random(seed)
    shares = [kills // len(chosen) + (i < kills % len(chosen)) for i in range(len(chosen))]
    jobs = [(scenario, share, rng.random()) for scenario, share in zip(chosen, shares, strict=True)]

    def work(job: tuple[Scenario, int, float]) -> Trial:
        known = finished.get(*job)
        if known is not None:
            return known
        trial = (how or torture)(*job, Path(folder))
        finished.put(trial, *job[1:])
        return trial

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(work, jobs))


MOST_FAILURES = 3
"""Runs of one scenario that may end by themselves, before it is given up."""


def torture(scenario: Scenario, kills: int, seed: float, folder: Path) -> Trial:
    """Kill one scenario's runs `kills` times in all, starting over when one finishes early; compare each of them."""
    trial, rng = Trial(scenario), random.Random(seed)
    home = folder / f"{scenario.flags[0]} {scenario.name}"
    try:
        reference = left_alone(scenario, home)
    except RuntimeError as error:
        trial.differences.append(f"{scenario.title}: without a kill, {error}")
        return trial
    attempt = failures = 0
    while len(trial.kills) < kills and failures < MOST_FAILURES:
        attempt += 1
        victim = Victim(scenario, home / str(attempt), reference)
        try:
            run_dir = victim.live(trial, kills, rng)
            trial.differences += compare(reference, run_dir)
        except RuntimeError as error:
            failures += 1
            trial.differences.append(f"{scenario.title}: after {victim.last_kill}, {error}")
        shutil.rmtree(victim.output, ignore_errors=True)
        done = len(trial.kills)
        print(f"{home.name}: {done} kills, {len(trial.differences)} differences", file=sys.stderr, flush=True)
    return trial


def left_alone(scenario: Scenario, home: Path) -> Path:
    """Return the run that nobody kills. One that will be extended is copied at its first end, to be killed later."""
    run_dir = finish(start(scenario, home / "reference"))
    if scenario.extended_to is not None:
        shutil.copytree(home / "reference", home / "finished")
        finish(resume(run_dir, extended_to=scenario.extended_to))
    return run_dir


class Victim:
    """One run that is killed and goes on until it ends by itself."""

    def __init__(self, scenario: Scenario, output: Path, reference: Path) -> None:
        self.scenario, self.output, self.reference = scenario, output, reference
        self.marker = output / "marker"
        self.last_kill = "no kill"
        self.resumed = False

    def live(self, trial: Trial, kills: int, rng: random.Random) -> Path:
        """Kill it until there are `kills` in all, let it finish, and return its folder."""
        process = self.begin()
        while len(trial.kills) < kills:
            aim = self.kill(process, rng)
            if aim is None:
                break
            trial.aims.append(aim)
            trial.kills.append(self.place())
            self.last_kill = f"a kill while {PLACES[trial.kills[-1]]}"
            process = self.go_on()
        return finish(process, self.output)

    def begin(self) -> subprocess.Popen[str]:
        """Start the run, or extend the one that was left alone so far."""
        if self.scenario.extended_to is None:
            self.output.mkdir(parents=True, exist_ok=True)
            return start(self.scenario, self.output, self.marker)
        shutil.copytree(self.output.parent / "finished", self.output)
        return self.go_on()

    def go_on(self) -> subprocess.Popen[str]:
        """Resume the run as a user would, who looks at what is there."""
        self.marker.unlink(missing_ok=True)
        self.resumed = True
        runs = list(self.output.glob("*__*"))
        if (
            not runs or not (runs[0] / "config.yaml").exists()
        ):  # killed before there was anything to go on from
            for run_dir in runs:
                shutil.rmtree(run_dir)
            self.resumed = False
            return start(self.scenario, self.output, self.marker)
        extended_to = self.scenario.extended_to
        config = yaml.safe_load((runs[0] / "config.yaml").read_text(encoding="utf-8"))
        if config["total_timesteps"] == extended_to:  # it was accepted, so it must survive
            extended_to = None
        return resume(runs[0], self.marker, extended_to=extended_to)

    def kill(self, process: subprocess.Popen[str], rng: random.Random) -> str | None:
        """Aim, wait, kill; return what was aimed at, or None if the process was faster."""
        impossible = {FIRST_SECOND} if self.resumed else {STARTING, RESUMING}
        possible = {aim: weight for aim, weight in self.scenario.aims.items() if aim not in impossible}
        aim = rng.choices(list(possible), list(possible.values()))[0]
        delay = rng.random()
        if not self.wait_for(process, aim):
            return None
        time.sleep(delay * LONGEST_DELAYS.get(aim, 0.01))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        with contextlib.suppress(ProcessLookupError):  # simulators that an environment started hold the pipes
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return aim if process.returncode == -signal.SIGKILL else None

    def wait_for(self, process: subprocess.Popen[str], aim: str) -> bool:
        """Wait until the aim is in sight; False if the process ended before that."""
        before = self.newest()
        while process.poll() is None:
            if self.in_sight(aim, before):
                return True
            time.sleep(0.001)
        return False

    def in_sight(self, aim: str, before: str | None) -> bool:
        """Tell whether it is time; `before` is the newest checkpoint when the process started."""
        newest = self.newest()
        if aim == FIRST_SECOND:
            return any(self.output.glob("*__*"))
        if aim == STARTING:
            return True
        if aim == BEGUN:
            return newest is not None and self.activity() == "training"
        if aim == RESUMING:
            return self.activity() == "replaying"
        if aim in (EVALUATING, PLOTTING):
            return self.activity() == aim
        if aim == NEAR_END:
            kept = sorted((self.reference / "checkpoints").glob("step_*"), key=lambda path: _step(path.name))
            near = newest is not None and _step(newest) >= _step(kept[-2].name)
            return near and self.activity() != "starting"
        # one that this process wrote, so that a chain of kills gets on
        own = newest not in (None, "step_0", before)
        return own and (aim == ANY or any(n.endswith(".tmp") for n in os.listdir(self.checkpoints)))

    def place(self) -> str:
        """Tell what the process was doing when it died: one of `PLACES`."""
        if self.newest() is None:
            return "first second"
        activity = self.activity()
        leftovers = [path.name for path in self.checkpoints.rglob(".*") if path.suffix in (".tmp", ".old")]
        newest = max((_step(path.name) for path in self.checkpoints.glob("step_*")), default=0)
        between = self.newest() != f"step_{newest}"
        return "writing" if activity == "training" and (leftovers or between) else activity

    def activity(self) -> str:
        """Return what the process says it is doing."""
        return self.marker.read_text() if self.marker.exists() else "starting"

    def newest(self) -> str | None:
        """Return the name of the newest checkpoint, if there is one."""
        runs = list(self.output.glob("*__*"))
        return read_pointer(runs[0] / "checkpoints", "last") if runs else None

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return find_run_dir(self.output) / "checkpoints"


NOTHING: Mapping[str, str] = {}


def _step(name: str) -> int:
    return int(name.removeprefix("step_"))


def start(
    scenario: Scenario,
    output: Path,
    marker: Path | None = None,
    *,
    more: Sequence[str] = (),
    variables: Mapping[str, str] = NOTHING,
) -> subprocess.Popen[str]:
    """Start a run in a process of its own, with `more` flags and environment variables."""
    flags = [*scenario.flags, *scenario.cadence, "--total-timesteps", str(scenario.timesteps), "--seed", "3"]
    return launch(["train", *flags, *more, "--output-dir", str(output), "--quiet"], marker, variables)


def resume(
    run_dir: Path,
    marker: Path | None = None,
    *,
    extended_to: int | None = None,
    more: Sequence[str] = (),
    variables: Mapping[str, str] = NOTHING,
) -> subprocess.Popen[str]:
    """Resume a run in a process of its own, with `more` flags and environment variables."""
    flags = [] if extended_to is None else ["--total-timesteps", str(extended_to)]
    return launch(["resume", str(run_dir), *flags, *more, "--quiet"], marker, variables)


def launch(
    arguments: list[str], marker: Path | None = None, variables: Mapping[str, str] = NOTHING
) -> subprocess.Popen[str]:
    """Start the command line in a process group of its own; with `marker`, one that notes what it does there."""
    paths = [str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | dict(variables) | {"PYTHONPATH": os.pathsep.join(paths)}
    program = ["-m", "rl_training.cli"]
    if marker is not None:
        environment["CHAOS_MARKER"] = str(marker)
        program = [str(ROOT / "scripts" / "chaos_child.py")]
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )


def finish(process: subprocess.Popen[str], output: Path | None = None) -> Path:
    """Wait for the end of a run and return its folder.

    A run that was killed in its last instant, when everything was written, is refused as finished; it is in `output`.
    """
    printed, errors = process.communicate(timeout=300)
    if process.returncode == 2 and output is not None and " is finished (" in errors:
        return find_run_dir(output)
    if process.returncode != 0:
        raise RuntimeError(f"a run ended with {process.returncode}: {errors.strip()}")
    return Path(printed.strip().splitlines()[-1])


def find_run_dir(output: Path) -> Path:
    """Return the one run in a folder."""
    (run_dir,) = output.glob("*__*")
    return run_dir


def compare(reference: Path, run_dir: Path, *, more_checkpoints: bool = False) -> list[str]:
    """Return what differs between two finished runs.

    With `more_checkpoints`, that one of them has written at a signal, its replay data is divided into other files: then
    the rows are compared, and not the files.
    """
    found = []
    final = read_pointer(reference / "checkpoints", "last")
    read = rows_and_files if more_checkpoints else hashes
    saved = [read(folder / "checkpoints", str(final)) for folder in (reference, run_dir)]
    for name in sorted(saved[0].keys() | saved[1].keys()):
        if saved[0].get(name) != saved[1].get(name):
            found.append(f"{run_dir.name}: {name}")
    for name in ("last", "best"):
        if read_pointer(reference / "checkpoints", name) != read_pointer(run_dir / "checkpoints", name):
            found.append(f"{run_dir.name}: {name}")
    for name, rows_of in (
        ("metrics.csv", csv_rows),
        ("metrics.jsonl", json_rows),
        ("evaluations.jsonl", json_rows),
    ):
        if rows_of(reference / name) != rows_of(run_dir / name):
            found.append(f"{run_dir.name}: {name}")
    return found


def hashes(checkpoints: Path, name: str) -> dict[str, str]:
    """Return the hash of every tensor file of a checkpoint, and of all replay data."""
    files = [*(checkpoints / name).glob("*.safetensors"), *(checkpoints / "replay").glob("*")]
    return {
        path.relative_to(checkpoints).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def rows_and_files(checkpoints: Path, name: str) -> dict[str, str]:
    """Return the hash of every tensor file of a checkpoint, and of every column of the replay rows that it needs."""
    found = {path: each for path, each in hashes(checkpoints, name).items() if not path.startswith("replay/")}
    manifest = json.loads((checkpoints / name / "manifest.json").read_text(encoding="utf-8"))
    for kind, entry in manifest["facts"].get("replay", {}).items():
        columns: dict[str, list[Any]] = {}
        for segment in entry["segments"]:
            for column, rows in load_file(checkpoints / "replay" / segment["name"]).items():
                columns.setdefault(column, []).append(rows)
        first = entry["total_rows"] - entry["kept_rows"] - entry["segments"][0]["start"]
        for column, parts in columns.items():
            kept = np.ascontiguousarray(np.concatenate(parts)[first:])
            found[f"replay {kind} {column}"] = f"{kept.dtype}{kept.shape}{hashlib.sha256(kept).hexdigest()}"
    return found


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows without wall-clock columns."""
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in WALL_CLOCK} for row in csv.DictReader(file)]


def json_rows(path: Path) -> list[dict[str, object]]:
    """Return the rows without wall-clock columns."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in WALL_CLOCK} for row in rows]


WHAT_IS_COMPARED = (
    "runs are killed with SIGKILL and resumed until they finish; everything in their final checkpoint (model, critics, "
    "targets, optimizer, random states, priorities, waiting n-step windows, noise), all replay data, the checkpoint "
    "pointers and all metric files (wall-clock columns apart) are compared with an uninterrupted run. The columns in "
    "the middle tell what the process was doing when it was killed."
)


def report(trials: list[Trial]) -> str:
    """Return the Markdown report."""
    return "\n".join(["# Chaos", "", f"Made by `make chaos`: {WHAT_IS_COMPARED}", "", *table(trials)])


def table(trials: list[Trial], columns: Mapping[str, str] = PLACES, what: str = "kills") -> list[str]:
    """Return the lines of a report that tell kills, by column, and differences."""
    differences = [difference for trial in trials for difference in trial.differences]
    everything = Trial(
        Scenario("all", ("all",)),
        [kill for trial in trials for kill in trial.kills],
        [aim for trial in trials for aim in trial.aims],
        differences,
    )
    lines = [
        f"| runs | {what} | {' | '.join(columns.values())} | differences |",
        f"|---|---|{'---|' * len(columns)}---|",
        *[_line(trial.scenario.title, trial, columns) for trial in trials],
        _line("**all**", everything, columns),
        "",
    ]
    if everything.aims:
        counts = Counter(everything.aims).most_common()
        lines += [
            f"What the kills were aimed at: {', '.join(f'{aim} {count}' for aim, count in counts)}.",
            "",
        ]
    return lines + [f"- {difference}" for difference in differences]


def _line(title: str, trial: Trial, columns: Mapping[str, str]) -> str:
    places = Counter(trial.kills)
    cells = [len(trial.kills), *(places[place] for place in columns), len(trial.differences)]
    return f"| {title} | {' | '.join(str(cell) for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
