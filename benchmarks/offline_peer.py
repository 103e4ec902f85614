"""TD3+BC, IQL and discrete CQL beside d3rlpy on the same dataset files: `make offline-peer DATA=folder`.

Same transitions, settings, seeds and number of updates; every side's policy is evaluated here, in the same environment
with the same seeds. Writes `results/offline_peer.json` after every training, and goes on where it was interrupted; then
`results/offline_peer.md`, with the difference of mean returns and its 95% interval. d3rlpy drops the last transition of
a truncated episode; ours bootstraps from its last observation. Where d3rlpy's discrete CQL copies its target network
every 200 updates, ours follows with tau 0.005.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.datasets.dataset import Dataset
from rl_training.datasets.opening import open_dataset
from rl_training.lab.statistics import interval

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SETTINGS: dict[str, dict[str, Any]] = {
    "td3_bc": {"learning_rate": 3e-4, "alpha": 2.5, "tau": 0.005},
    "iql": {
        "learning_rate": 3e-4, "expectile": 0.7, "inverse_temperature": 3.0, "max_weight": 100.0, "tau": 0.005,
    },
    "cql": {"learning_rate": 3e-4, "cql_alpha": 1.0, "tau": 0.005},
}  # fmt: skip
ITS_OWN: dict[str, dict[str, Any]] = {"cql": {"alpha": 1.0, "target_update_interval": 200}}
"""Settings that d3rlpy calls otherwise. Its discrete CQL copies the target network every 1 / tau updates."""
SHARED = {"hidden_sizes": (256, 256), "batch_size": 256, "gamma": 0.99}
SIDES = ("ours", "d3rlpy")
SCALE = {"pendulum-medium": 597.5, "cartpole-mixed": 169.0}
"""Return of the behaviour minus that of random actions, from `results/datasets.md`."""


def columns_of(data: Dataset, file: Path) -> None:
    """Write the transitions in policy units as columns that d3rlpy reads."""
    steps = np.arange(data.num_steps)
    ended = np.zeros(len(steps), np.float32)
    ended[data.ends - 1] = 1.0
    terminated = np.asarray(data.terminated, np.float32)
    discrete = isinstance(data.action_space, gymnasium.spaces.Discrete)
    actions = np.asarray(data.actions)
    np.savez(
        file,
        observations=data.observations(data.obs_rows(steps)),
        actions=actions[:, None] if discrete else actions,
        rewards=np.asarray(data.rewards, np.float32)[:, None],
        terminals=terminated,
        timeouts=ended * (1.0 - terminated),
        action_size=int(data.action_space.n) if discrete else actions.shape[1],  # type: ignore[attr-defined]
    )


def mean_return(data: Dataset, act: Callable[[Any], Any], num_episodes: int) -> float:
    """Return the mean return of episodes whose seeds are the same for every side; `act` is in policy units."""
    env = gymnasium.make(data.recorded_in.env_id, max_episode_steps=data.recorded_in.max_episode_steps)
    adapter, total = ActionAdapter(data.action_space), 0.0
    for seed in range(num_episodes):
        obs, _ = env.reset(seed=10_000 + seed)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(adapter.to_env(act(obs[None]))[0])
            total, over = total + float(reward), terminated or truncated
    return total / num_episodes


def ours(algo: str, path: str, data: Dataset, seed: int, flags: argparse.Namespace) -> dict[str, float]:
    """Train our side; return CPU seconds per update and the mean return."""
    with tempfile.TemporaryDirectory() as folder:
        model = ALGORITHMS[algo](
            dataset=path, seed=seed, output_dir=folder, num_threads=1, held_out_fraction=0.0,
            eval_every_timesteps=0, num_eval_episodes=1, checkpoint_every_timesteps=0, log_every_timesteps=10**6,
            **SHARED, **SETTINGS[algo],
        )  # fmt: skip
        started = time.process_time()
        model.learn(total_updates=flags.updates, progress=False)
        seconds = (time.process_time() - started) / flags.updates
        policy = model.policy
        found = mean_return(
            data,
            lambda obs: policy.act(obs, (), deterministic=True, rng=np.random.default_rng(0))[0],
            flags.episodes,
        )
    return {"seconds_per_update": seconds, "return": found}


def d3rlpy(algo: str, path: str, data: Dataset, seed: int, flags: argparse.Namespace) -> dict[str, float]:
    """Train d3rlpy's side in its own virtual environment; return the same."""
    with tempfile.TemporaryDirectory() as folder:
        columns, policy = Path(folder) / "columns.npz", Path(folder) / "policy.pt"
        columns_of(data, columns)
        command = [flags.d3rlpy, str(HERE / "peer_runners" / "d3rlpy_offline.py"), "--algo", algo]
        command += ["--columns", str(columns), "--policy", str(policy), "--updates", str(flags.updates)]
        command += [
            "--seed",
            str(seed),
            "--settings",
            json.dumps({**SHARED, **SETTINGS[algo], **ITS_OWN.get(algo, {})}),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        module = torch.jit.load(str(policy))
        with torch.no_grad():
            found = mean_return(
                data, lambda obs: module(torch.as_tensor(obs, dtype=torch.float32)).numpy(), flags.episodes
            )
    return {**json.loads(done.stdout.splitlines()[-1]), "return": found}


def difference(one: list[float], other: list[float]) -> tuple[float, float, float]:
    """Return the difference of the means of two sides, with its interval by resampling seeds on each side."""
    rng, first, second = np.random.default_rng(0), np.array(one), np.array(other)
    drawn = [
        values[rng.integers(0, len(values), (10_000, len(values)))].mean(1) for values in (first, second)
    ]
    low, high = interval(drawn[0] - drawn[1])
    return float(first.mean() - second.mean()), float(low), float(high)


def report(found: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        "# Learning from data beside d3rlpy 2.8.1",
        "",
        "Mean evaluation returns over seeds; difference ours minus theirs, with its 95% interval over seeds, and the",
        "interval's width as a share of the distance between the behaviour and random actions. CPU time per update of",
        "one thread, in milliseconds, with everything that `fit` and `learn` do: medians of three rounds of 2,000",
        "updates in which the sides take turns, on a machine that did nothing else (`--timing`).",
        "",
        "| algorithm | dataset | updates | seeds | ours | d3rlpy | difference | 95% interval | width | ms ours "
        "| ms d3rlpy |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    timed, learned = (
        {k: v for k, v in found.items() if ("|timing|" in k) is wanted} for wanted in (True, False)
    )
    for key in sorted({name.rpartition("|")[0].rpartition("|")[0] for name in learned}):
        rows = {
            side: [v for k, v in sorted(learned.items()) if k.startswith(f"{key}|{side}|")] for side in SIDES
        }
        if not all(rows.values()):
            continue
        returns = [[row["return"] for row in rows[side]] for side in SIDES]
        start = f"{key.rpartition('|')[0]}|timing"
        cost = [
            1e3
            * float(
                np.median(
                    [v["seconds_per_update"] for k, v in timed.items() if k.startswith(f"{start}|{side}|")]
                    or [np.nan]
                )
            )
            for side in SIDES
        ]
        middle, low, high = difference(*returns)
        algo, data, updates = key.split("|")
        width = f"{(high - low) / SCALE[data]:.2f}" if data in SCALE else ""
        lines.append(
            f"| {algo} | {data} | {updates} | {len(returns[0])} | {np.mean(returns[0]):,.1f} | "
            f"{np.mean(returns[1]):,.1f} | {middle:,.1f} | {low:,.1f} to {high:,.1f} | {width} | "
            f"{cost[0]:.2f} | {cost[1]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", nargs="+", required=True, metavar="ALGO=FOLDER", help="such as iql=data/hopper"
    )
    parser.add_argument("--updates", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "offline_peer.json")
    parser.add_argument("--d3rlpy", default=str(ROOT / ".venv-d3rlpy" / "bin" / "python"))
    parser.add_argument("--timing", action="store_true", help="measure CPU time only, in three rounds")
    parser.add_argument("--quick", action="store_true", help="200 updates, 2 seeds, 2 episodes")
    flags = parser.parse_args()
    if flags.quick:
        flags.updates, flags.seeds, flags.episodes = 200, 2, 2
    if flags.timing:
        flags.updates, flags.seeds, flags.episodes = 2_000, 3, 1
    found: dict[str, Any] = json.loads(flags.results.read_text()) if flags.results.exists() else {}
    for seed in range(flags.seeds):
        for each in flags.data:
            algo, _, path = each.partition("=")
            data = open_dataset(path)
            for side, measure in zip(SIDES, (ours, d3rlpy), strict=True):
                kind = "timing" if flags.timing else flags.updates
                key = f"{algo}|{Path(path).name}|{kind}|{side}|{seed}"
                if key not in found:
                    found[key] = measure(algo, path, data, seed, flags)
                    print(key, found[key], flush=True)
                    flags.results.write_text(json.dumps(found, indent=1))
    flags.results.with_suffix(".md").write_text(report(found))


if __name__ == "__main__":
    main()
