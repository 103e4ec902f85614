"""Flags of commands that must answer at once: the standard library's parser, with our sentences."""

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from rl_training.core.checked_config import whole_number
from rl_training.core.errors import UserError, did_you_mean
from rl_training.core.manifests import SEEDS, seed_range


class Flags(argparse.ArgumentParser):
    """Says what is wrong in one sentence, and exits with 2 like every command."""

    def __init__(self, prog: str, description: str = "", **options: Any) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Turn the parser's complaint into ours."""
        raise UserError(f"{message}; {self.prog} --help lists all flags")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the flags; the nearest known one is named for one that is not."""
        found, rest = self.parse_known_args(argv)
        if rest:
            known = [name for action in self._actions for name in action.option_strings]
            unknown = rest[0].partition("=")[0]
            if unknown.startswith("-"):
                raise UserError(
                    f"unknown flag '{unknown}'{did_you_mean(unknown, known) or f'; {self.prog} --help lists all flags'}"
                )
            self.error(f"'{rest[0]}' is one word too many")
        return found


def count(text: str) -> int:
    """Return a number of 1 or more, which may be written as 1e5."""
    number = int(text) if re.fullmatch(r"\d+", text) else whole_number(text)
    if number is None or number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 1 or more")
    return number


def seeds(text: str) -> range:
    """Return seeds that are written as how many there are, or as the first and the last."""
    found = seed_range(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seeds; {SEEDS}")
    return found


def add_launch_flags(flags: Flags, *, num_seeds: int | None, output_dir: str) -> None:
    """Add what every command has that trains many runs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usual = "" if num_seeds is None else f"; {num_seeds} by default"
    flags.add_argument(
        "--seeds",
        type=seeds,
        default=num_seeds and range(1, num_seeds + 1),
        metavar="N|A-B",
        help=f"train seeds 1 to N, or A to B{usual}",
    )
    flags.add_argument(
        "--jobs",
        type=count,
        default=cores,
        metavar="N",
        help=f"runs at a time; the cores there are ({cores}) by default",
    )
    flags.add_argument(
        "--output-dir",
        default=output_dir,
        metavar="DIR",
        help=f"folder for all of it; {output_dir} by default",
    )
    flags.add_argument("--total-timesteps", type=count, metavar="N", help="another budget than the presets'")
    flags.add_argument("--retry-failed", action="store_true", help="try runs again that have failed")
