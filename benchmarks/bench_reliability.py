"""What exact resume costs: checkpoints as part of training time, seeded resets and action logs as part of collection.

`make bench-ours` writes `results/bench_reliability.md`.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.config import TrainConfig, load_config
from rl_training.core.types import Progress
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.building import build_parts
from rl_training.experiment.files import write_text
from rl_training.experiment.start import train
from rl_training.runtime.sampler import LocalSampler

ROOT = Path(__file__).resolve().parents[1]
TRAININGS = 5


def checkpoint_share(config: TrainConfig) -> tuple[float, float, float]:
    """Return (part of the training time, seconds and bytes per checkpoint) of a run with one every 10,000 steps."""
    run_dir = train(config).run_dir
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    seconds, elapsed = last["time/checkpoint_seconds"], last["time/time_elapsed"]
    written = 1 + config.total_timesteps // config.checkpoint_every_timesteps
    return seconds / elapsed, seconds / written, last["time/checkpoint_bytes"] / written


class Unseeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does nothing, so that only seeds and logs are measured and not the call."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Pass on."""
        return self.env.step(action)


class Training:
    """A training run taken apart, so that its collection can be timed."""

    def __init__(self, config: TrainConfig, env: SyncVectorEnv) -> None:
        self.stepper = VectorStepper(env)
        parts = build_parts(config, self.stepper.spec)
        self.learner, self.source = parts.learner, parts.source
        self.progress = Progress(total_timesteps=config.total_timesteps)
        self.collector = LocalSampler(self.stepper, parts.actor.explorer, parts.source)
        self.stepper.reset()

    def iterate(self) -> float:
        """Collect and learn from one rollout; return the seconds of collecting."""
        started = time.perf_counter()
        counted = self.collector.collect(self.source.steps_per_collect, self.progress)
        seconds = time.perf_counter() - started
        self.progress = self.progress.advanced(timesteps=counted)
        for batch in self.source.batches(self.progress):
            self.learner.update(batch, self.progress)
        return seconds


def collection_ratio(config: TrainConfig) -> float:
    """Return the time to collect with streams over that without, in two whole trainings that alternate."""
    plain = SyncVectorEnv(
        [lambda: Unseeded(gymnasium.make("CartPole-v1"))] * config.num_envs,
        copy=False,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    seeded = make_vector_env(config)
    assert isinstance(seeded, SyncVectorEnv)
    without, with_streams = Training(config, plain), Training(config, seeded)
    pairs = []
    while not with_streams.progress.done:
        pairs.append((with_streams.iterate(), without.iterate()))
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def main() -> None:
    """Measure and write the report."""
    torch.set_num_threads(1)
    base = load_config(ROOT / "configs/ppo/cartpole.yaml")
    with tempfile.TemporaryDirectory() as folder:
        config = base.with_overrides(
            output_dir=folder, eval_every_timesteps=0, checkpoint_every_timesteps=10_000, num_eval_episodes=1
        )
        shares = [checkpoint_share(config) for _ in range(3)]
    ratios = sorted(collection_ratio(base.with_overrides(seed=seed)) for seed in range(1, TRAININGS + 1))
    share, seconds, size = (statistics.median(values) for values in zip(*shares, strict=True))
    text = "\n".join(
        [
            "# What exact resume costs",
            "",
            "Made by `make bench-ours`, PPO on CartPole-v1 with `configs/ppo/cartpole.yaml`, one thread.",
            "",
            "| what | cost |",
            "|---|---|",
            f"| a checkpoint every 10,000 steps | {share:.1%} of training time, {1000 * seconds:.0f} ms and "
            f"{size / 1000:.0f} kB each (median of {len(shares)} runs) |",
            f"| seeded resets and action logs | {statistics.median(ratios) - 1:.1%} of collection time (median of "
            f"{TRAININGS} trainings, {ratios[0] - 1:.1%} to {ratios[-1] - 1:.1%}: episodes, and so resets, differ) |",
            "",
        ]
    )
    write_text(ROOT / "results" / "bench_reliability.md", text)
    print(text)


if __name__ == "__main__":
    main()
