"""Peak memory of SAC and TD3 beside stable-baselines3: part of `make bench`.

Each training is a process of its own, which tells the most memory it ever had (VmHWM, so Linux only). Log rows are
rare, so that whatever grows from update to update shows. Writes `results/bench_memory.md`; `--before PATH` adds the
same runs with the source folder of another version of rl_training.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS, WARM_UP, BUFFER = 3_000, 100, 100_000
ALGORITHMS = ("sac", "td3")
SETTINGS = {"learning_rate": 3e-4, "buffer_size": BUFFER, "learning_starts": WARM_UP, "batch_size": 256}


def train_ours(algo: str, steps: int) -> None:
    """Two layers of 256, batches of 256, one update per step, and one log row at the end."""
    from rl_training.config import TrainConfig
    from rl_training.experiment.runs import train

    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=algo,
            env_id="HalfCheetah-v5",
            total_timesteps=steps,
            num_envs=1,
            log_every_timesteps=10**9,
            eval_every_timesteps=0,
            checkpoint_every_timesteps=0,
            num_eval_episodes=1,
            output_dir=folder,
        )
        train(config.with_overrides(hidden_sizes=(256, 256), **SETTINGS))


def train_peer(algo: str, steps: int) -> None:
    """The same in stable-baselines3, which evaluates nothing and writes no files."""
    import gymnasium
    import stable_baselines3
    import torch
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    env = Monitor(gymnasium.make("HalfCheetah-v5"))
    kind = {"sac": stable_baselines3.SAC, "td3": stable_baselines3.TD3}[algo]
    layers = {"net_arch": [256, 256]}
    model = kind("MlpPolicy", env, policy_kwargs=layers, seed=1, device="cpu", train_freq=1, **SETTINGS)
    model.learn(steps, log_interval=10**9)


def peak() -> float:
    """Return the most memory this process has had, in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not tell VmHWM")


def measured(who: str, algo: str, steps: int, source: Path) -> float:
    """Return the peak of a process of its own that trains."""
    command = [sys.executable, __file__, "--child", who, "--algo", algo, "--steps", str(steps)]
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure and write the report, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="source folder of another version, to compare with")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--child", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--algo", choices=ALGORITHMS, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        warnings.filterwarnings("ignore")
        {"ours": train_ours, "peer": train_peer}[flags.child](flags.algo, flags.steps)
        print(peak())
        return
    cases = {"ours": ("ours", ROOT / "src"), "stable-baselines3": ("peer", ROOT / "src")}
    if flags.before:
        cases["ours, before"] = ("ours", flags.before)
    peaks: dict[str, dict[str, float]] = {}
    for algo in ALGORITHMS:
        peaks[algo] = {}
        for name, (who, source) in cases.items():
            peaks[algo][name] = measured(who, algo, flags.steps, source)
            print(f"{algo.upper()}, {name}: {peaks[algo][name]:,.0f} MiB", flush=True)
    if flags.steps >= STEPS:
        from rl_training.experiment.files import write_text

        write_text(ROOT / "results" / "bench_memory.md", report(peaks, list(cases)))


def report(peaks: dict[str, dict[str, float]], cases: list[str]) -> str:
    """Return the Markdown report."""
    from rl_training.experiment.metadata import machine, versions

    hardware = machine()
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    lines = [
        "# Peak memory of SAC and TD3",
        "",
        f"Made by `make bench`: HalfCheetah-v5, layers 256 x 256, batch 256, {STEPS - WARM_UP:,} updates, one log row "
        f"at the end, room for {BUFFER:,} transitions. MiB of a process of its own, all libraries included; ours "
        "writes two checkpoints, metric files and a learning curve and plays an evaluation meanwhile.",
        "",
        "| algorithm | " + " | ".join(cases) + " |",
        "|---|" + "---|" * len(cases),
        *[
            f"| {algo.upper()} | " + " | ".join(f"{by_case[name]:,.0f}" for name in cases) + " |"
            for algo, by_case in peaks.items()
        ],
        "",
        f"Machine: {hardware['processor']}, {hardware['cpu_count']} cores. {used}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
