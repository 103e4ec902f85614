"""List the presets, or train some of them on several seeds, like `rl-training zoo`.

python scripts/benchmark_zoo.py                                     # list presets
python scripts/benchmark_zoo.py ppo/cartpole ppo/pendulum --seeds 1 2 3 --jobs 2
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rl_training.cli import main as command
from rl_training.cli.arguments import Option, parse
from rl_training.cli.launching import run_presets
from rl_training.config import load_config
from rl_training.core.errors import RunFault, UserError


@dataclass(frozen=True, kw_only=True)
class Args:
    """List the presets, or train some of them on several seeds; the same as `rl-training zoo`."""

    presets: Annotated[tuple[str, ...], Option(positional=True, metavar="PRESET")] = ()
    """Names such as ppo/cartpole, or config files; none lists all presets."""
    seeds: tuple[int, ...] = (1,)
    """Seeds to train each preset with."""
    jobs: int = 1
    """Runs at a time."""
    output_dir: str = "runs/zoo"
    """Folder for all runs and results."""


def main(argv: list[str]) -> int:
    """List or launch; the exit codes are those of the command line."""
    try:
        args = parse(Args, argv, "benchmark_zoo.py")
        if not args.presets:
            return command(["zoo", "list"])
        for preset in args.presets:
            load_config(preset)  # all are checked before the first is trained
        again = shlex.join(["python", *sys.argv])
        return run_presets(
            args.presets,
            seeds=args.seeds,
            folder=Path(args.output_dir),
            launching={"processes": args.jobs, "retry_failed": True},
            overrides={},
            again=again,
            retry=again,
        )
    except (UserError, RunFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
