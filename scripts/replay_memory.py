"""Memory per transition of a full replay buffer of stacked images: `make replay-memory`.

Each buffer is filled with random frames in a separate process, beyond its size, with batches drawn in between; the
growth of resident memory (VmRSS, so Linux only) is divided by the transitions kept. Ours keeps each frame once;
stable-baselines3's buffer, with its default settings, keeps an observation and its successor whole. Writes
`results/replay_memory.md`, and fails if a million transitions take more than is allowed.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
STACK, SIZE, NUM_ENVS = 4, 84, 8
LIMIT_OF_A_MILLION, LIMIT_OF_RATIO = 7.4e9, 1 / 7


@dataclass(frozen=True)
class Case:
    """One buffer to be measured."""

    name: str
    peer: bool = False
    rows: int = 100_000
    episode: int = 250
    prioritized: bool = False
    n_step: int = 1
    counts: bool = True
    """Whether the limits apply to it."""


CASES = {
    "uniform": Case("ours, uniform"),
    "prioritized": Case("ours, prioritized", prioritized=True),
    "n_step": Case("ours, prioritized, n-step 3", prioritized=True, n_step=3),
    "short": Case("ours, uniform, episodes of 4 steps", episode=4, counts=False),
    "shortest": Case("ours, uniform, episodes of 1 step", episode=1, counts=False),
    "peer": Case("stable-baselines3 ReplayBuffer", peer=True, rows=20_000, counts=False),
}  # fmt: skip


def played(case: Case, rows: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield steps of all environments until there are `rows`: old, new and next observations, and ends."""
    rng = np.random.default_rng(0)

    def frames() -> Any:
        return rng.integers(0, 256, (NUM_ENVS, 1, SIZE, SIZE), np.uint8)

    # environments end at different times
    left = 1 + np.arange(NUM_ENVS) * case.episode // NUM_ENVS
    shown = np.repeat(frames(), STACK, axis=1)
    for _ in range(rows // NUM_ENVS):
        left -= 1
        ended = left == 0
        after = np.concatenate([shown[:, 1:], frames()], axis=1)
        following = after.copy()
        if ended.any():
            following[ended] = np.repeat(frames(), STACK, axis=1)[ended]
            left[ended] = case.episode
        yield shown, after, following, ended
        shown = following


def fill_ours(case: Case, rows: int, steps: int) -> Any:
    """Return our buffer of `rows` after recording `steps` transitions."""
    import torch

    from rl_training.core.types import StepArrays
    from rl_training.data.replay_buffer import ReplayBuffer

    buffer = ReplayBuffer(
        capacity=rows,
        num_envs=NUM_ENVS,
        obs_shape=(STACK, SIZE, SIZE),
        obs_dtype=np.uint8,
        action_shape=(),
        action_dtype=np.int64,
        n_step=case.n_step,
        prioritized=case.prioritized,
        frame_stack=STACK,
    )
    nothing, valid, rng = np.zeros(NUM_ENVS, bool), np.ones(NUM_ENVS, bool), np.random.default_rng(1)
    for number, (shown, after, following, ended) in enumerate(played(case, steps)):
        buffer.record_action(shown, np.zeros(NUM_ENVS, np.int64))
        buffer.record_outcome(
            StepArrays(
                obs=following,
                final_obs=after,
                reward=np.ones(NUM_ENVS),
                terminated=ended,
                truncated=nothing,
                ended=ended,
                valid=valid,
                cut=nothing,
                any_cut=False,
                any_ended=bool(ended.any()),
                num_valid=NUM_ENVS,
            )
        )
        if number % 10 == 9:
            drawn = buffer.sample(32, rng)
            buffer.update_priorities(drawn.indices, torch.rand(32))
    if len(buffer) != min(rows, steps):
        raise RuntimeError(f"{len(buffer)} of {rows} rows are left")
    return buffer


def fill_peer(case: Case, rows: int, steps: int) -> Any:
    """Return the buffer of stable-baselines3, its capacity counted in transitions too."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    images = spaces.Box(0, 255, (STACK, SIZE, SIZE), np.uint8)
    buffer = ReplayBuffer(rows, images, spaces.Discrete(4), device="cpu", n_envs=NUM_ENVS)
    actions, rewards = np.zeros((NUM_ENVS, 1), np.int64), np.ones(NUM_ENVS)
    for number, (shown, after, _, ended) in enumerate(played(case, steps)):
        buffer.add(shown, after, actions, rewards, ended, [{}] * NUM_ENVS)
        if number % 10 == 9:
            buffer.sample(32)
    return buffer


def resident() -> int:
    """Return the bytes of memory this process has now."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell VmRSS")


def measure(case: Case) -> float:
    """Return the bytes per transition that a buffer adds to this process, after 2.2 times its size."""
    fill = fill_peer if case.peer else fill_ours
    # exclude what is loaded once
    fill(case, 512, 1024)
    before = resident()
    buffer = fill(case, case.rows, case.rows * 11 // 5)
    grown = resident() - before
    del buffer
    return grown / case.rows


def report(found: dict[str, float]) -> str:
    """Return the table."""
    lines = [
        "# Memory of a replay buffer of stacked images", "",
        f"Generated by `make replay-memory`. Stacks of {STACK} frames of {SIZE}x{SIZE} bytes, {NUM_ENVS} "
        "environments, episodes of 250 steps unless stated otherwise. Measured: growth of resident memory after "
        "recording 2.2 times the buffer size and drawing batches.", "",
        "| buffer | rows measured | bytes per transition | a million take | relative to stable-baselines3 |",
        "|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for key, bytes_each in found.items():
        part = f"1/{found['peer'] / bytes_each:.2f}"
        lines.append(
            f"| {CASES[key].name} | {CASES[key].rows:,} | {bytes_each:,.0f} | {bytes_each / 1000:.2f} GB | {part} |"
        )
    lines += [
        "", f"A frame has {SIZE * SIZE:,} bytes. An episode of L transitions has L + 1 frames, so episodes of one step "
        "need twice as many frames.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure all buffers and write the report, or measure one in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        print(measure(CASES[flags.child]))
        return 0
    found = {}
    for key in CASES:
        done = subprocess.run(
            [sys.executable, __file__, "--child", key], stdout=subprocess.PIPE, text=True, check=True
        )
        found[key] = float(done.stdout.split()[-1])
        print(f"{CASES[key].name}: {found[key]:,.0f} bytes per transition", flush=True)
    (ROOT / "results" / "replay_memory.md").write_text(report(found), encoding="utf-8")
    limit = min(LIMIT_OF_A_MILLION / 1e6, LIMIT_OF_RATIO * found["peer"])
    too_large = [key for key, case in CASES.items() if case.counts and found[key] > limit]
    if too_large:
        print(f"more than {limit:,.0f} bytes per transition: {', '.join(too_large)}")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
