"""Learning curves side by side with stable-baselines3: same environment, settings and budget, several seeds.

`make parity` trains what is missing and writes `results/parity.md`. The peer's curves are stored in
`results/parity_peer.json` and are not trained again unless a setting changes; ours are trained again whenever the
configuration changes. The verdict: our mean area under the evaluation curve is at least theirs minus one pooled
standard deviation.
"""

import argparse
import json
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
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
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for (algo, seed), curve in zip(
            jobs, pool.map({"peer": train_peer, "ours": train_ours}[side], *zip(*jobs, strict=True))
            if jobs else [], strict=True,
        ):  # fmt: skip
            curves = read(side) | {key(algo, seed): curve}
            path(side).parent.mkdir(exist_ok=True)
            path(side).write_text(json.dumps(curves, indent=1) + "\n")
            print(f"{side} {algo} seed {seed}: last return {curve['returns'][-1]:.0f}", flush=True)


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


def train_ours(algo: str, seed: int) -> dict[str, Any]:
    """Return our evaluation curve, from a run resumed if it was interrupted."""
    raise NotImplementedError


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


def write_report(ours: dict[str, Any], peer: dict[str, Any]) -> list[bool]:
    """Write the table and the pictures; return one verdict per algorithm."""
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main())
