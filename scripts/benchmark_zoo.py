"""Lists the presets, or trains some of them on several seeds.

python scripts/benchmark_zoo.py                                     # what there is
python scripts/benchmark_zoo.py ppo/cartpole ppo/pendulum --seeds 1 2 3
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rl_training.config import load_config
from rl_training.experiment.console import make_console
from rl_training.experiment.runs import train

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Args:
    """What to run."""

    presets: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names such as ppo/cartpole; none lists them all."""
    seeds: tuple[int, ...] = (1,)
    """Seeds to train each preset with."""
    output_dir: str = "runs"
    """Folder that run folders are made in."""


def main(args: Args) -> None:
    """List or launch."""
    if not args.presets:
        for path in sorted(ROOT.glob("configs/*/*.yaml")):
            config = load_config(path)
            name = path.relative_to(ROOT / "configs").with_suffix("").as_posix()
            print(f"{name:<28} {config.env_id:<24} {config.total_timesteps:>12,} steps")
        return
    for preset in args.presets:
        for seed in args.seeds:
            config = load_config(preset).with_overrides(seed=seed, output_dir=args.output_dir)
            result = train(config, console=make_console(quiet=False))
            print(f"{preset} seed {seed}: {result.metrics['eval/mean_reward']:.1f}  {result.run_dir}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
