"""`rl-training plan`: predict which settings make a run faster on several cores."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rl_training.cli.arguments import Option, arguments_of, parse_values, print_help, wants_help
from rl_training.cli.tables import json_text, print_table
from rl_training.cli.train import RUN_GROUPS
from rl_training.config import TrainConfig, load_config
from rl_training.core.cpu import usable_cores
from rl_training.core.errors import ConfigError, UserError, printable
from rl_training.envs.factory import import_factory
from rl_training.experiment.planning import ASSUMPTIONS, Plan, plans
from rl_training.experiment.throughput import Costs, Prediction

PROG = "rl-training plan"
NO_CONFIG = "plan needs a config as its first word: rl-training plan ppo/cartpole --cores 2"
MAX_CORES, MAX_COUNTS = 65_536, 100
SHOWN = 8
"""Predictions in the table, besides the default."""
CHANGES = (
    "env_groups, lag and learner_shards are part of the experiment; engine, num_samplers and num_learners do not "
    "change its results."
)


def core_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of cores in a list.

    >>> core_counts("8,64,512")
    (8, 64, 512)
    """
    words = text.split(",")
    if len(words) <= MAX_COUNTS and all(word.strip().isdecimal() and len(word) <= 9 for word in words):
        found = tuple(int(word) for word in words)
        if all(1 <= number <= MAX_CORES for number in found):
            return found
    raise ValueError(f"use a number from 1 to {MAX_CORES:,}, or a list such as 8,64,512")


@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """Measure a config for a few seconds and predict its speed on several cores, for several settings.

    Flags of settings override those of the config, as in rl-training train. Writes no files.

    rl-training plan ppo/half_cheetah --cores 2

    rl-training plan ppo/half_cheetah --cores 8,64,512 --num-envs 64
    """

    config: Annotated[str | None, Option(metavar="CONFIG", once=True)] = None
    """YAML file or preset, which may also be the first word."""
    cores: Annotated[tuple[int, ...] | None, Option(metavar="N", read=core_counts)] = None
    """Number of cores, by default those that this process may use; a list such as 8,64,512 prints one line each."""
    env_factory: Annotated[str | None, Option(metavar="MODULE:FUNCTION")] = None
    """A function that builds the environment, instead of the one in the config."""
    json: bool = False
    """Print JSON, with the measured costs."""


def run(argv: list[str]) -> int:
    """Measure, and print the predictions."""
    if wants_help(argv):
        print_help({"": arguments_of(PlanFlags)}, PROG, PlanFlags.__doc__ or "")
    flags, config = flags_and_config(argv)
    factory = None if flags.env_factory is None else import_factory(flags.env_factory)
    cores = flags.cores or (usable_cores(),)
    line = ProgressLine("measuring")
    try:
        found = plans(config, cores, factory=factory, progress=line.show)
    finally:
        line.clear()
    if flags.json:
        print(json_text([each.to_dict() for each in found] if len(found) > 1 else found[0].to_dict()))
        return 0
    print_costs(config, found[0].costs)
    if len(found) == 1:
        print_plan(found[0])
    else:
        print_scaling(found)
    return 0


def flags_and_config(argv: Sequence[str]) -> tuple[PlanFlags, TrainConfig]:
    """Return the flags of the command, and the config with the flags of settings on top."""
    own = arguments_of(PlanFlags)
    first = argv[0] if argv and not argv[0].startswith("-") else None
    words = argv[1:] if first else argv
    named = parse_values(own, words, PROG, rest=[]).get("config")
    if first and named not in (None, first):
        raise UserError(f"'{first}' and --config {named} both name a config; give one of them")
    name = first or named
    if name is None:
        raise UserError(NO_CONFIG)
    config = load_config(name)
    known = config.to_dict()
    settings = arguments_of(TrainConfig, [name for group in RUN_GROUPS.values() for name in group], known)
    settings += arguments_of(type(config.algorithm), values=known["algorithm"])
    values = parse_values([*own, *settings], words, PROG)
    flags = PlanFlags(**{each.name: values.pop(each.name) for each in own if each.name in values})
    try:
        return flags, config.with_overrides(**values)
    except ConfigError as error:
        raise ConfigError(error.problems, "settings") from None


class ProgressLine:
    """One line on a terminal's error stream that is overwritten; nothing elsewhere."""

    def __init__(self, what: str) -> None:
        self._what, self._shows = what, sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._shows:
            print(f"\r\x1b[K{self._what}: {printable(text)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def print_costs(config: TrainConfig, costs: Costs) -> None:
    """Print what was measured, per environment step."""
    steps = costs.num_steps / costs.timesteps
    parts = {
        "environment": costs.step.of(costs.num_envs) * steps,
        "acting": (costs.act.of(costs.num_envs) + costs.record.of(costs.num_envs)) * steps,
        "update": costs.update / costs.timesteps,
    }
    measured = ", ".join(f"{name} {seconds * 1e6:,.1f}" for name, seconds in parts.items())
    print(printable(f"{config.algo} on {config.env_id}, {config.num_envs:,} environment(s)"))
    print(f"microseconds per step with one thread: {measured}\n")


def print_plan(found: Plan) -> None:
    """Print the table for one number of cores."""
    shown = [each for each in found.ranked if each.layout != found.default.layout][:SHOWN]
    print_table(COLUMNS, [_row(each) for each in (found.default, *shown)], right=NUMBERS)
    print(f"\n{found.summary()}\n{CHANGES}\nAssumptions: {'; '.join(ASSUMPTIONS)}.")


COLUMNS = ("settings", "steps/s", "speed-up", "limited by")
NUMBERS = ("cores", "steps/s", "speed-up", "environments")


def _row(found: Prediction) -> list[str]:
    return [found.layout.text(), f"{found.steps_per_second:,.0f}", f"{found.speedup:.2f}", found.limit]


def print_scaling(found: Sequence[Plan]) -> None:
    """Print one line per number of cores, with these environments and with more of them."""
    rows = [[f"{each.cores:,}", f"{each.costs.num_envs:,}", *_row(each.best)] for each in found]
    print_table(("cores", "environments", *COLUMNS), rows, right=NUMBERS)
    print("\nWith as many times more environments and larger minibatches as there are cores:")
    rows = [[f"{each.cores:,}", f"{each.costs.num_envs * each.cores:,}", *_row(each.grown)] for each in found]
    print_table(("cores", "environments", *COLUMNS), rows, right=NUMBERS)
    print(f"\nSpeed-ups are over the default in one process. Assumptions: {'; '.join(ASSUMPTIONS)}.")
