"""Flags of commands that must answer at once: the standard library's parser, with our sentences."""

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from rl_training.cli.sentences import more, needs, needs_value, one_too_many, unknown_flag, wrong_value
from rl_training.config.fields import whole_number
from rl_training.core.errors import UserError
from rl_training.lab.manifests import SEEDS, seed_range


class Flags(argparse.ArgumentParser):
    """Says what is wrong in one sentence, and exits with 2 like every command."""

    def __init__(self, prog: str, description: str = "", **options: Any) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Turn the parser's complaint into ours."""
        if missing := re.match(r"the following arguments are required: (\w+)", message):
            raise UserError(needs(f"a {missing[1].lower()}", self.prog))
        if alone := re.match(r"argument (\S+): expected (one|at least one) argument", message):
            raise UserError(needs_value(alone[1], self.prog))
        if value := re.match(r"argument (\S+): ignored explicit argument (.*)", message):
            raise UserError(wrong_value(value[1], f"it takes no value, and {value[2]} is one", self.prog))
        if wrong := re.match(r"argument (\S+): (.*)", message):
            raise UserError(wrong_value(wrong[1], wrong[2], self.prog))
        raise UserError(f"{message}{more(self.prog)}")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the flags; the nearest known one is named for one that is not."""
        unknown = self._unknown(argv)
        if unknown is not None:  # the cause of what else the parser misses
            raise UserError(unknown)
        found, rest = self.parse_known_args(argv)
        if rest:
            raise UserError(one_too_many(rest[0], self.prog))
        return found

    def _unknown(self, argv: Sequence[str]) -> str | None:
        """Return the sentence about the first flag that there is not."""
        known = [name for action in self._actions for name in action.option_strings]
        words = list(argv)
        for word in words[: words.index("--") if "--" in words else None]:
            flag = word.partition("=")[0]
            if re.match(r"-[-a-zA-Z]", flag) and flag not in known:
                return unknown_flag(flag, known, self.prog)
        return None


def count(text: str) -> int:
    """Return a number of 1 or more, which may be written as 1e5."""
    number = (
        int(text) if re.fullmatch(r"\d{1,30}", text) else whole_number(text)
    )  # Python reads no endless ones
    if number is None or number < 1:
        raise argparse.ArgumentTypeError(f"'{text[:30]}' is not a number of 1 or more")
    return number


def seeds(text: str) -> range:
    """Return seeds that are written as how many there are, or as the first and the last."""
    found = seed_range(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text[:30]}' is no number of seeds; {SEEDS}")
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
