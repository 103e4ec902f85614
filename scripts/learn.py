"""Learning gates: train presets on several seeds and check that they reach their thresholds.

`make learn` trains what is missing and updates `results/learning_gates.md`, its data and its plots. A finished
run is kept as long as its settings stay the same; delete `results/learning_gates.json` to start over, or name gates:
`python scripts/learn.py cartpole pendulum`.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.cli.job_board import PlainBoard
from rl_training.config import TrainConfig, load_config
from rl_training.experiment.files import write_json, write_text
from rl_training.experiment.logs.metadata import versions
from rl_training.experiment.logs.rows import read_rows
from rl_training.experiment.start import evaluate_checkpoint
from rl_training.lab.jobs import Job, JobFolder, JobState
from rl_training.lab.launcher import launch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
RUNS = ROOT / "runs" / "learn"
DATA = RESULTS / "learning_gates.json"
PEER = RESULTS / "pixels_peer.json"


@dataclass(frozen=True)
class Gate:
    """A preset must reach `threshold` on `required` of its seeds; three fresh seeds are one retry (4 of 6)."""

    name: str
    preset: str
    threshold: float
    seeds: tuple[int, ...] = (1, 2, 3)
    retry_seeds: tuple[int, ...] = (4, 5, 6)
    required: int = 2
    episodes: int = 20
    best_of_last: int = 0
    """Score the best of the last N evaluations during training; 0 scores the final policy."""
    final_threshold: float | None = None
    """With `best_of_last`, the final policy must reach this as well."""
    overrides: tuple[tuple[str, Any], ...] = ()
    """Settings on top of the preset's."""
    peer: str = ""
    """A curve of stable-baselines3 with the same network, frames and settings: its last score is enough as well."""
    control: bool = False
    """A control run without images or memory, which must miss the threshold on every seed."""
    note: str = ""
    """What a reader must know to judge the scores, such as how the settings were chosen."""

    @property
    def config(self) -> TrainConfig:
        """The preset's config with the overrides."""
        return load_config(ROOT / self.preset).with_overrides(**dict(self.overrides))

    @property
    def settings(self) -> str:
        """The preset and what was changed of it, as text."""
        changes = ", ".join(f"{name} {value}" for name, value in self.overrides)
        return f"`{self.preset}`" + (f" with {changes}" if changes else "")

    @property
    def measure(self) -> str:
        """A description of the score."""
        if not self.best_of_last:
            return "final"
        final = "" if self.final_threshold is None else f", final ≥ {self.final_threshold:g}"
        return f"best of last {self.best_of_last}{final}"

    @property
    def peer_score(self) -> float | None:
        """What the peer reached, the mean of its last 100 games of training; None if there is no such curve."""
        curves = json.loads(PEER.read_text()) if self.peer and PEER.exists() else {}
        return curves[self.peer]["curves"]["1"][-1][1] if self.peer in curves else None

    @property
    def bar(self) -> float:
        """The lower of the threshold and the peer's score."""
        return self.threshold if self.peer_score is None else min(self.threshold, self.peer_score)

    @property
    def wanted(self) -> str:
        """The threshold, and the peer's score if that is the lower one, as text."""
        return f"{self.threshold:g}" + (
            f", or the peer's {self.bar:.4g}" if self.bar < self.threshold else ""
        )

    def reached(self, result: dict[str, Any]) -> bool:
        """Return whether the result of one seed is good enough."""
        final = self.final_threshold is None or result["final"] >= self.final_threshold
        return bool(final and result["score"] >= self.bar)


BLIND = ("image_scale", 1e-12)
"""Makes every image black, so that nothing can be learned from it."""


def blind(gate: Gate) -> Gate:
    """Return the control of an image gate."""
    overrides = (*gate.overrides, BLIND)
    if gate.config.preprocessing == "atari":  # small black images are faster
        overrides = (*overrides, ("image_size", 8))
    return replace(
        gate,
        name=f"{gate.name}_blind",
        overrides=overrides,
        seeds=(1,),
        retry_seeds=(),
        control=True,
        note="",
    )


SEEING = (
    Gate("ppo_catch", "configs/ppo/catch.yaml", 0.9, episodes=100),
    Gate("a2c_catch", "configs/a2c/catch.yaml", 0.9, episodes=100),
    Gate("dqn_catch", "configs/dqn/catch.yaml", 0.9, episodes=100),
    Gate("sac_catch", "configs/sac/catch.yaml", 0.9, episodes=100),
    Gate("minatar_breakout", "configs/ppo/minatar_breakout.yaml", 7, best_of_last=3),
    Gate("minigrid_empty", "configs/ppo/minigrid_empty.yaml", 0.93, episodes=50),
    Gate(
        "pong_42",
        "configs/ppo/pong_42.yaml",
        -15,
        seeds=(1,),
        retry_seeds=(),
        required=1,
        episodes=10,
        peer="ppo_pong_42",
        note="With 5e-4 and a clipping range of 0.1, both falling to 0, seed 1 ended at -18.7, and at -18.9 in the "
        "last 100 games of training, where stable-baselines3 with these settings had -17.8. The approximate KL "
        "divergence was about 0.001 or less, so 1e-3 and 0.2, constant, were written down and run once, with seed 1.",
    ),
)
CORRIDOR, NO_VELOCITY = (
    "configs/recurrent_ppo/corridor.yaml",
    "configs/recurrent_ppo/cartpole_no_velocity.yaml",
)
REMEMBERING = (
    Gate("corridor_gru", CORRIDOR, 0.9, episodes=100),
    Gate("corridor_lstm", CORRIDOR, 0.9, episodes=100, overrides=(("core", "lstm"),)),
    Gate("no_velocity_lstm", NO_VELOCITY, 400, best_of_last=3),
    Gate(
        "no_velocity_gru",
        NO_VELOCITY,
        400,
        best_of_last=3,
        overrides=(("core", "gru"), ("learning_rate", 5e-4)),
        note="With the preset's 1e-3 seed 1 was solved at 20,000 steps and fell back to 204; 5e-4 and 3e-4 stayed at "
        "500 on seed 11, and 5e-4 reached 480 or more on seed 12.",
    ),
    Gate(
        "catch_memory",
        "configs/recurrent_ppo/catch.yaml",
        0.9,
        episodes=100,
        note="With a constant learning rate seeds 1 and 3 ended at 1 and 0.14; seed 3 had been at 1 before. A falling "
        "one ended at 1 on seeds 11 and 12 and was then run on the gate's seeds.",
    ),
    Gate("popgym", "configs/recurrent_ppo/popgym_position_only_cartpole.yaml", 0.8, best_of_last=3),
    Gate(
        "corridor_ppo", "scripts/controls/ppo_corridor.yaml", 0.5, episodes=100, retry_seeds=(), control=True
    ),
    Gate(
        "no_velocity_ppo",
        "scripts/controls/ppo_cartpole_no_velocity.yaml",
        150,
        best_of_last=3,
        retry_seeds=(),
        control=True,
    ),
    Gate(
        "catch_memory_ppo",
        "scripts/controls/ppo_catch_hidden.yaml",
        0.5,
        episodes=100,
        retry_seeds=(),
        control=True,
    ),
    Gate("popgym_ppo", "scripts/controls/ppo_popgym.yaml", 0.4, best_of_last=3, retry_seeds=(), control=True),
)
"""The last four have no memory, and must miss even a lower threshold."""
GATES = (
    *SEEING,
    *(blind(gate) for gate in SEEING),
    *REMEMBERING,
    Gate("ppo_catch_nature", "configs/ppo/catch.yaml", 0.9, episodes=100, overrides=(("encoder", "nature"),)),
    Gate(
        "ppo_catch_impala",
        "configs/ppo/catch.yaml",
        0.9,
        episodes=100,
        overrides=(
            ("encoder", "impala"),
            ("learning_rate", 3e-4),
            ("learning_rate_schedule", "linear"),
            ("total_timesteps", 30_000),
        ),
        note="The preset's 1e-3 was too large for the residual blocks: seed 1 stayed at -0.3. 3e-4 reached 1 on seed "
        "11 after 20,000 steps and was then run on the gate's seeds.",
    ),
    Gate(
        "cartpole",
        "configs/ppo/cartpole.yaml",
        475,
        seeds=(11, 12, 13, 14, 15),  # fresh: seeds 1 to 7 were used to choose the learning rate
        retry_seeds=(),
        required=5,
        note="RL Zoo's learning rate of 1e-3 missed this gate: 4 of 5 on seeds 1 to 5 (seed 5: 422), 6 of 7 with seeds "
        "6 and 7. Four settings were then compared on seeds 1 to 7: that one; 64 steps and 10 epochs, 5 of 6; 5e-4, 6 "
        "of 6; 7e-4 with gae_lambda 0.9, 2 of 2. 5e-4 was kept and is reported on seeds 11 to 15, which took no part "
        "in the choice and were run once.",
    ),
    Gate("acrobot", "configs/ppo/acrobot.yaml", -100),
    Gate("inverted_pendulum", "configs/ppo/inverted_pendulum.yaml", 900),
    Gate("pendulum", "configs/ppo/pendulum.yaml", -400, episodes=50),
    Gate("frozen_lake", "configs/ppo/frozen_lake.yaml", 0.65, episodes=100),
    Gate("a2c_cartpole", "configs/a2c/cartpole.yaml", 450, best_of_last=5, final_threshold=300),
    Gate("a2c_acrobot", "configs/a2c/acrobot.yaml", -110),
    Gate("dqn_acrobot", "configs/dqn/acrobot.yaml", -100),
    Gate("dqn_cartpole", "configs/dqn/cartpole.yaml", 450, best_of_last=3),
    Gate("dqn_double", "configs/dqn/acrobot_double.yaml", -100),
    Gate("dqn_dueling", "configs/dqn/acrobot_dueling.yaml", -100),
    Gate("dqn_c51", "configs/dqn/cartpole_c51.yaml", 400),
    Gate("dqn_quantile", "configs/dqn/acrobot_quantile.yaml", -100),
    Gate("dqn_rainbow", "configs/dqn/cartpole_rainbow.yaml", 450, best_of_last=3),
    Gate("dqn_n_step", "configs/dqn/cartpole.yaml", 450, best_of_last=3, overrides=(("n_step", 3),)),
    Gate(
        "dqn_prioritized",
        "configs/dqn/acrobot.yaml",
        -100,
        overrides=(("prioritized", True),),
        note="CartPole with RL Zoo's settings was tried first and missed 450 on all of seeds 1 to 3 (104, 101, 214): "
        "seed 1 was solved at 25k steps and lost again. The same with priority_alpha 0 on seed 1 ended at 500, so "
        "the priorities seem not to suit these settings.",
    ),
    Gate(
        "dqn_noisy",
        "configs/dqn/cartpole_noisy.yaml",
        450,
        best_of_last=3,
        note="RL Zoo's settings with `noisy` were tried first. CartPole: stopped at 30k steps of seed 1 with "
        "evaluations of 90 to 248. Acrobot: -500 and -104 on seeds 1 and 2, and -500 after 60k steps of seed 11 "
        "with 10k random steps at the start: noise alone rarely finds Acrobot's goal. The settings of "
        "`cartpole_rainbow` without its other switches then reached 500 on each of seeds 11 to 13 and were run "
        "on the gate's seeds afterwards.",
    ),
    Gate("sac_pendulum", "configs/sac/pendulum.yaml", -250, episodes=50),
    Gate("sac_sde_mountain_car", "configs/sac/mountain_car_continuous.yaml", 90, retry_seeds=(), required=3),
    Gate("sac_double_pendulum", "configs/sac/inverted_double_pendulum.yaml", 9000, best_of_last=3),
    Gate("td3_pendulum", "configs/td3/pendulum.yaml", -250, episodes=50),
    Gate("td3_reacher", "configs/td3/reacher.yaml", -6.0, episodes=50),
    Gate("td3_double_pendulum", "configs/td3/inverted_double_pendulum.yaml", 9000, best_of_last=5),
    Gate("ddpg_pendulum", "configs/td3/ddpg_pendulum.yaml", -300, episodes=50),
    Gate("ddpg_reacher", "configs/td3/ddpg_reacher.yaml", -6.5, episodes=50),
)


def main(names: list[str]) -> int:
    """Run the gates, write the table, and return 1 if one of them fails."""
    gates = [gate for gate in GATES if not names or gate.name in names]
    results = run_gates(gates, DATA)
    write_table(results)
    return report(gates, results)


def run_gates(gates: Sequence[Gate], data: Path) -> dict[str, Any]:
    """Train what has no result in the file `data` yet, and the retries that are due; return all results."""
    results: dict[str, Any] = json.loads(data.read_text()) if data.exists() else {}
    run_missing(results, [(gate, seed) for gate in gates for seed in gate.seeds], data)
    retried = [gate for gate in gates if not passes(gate, results) and gate.retry_seeds]
    run_missing(results, [(gate, seed) for gate in retried for seed in gate.retry_seeds], data)
    return results


def report(gates: Sequence[Gate], results: dict[str, Any]) -> int:
    """Print the verdicts; return 1 if a gate fails."""
    for gate in gates:
        print(f"{gate.name:<20} {'passed' if passes(gate, results) else 'FAILED'}  {scores(gate, results)}")
    return 0 if all(passes(gate, results) for gate in gates) else 1


def run_missing(results: dict[str, Any], jobs: list[tuple[Gate, int]], data: Path) -> None:
    """Train what has no result yet, two processes at a time, and save after each; interrupted runs are resumed."""
    missing = [(gate, seed) for gate, seed in jobs if key(gate, seed) not in results]
    if not missing:
        return
    board = Saving(results, {job_of(*each).key: each for each in missing}, data)
    done = launch([job_of(*each) for each in missing], RUNS, processes=2, retry_failed=True, board=board)
    if done.stopped_by is not None:
        sys.exit(128 + done.stopped_by)
    if done.having("failed"):
        raise RuntimeError("; ".join(f"{state.job} failed: {state.error}" for state in done.having("failed")))


class Saving(PlainBoard):
    """Evaluates a run as soon as it is finished, and saves the result."""

    def __init__(
        self, results: dict[str, Any], waiting: dict[str, tuple[Gate, int]], data: Path = DATA
    ) -> None:
        super().__init__()
        self.results, self.waiting, self.data = results, waiting, data

    def event(self, state: JobState) -> None:
        """Print the event, and store the result of a finished run."""
        super().event(state)
        run_dir = JobFolder(RUNS).run_dir(state.job)
        if state.status == "finished" and run_dir is not None:
            gate, seed = self.waiting[state.job.key]
            self.results[key(gate, seed)] = result = result_of(gate, run_dir)
            self.data.parent.mkdir(exist_ok=True)
            write_json(self.data, self.results)
            JobFolder(RUNS).release(state.job)
            print(f"{gate.name} seed {seed}: {result['score']:.1f} in {result['seconds']:.0f} s", flush=True)


def job_of(gate: Gate, seed: int) -> Job:
    """Return the run of one seed."""
    return Job(gate.name, gate.config.with_overrides(seed=seed))


def result_of(gate: Gate, run_dir: Path) -> dict[str, Any]:
    """Return the result of a finished run."""
    final = evaluate_checkpoint(run_dir, num_episodes=gate.episodes)["mean_reward"]
    rows = read_rows(run_dir / "metrics.jsonl")
    curve = [[row["timesteps"], row["mean_reward"]] for row in read_rows(run_dir / "evaluations.jsonl")]
    score = max(value for _, value in curve[-gate.best_of_last :]) if gate.best_of_last else final
    return {
        "score": score,
        "final": final,
        "seconds": rows[-1]["time/time_elapsed"],
        "curve": curve,
        "versions": versions(),
    } | lags_of(rows)


def lags_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean and the largest lag of a run, in updates, and the rollouts it dropped; {} without lag."""
    measured = [row for row in rows if row.get("rollout/policy_lag_mean") is not None]
    if not measured:
        return {}
    return {
        "lag_mean": sum(row["rollout/policy_lag_mean"] for row in measured) / len(measured),
        "lag_max": max(row["rollout/policy_lag_max"] for row in measured),
        "dropped": max(row.get("rollout/dropped", 0.0) for row in measured),
    }


def key(gate: Gate, seed: int) -> str:
    """Name a result by everything that determines it."""
    return f"{gate.name}/{gate.config.fingerprint()}/seed{seed}"


def finished(gate: Gate, results: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over the seeds of a gate that have a result."""
    for seed in (*gate.seeds, *gate.retry_seeds):
        if key(gate, seed) in results:
            yield seed, results[key(gate, seed)]


def scores(gate: Gate, results: dict[str, Any]) -> str:
    """Return all scores of a gate as text."""
    return ", ".join(f"{result['score']:.4g}" for _, result in finished(gate, results))


def scored(gate: Gate, result: dict[str, Any]) -> str:
    """Return one seed's score, and what the final policy reached where that is not the score."""
    final = f" (final {result['final']:.4g})" if gate.best_of_last else ""
    return f"{result['score']:.4g}{final}"


def passes(gate: Gate, results: dict[str, Any]) -> bool:
    """Apply the rule: enough of the first seeds, or 4 of 6 after the retry."""
    reached = [gate.reached(result) for _, result in finished(gate, results)]
    if gate.control:
        return bool(reached) and not any(reached)
    first = len(gate.seeds)
    return sum(reached[:first]) >= gate.required or (
        len(reached) > first and sum(reached) >= 2 * gate.required
    )


def verdict(gate: Gate, results: dict[str, Any]) -> str:
    """Return passed, failed, or that seeds are missing which may still decide it, as text."""
    if passes(gate, results):
        return "passed"
    return "unfinished" if len(list(finished(gate, results))) < len(gate.seeds) else "**failed**"


def write_table(results: dict[str, Any]) -> None:
    """Write the Markdown table and one curve picture per gate."""
    lines = [
        "# Learning benchmarks",
        "",
        "Generated by `make learn`. The score is the mean return of a deterministic evaluation on episodes that "
        "do not occur in training: of the final policy, or of the best of the last evaluations during training "
        "where the table says so. Every seed is listed. A gate that fails may be retried once with three new "
        "seeds and then needs 4 of 6. The configuration hash covers the settings that affect the result and "
        "differ from their defaults. Image gates have a control run with black images, memory gates a control "
        "run without memory; controls must miss the threshold. Atari and MinAtar policies are evaluated with "
        "sampled actions. The peer is stable-baselines3 with the same network, frames and settings "
        "([details](pixels.md)). Curves: one line per seed, threshold dashed.",
        "",
        "| gate | environment | steps | score | threshold | rule | by seed | verdict | seconds per seed | config |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    pictures: list[str] = []
    notes = [""]
    waiting: list[Gate] = []
    for gate in GATES:
        runs = list(finished(gate, results))
        if not runs:
            waiting.append(gate)
            continue
        config = gate.config
        listed = ", ".join(f"{seed}: {scored(gate, result)}" for seed, result in runs)
        seconds = sum(result["seconds"] for _, result in runs) / len(runs)
        rule = "none" if gate.control else f"{gate.required} of {len(gate.seeds)}"
        lines.append(
            f"| {gate.name} | {config.env_id} | {config.total_timesteps:,} | {gate.measure} | {gate.wanted} | "
            f"{rule} | {listed} | {verdict(gate, results)} | {seconds:.0f} | {gate.settings} ({config.fingerprint()}) |"
        )
        if gate.note:
            notes += [f"{gate.name}: {gate.note}", ""]
        plot(gate, runs)
        pictures.append(f"![{gate.name}](curves/{gate.name}.png)")
    if waiting:
        names = ", ".join(gate.name for gate in waiting)
        notes += [f"Not run with their present settings: {names}.", ""]
        notes += [line for gate in waiting if gate.note for line in (f"{gate.name}: {gate.note}", "")]
    used = next(iter(results.values()))["versions"] if results else {}
    lines += [
        *notes,
        "Versions: " + ", ".join(f"{name} {number}" for name, number in used.items()) + ".",
        "",
        *pictures,
        "",
    ]
    write_text(RESULTS / "learning_gates.md", "\n".join(lines))


def plot(gate: Gate, runs: list[tuple[int, dict[str, Any]]]) -> None:
    """Draw the evaluation curves of all seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), dpi=80)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for seed, result in runs:
        axes.plot(*zip(*result["curve"], strict=True), label=f"seed {seed}")
    axes.axhline(gate.bar, color="gray", linestyle="--", linewidth=1)
    axes.set(
        xlabel="environment steps", ylabel="evaluation return", title=f"{gate.name}: {gate.config.env_id}"
    )
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    (RESULTS / "curves").mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "curves" / f"{gate.name}.png")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
