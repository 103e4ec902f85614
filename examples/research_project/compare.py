"""Trains PPO and RobustPPO on several seeds and prints mean scores with 95% intervals.

Run it in this folder: `python compare.py`. The same command continues after an interruption.
"""

import argparse
from pathlib import Path

import numpy as np

from rl_training import load_runs
from rl_training.config import load_config
from rl_training.lab.jobs import jobs_of
from rl_training.lab.launcher import launch
from rl_training.lab.statistics import draw, estimate, improvement, mean

CONTENDERS = ("ppo.yaml", "robust_ppo.yaml")


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--seeds", type=int, default=5)
    flags.add_argument("--total-timesteps", type=int, default=40_000)
    flags.add_argument("--processes", type=int, default=2)
    flags.add_argument("--output-dir", type=Path, default=Path("runs"))
    wanted = flags.parse_args()

    configs = [
        (name, load_config(name).with_overrides(total_timesteps=wanted.total_timesteps))
        for name in CONTENDERS
    ]
    jobs = jobs_of(configs, range(1, wanted.seeds + 1))
    launched = launch(jobs, wanted.output_dir, processes=wanted.processes)
    for state in launched.having("failed"):
        raise SystemExit(f"{state.job} failed: {state.error}")

    fuel = {run.path.name: run.evaluations[-1]["info/fuel"] for run in load_runs(wanted.output_dir)}
    scores = {name: [] for name in CONTENDERS}
    burnt = {name: [] for name in CONTENDERS}
    for record in launched.records:
        scores[record["name"]].append(record["score"])
        burnt[record["name"]].append(fuel[record["run"]])

    print("| config | return, mean of the seeds | fuel per episode |")
    print("|---|---|---|")
    for name in CONTENDERS:
        print(f"| {name} | {with_interval(scores[name])} | {with_interval(burnt[name])} |")
    ours, theirs = ([np.array(scores[name])] for name in reversed(CONTENDERS))
    draws = [draw([wanted.seeds], seed=seed) for seed in (0, 1)]
    better = improvement(ours, theirs, *draws)
    low, high = better.ends
    print(f"\nP(a run of RobustPPO beats one of PPO) = {better.value:.2f} [{low:.2f}, {high:.2f}]")


def with_interval(values):
    """Return the mean and its 95% bootstrap interval over seeds as text."""
    found = estimate(mean, [np.array(values)], draw([len(values)]))
    low, high = found.ends
    return f"{found.value:.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    main()
