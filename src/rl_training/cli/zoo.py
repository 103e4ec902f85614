"""`rl-training zoo`: list presets, show one, and train them on many seeds. Imports nothing heavy to list them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rl_training.cli.arguments import Option, parse
from rl_training.cli.launch_flags import LaunchFlags, read_seeds
from rl_training.config.presets import NEAR, Preset, known_as, preset_name, read_presets, zoo_names
from rl_training.core.errors import UserError, did_you_mean, printable

HELP = """usage: rl-training zoo list [--env WORDS] [--algo NAME] [--family NAME]
       rl-training zoo show PRESET
       rl-training zoo run PRESET... [--seeds N] [--jobs N] [--output-dir DIR]

list    all presets: environment, budget and measured scores
show    one preset: its settings, where they come from, and its scores
run     train presets on many seeds, on all cores; the same command continues after an interruption
"""


@dataclass(frozen=True, kw_only=True)
class ZooList:
    """List presets."""

    env: Annotated[str | None, Option(metavar="WORDS")] = None
    """Only environments whose name contains this."""
    algo: Annotated[str | None, Option(metavar="NAME")] = None
    """Only presets of this algorithm."""
    family: Annotated[str | None, Option(metavar="NAME")] = None
    """Only this family of environments."""


@dataclass(frozen=True, kw_only=True)
class ZooShow:
    """Show a preset."""

    preset: Annotated[str, Option(positional=True, metavar="PRESET")]
    """A name such as ppo/cartpole, or a file such as zoo/classic/ppo_cartpole.yaml."""


@dataclass(frozen=True, kw_only=True)
class ZooRun(LaunchFlags):
    """Train presets on many seeds."""

    presets: Annotated[tuple[str, ...], Option(positional=True, metavar="PRESET")]
    """Names such as ppo/cartpole, or config files."""
    seeds: Annotated[range, Option(read=read_seeds, metavar="N|A-B")] = range(1, 4)
    """Train seeds 1 to N, or A to B."""
    output_dir: Annotated[str, Option(metavar="DIR")] = "runs/zoo"
    """Folder for all runs and results."""


def run(argv: list[str]) -> int:
    """Run one of the three actions."""
    actions = {"list": _list, "show": _show, "run": _run}
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0 if argv else 2
    if argv[0] not in actions:
        raise UserError(f"zoo has no '{argv[0]}'{did_you_mean(argv[0], actions)}; use list, show or run")
    return actions[argv[0]](argv[1:])


def _list(argv: list[str]) -> int:
    wanted, found = parse(ZooList, argv, "rl-training zoo list"), read_presets()
    _refuse_unknown("algo", wanted.algo, {preset.algo for preset in found})
    _refuse_unknown("family", wanted.family, {preset.about.family for preset in found})
    chosen = [
        preset
        for preset in found
        if (wanted.env or "").lower() in preset.task.lower()
        and wanted.algo in (None, preset.algo)
        and wanted.family in (None, preset.about.family)
    ]
    if not chosen:
        raise UserError("no preset matches; rl-training zoo list shows all presets")
    _print_table(sorted(chosen, key=lambda preset: (preset.about.family, preset.task, preset.name)))
    return 0


def _refuse_unknown(flag: str, value: str | None, known: set[str]) -> None:
    if value is not None and value not in known:
        raise UserError(
            f"--{flag} '{value}' is not known{did_you_mean(value, known)}; use one of {', '.join(sorted(known))}"
        )


def _print_table(chosen: Sequence[Preset]) -> None:
    rows = [("preset", "environment", "steps", "score")]
    rows += [(each.name, each.task, _length(each), each.about.expected) for each in chosen]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    family = None
    for row, preset in zip(rows, [None, *chosen], strict=True):
        if preset is not None and preset.about.family != family:
            family = preset.about.family
            print(f"\n{family}")
        print(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}")


def _length(preset: Preset) -> str:
    return f"{preset.budget:,}" + (" updates" if preset.unit == "updates" else "")


def _show(argv: list[str]) -> int:
    preset = _chosen(parse(ZooShow, argv, "rl-training zoo show").preset)
    about = preset.about
    print(f"{preset.name}: {about.summary}\n")
    for label, text in (
        ("settings from", about.source),
        ("scores", about.expected),
        ("needs", about.needs),
        ("file", os.path.relpath(preset.path)),
    ):
        if text:
            print(f"{label:<14} {printable(text)}")
    settings = preset.path.read_text(encoding="utf-8")
    print(f"\n{settings[settings.index('algo:') :]}")
    name = preset.name
    print(f"Run it:\n  rl-training zoo run {name} --seeds 5\n  rl-training train --config {name}")
    return 0


def _chosen(given: str) -> Preset:
    """Return a preset by name; raise an error with the nearest name if it does not exist."""
    known, name = {preset.name: preset for preset in read_presets()}, preset_name(given)
    if name not in known:
        near = did_you_mean(name, [*known, *zoo_names()], nearness=NEAR)
        what = "file or preset" if given.endswith((".yaml", ".yml")) else "preset"
        raise UserError(f"there is no {what} '{given}'{near or '; rl-training zoo list shows all presets'}")
    return known[name]


def _run(argv: list[str]) -> int:
    wanted = parse(ZooRun, argv, "rl-training zoo run")
    names = [known_as(given) or _chosen(given).name for given in wanted.presets]
    from rl_training.cli.launching import run_presets, typed  # heavy, and listing must be quick

    return run_presets(
        names,
        seeds=wanted.seeds,
        folder=Path(wanted.output_dir),
        launching=wanted.launching,
        overrides=wanted.overrides,
        again=typed("zoo", "run", *argv),
    )
