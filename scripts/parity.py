"""Learning curves side by side with stable-baselines3: same environment, settings and budget, several seeds.

`make parity` trains what is missing and writes `results/parity.md`. The peer's curves are stored in
`results/parity_peer.json` and are not trained again unless a setting changes; ours are trained again whenever the
configuration changes. The verdict: our mean area under the evaluation curve is at least theirs minus one pooled
standard deviation.
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rl_training.cli.job_board import PlainBoard
from rl_training.config import TrainConfig
from rl_training.experiment.files import write_json, write_text
from rl_training.lab.jobs import Job, JobFolder, JobState
from rl_training.lab.launcher import launch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
RUNS = ROOT / "runs" / "parity"
ENV_ID = "HalfCheetah-v5"
STEPS, EVAL_EVERY, EVAL_EPISODES = 30_000, 2_000, 5
SEEDS = (1, 2, 3)
SHARED = {"buffer_size": 1_000_000, "learning_starts": 10_000, "batch_size": 256, "tau": 0.005, "gamma": 0.99}
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": SHARED | {"learning_rate": 3e-4, "hidden_sizes": [256, 256]},
    "td3": SHARED | {"learning_rate": 1e-3, "hidden_sizes": [400, 300], "action_noise_sigma": 0.1},
}
"""RL Zoo's settings for MuJoCo: one update per environment step after 10,000 uniformly random ones."""


def main() -> int:
    """Train what is missing, write the table, and return 1 if a verdict is negative."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("both", "peer", "ours"), default="both")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    for side in ("peer", "ours"):
        if args.side in ("both", side):
            train_missing(side, args.workers)
    ours, peer = read("ours"), read("peer")
    if not all(key(algo, seed) in curves for curves in (ours, peer) for algo in SETTINGS for seed in SEEDS):
        print("some curves are still missing; run again to train them")
        return 1
    verdicts = write_report(ours, peer)
    return 0 if all(verdicts) else 1


def train_missing(side: str, workers: int) -> None:
    """Train every seed of `side` that has no curve yet, and save after each."""
    curves = read(side)
    jobs = [(algo, seed) for seed in SEEDS for algo in SETTINGS if key(algo, seed) not in curves]
    if not jobs:
        return
    if side == "ours":
        done = launch(
            [job_of(*job) for job in jobs], RUNS, processes=workers, retry_failed=True, board=Saving()
        )
        if done.stopped_by is not None:
            sys.exit(128 + done.stopped_by)
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for (algo, seed), curve in zip(jobs, pool.map(train_peer, *zip(*jobs, strict=True)), strict=True):
            save(side, algo, seed, curve)


def save(side: str, algo: str, seed: int, curve: dict[str, Any]) -> None:
    """Add a curve to the file of its side."""
    path(side).parent.mkdir(exist_ok=True)
    write_json(path(side), read(side) | {key(algo, seed): curve})
    print(f"{side} {algo} seed {seed}: last return {curve['returns'][-1]:.0f}", flush=True)


class Saving(PlainBoard):
    """Stores our curves as soon as they are complete; interrupted runs are resumed."""

    def event(self, state: JobState) -> None:
        """Print it, and save the curve of a finished run."""
        super().event(state)
        if state.status == "finished" and state.record is not None:
            points = state.record["evaluations"]
            curve = {
                "steps": [point["step"] for point in points],
                "returns": [point["mean_reward"] for point in points],
                "seconds": state.record["seconds"],
                "version": state.record["versions"]["rl_training"],
            }
            save("ours", state.job.config.algo, state.job.config.seed, curve)
            JobFolder(RUNS).release(state.job)


def job_of(algo: str, seed: int) -> Job:
    """Return our run of one seed."""
    return Job(f"{algo} on {ENV_ID}", our_config(algo, seed))


def train_peer(algo: str, seed: int) -> dict[str, Any]:
    """Return the evaluation curve of stable-baselines3."""
    import gymnasium
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.noise import NormalActionNoise

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    settings = dict(SETTINGS[algo])
    hidden, sigma = settings.pop("hidden_sizes"), settings.pop("action_noise_sigma", None)
    env = Monitor(gymnasium.make(ENV_ID))
    if sigma is not None:
        size = env.action_space.shape[0]  # type: ignore[index]
        settings["action_noise"] = NormalActionNoise([0.0] * size, [sigma] * size)
    steps: list[int] = []
    returns: list[float] = []
    evaluation = Monitor(gymnasium.make(ENV_ID))
    evaluation.reset(seed=seed + 1000)

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % EVAL_EVERY == 0:
                mean, _ = evaluate_policy(self.model, evaluation, EVAL_EPISODES, deterministic=True)
                steps.append(self.num_timesteps)
                returns.append(float(mean))
            return True

    model = getattr(sb3, algo.upper())(
        "MlpPolicy", env, policy_kwargs={"net_arch": hidden}, seed=seed, device="cpu", **settings
    )
    started = time.perf_counter()
    model.learn(STEPS, callback=Evaluate())
    seconds = time.perf_counter() - started
    return {"steps": steps, "returns": returns, "seconds": seconds, "version": sb3.__version__}


def our_config(algo: str, seed: int) -> TrainConfig:
    """Return the same settings in our names."""
    config = TrainConfig(algo=algo, env_id=ENV_ID, seed=seed, num_envs=1, total_timesteps=STEPS)
    return config.with_overrides(
        **SETTINGS[algo],
        eval_every_timesteps=EVAL_EVERY,
        num_eval_episodes=EVAL_EPISODES,
        checkpoint_every_timesteps=5_000,
    )


def key(algo: str, seed: int) -> str:
    """Name a curve by everything that determines it."""
    settings = json.dumps(SETTINGS[algo], sort_keys=True)
    return f"{algo} {ENV_ID} {STEPS} steps, seed {seed}, {settings}"


def path(side: str) -> Path:
    """Return the file that holds the curves of one side."""
    return RESULTS / f"parity_{side}.json"


def read(side: str) -> dict[str, Any]:
    """Return the stored curves of one side."""
    return json.loads(path(side).read_text()) if path(side).exists() else {}


def area(curve: dict[str, Any]) -> float:
    """Return the mean evaluation return over the run: the area under the curve per step."""
    return statistics.fmean(curve["returns"])


def write_report(ours: dict[str, Any], peer: dict[str, Any]) -> list[bool]:
    """Write the table and the pictures; return one verdict per algorithm."""
    version = peer[key("sac", SEEDS[0])]["version"]
    lines = [
        "# Parity with stable-baselines3",
        "",
        f"Generated by `make parity`: {ENV_ID}, {STEPS:,} steps, seeds {SEEDS[0]} to {SEEDS[-1]}, RL Zoo's settings "
        f"in both libraries; {EVAL_EPISODES} deterministic episodes every {EVAL_EVERY:,} steps. The area is the mean "
        "of a run's evaluations. The rule: our mean area is at least theirs minus one pooled standard deviation over "
        "seeds. Three seeds can show that something is broken, but they do not rank the libraries.",
        "",
        "| algorithm | side | area by seed | mean | last return by seed | seconds by seed |",
        "|---|---|---|---|---|---|",
    ]
    verdicts, sentences = [], []
    for algo in SETTINGS:
        sides = {
            "rl_training": [ours[key(algo, seed)] for seed in SEEDS],
            f"stable-baselines3 {version}": [peer[key(algo, seed)] for seed in SEEDS],
        }
        areas = [[area(curve) for curve in curves] for curves in sides.values()]
        for (name, curves), found in zip(sides.items(), areas, strict=True):
            last = ", ".join(f"{curve['returns'][-1]:.0f}" for curve in curves)
            seconds = ", ".join(f"{curve['seconds']:.0f}" for curve in curves)
            listed = ", ".join(f"{number:.0f}" for number in found)
            mean = statistics.fmean(found)
            lines.append(f"| {algo} | {name} | {listed} | {mean:.0f} | {last} | {seconds} |")
        deviation = statistics.fmean([statistics.variance(found) for found in areas]) ** 0.5
        difference = statistics.fmean(areas[0]) - statistics.fmean(areas[1])
        verdicts.append(difference >= -deviation)
        verdict = "passed" if verdicts[-1] else "**failed**"
        sentences.append(
            f"{algo}: difference {difference:+.0f}, pooled standard deviation {deviation:.0f}: {verdict}."
        )
        print(sentences[-1])
        plot(algo, sides)
    pictures = [f"![{algo}](curves/parity_{algo}.png)" for algo in SETTINGS]
    text = "\n".join([*lines, "", *sentences, "", *pictures, ""])
    write_text(RESULTS / "parity.md", text)
    return verdicts


def plot(algo: str, sides: dict[str, list[dict[str, Any]]]) -> None:
    """Draw all curves of both sides."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), dpi=80)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (name, curves), color in zip(sides.items(), ("tab:blue", "tab:orange"), strict=True):
        for index, curve in enumerate(curves):
            axes.plot(curve["steps"], curve["returns"], color=color, label=None if index else name)
    axes.set(xlabel="environment steps", ylabel="evaluation return", title=f"{algo}: {ENV_ID}")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    (RESULTS / "curves").mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "curves" / f"parity_{algo}.png")


if __name__ == "__main__":
    sys.exit(main())
