"""`rl-training zoo`: what presets there are, what they are, and running them on many seeds."""

import os
from collections.abc import Sequence
from pathlib import Path

from rl_training.cli.plain_flags import Flags, add_launch_flags
from rl_training.config.presets import (
    NEAR,
    Preset,
    known_as,
    preset_name,
    read_presets,
    zoo_names,
)
from rl_training.core.errors import UserError, did_you_mean, printable

HELP = """usage: rl-training zoo list [--env WORDS] [--algo NAME] [--family NAME]
       rl-training zoo show PRESET
       rl-training zoo run PRESET... [--seeds N] [--jobs N] [--output-dir DIR]

list    presets: environment, budget, and the scores that were measured
show    one preset: where its settings come from, what it reached, and the settings
run     train presets on many seeds, on the cores there are; the same command goes on after an interruption
"""


def run(argv: list[str]) -> int:
    """Choose one of the three."""
    actions = {"list": _list, "show": _show, "run": _run}
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0 if argv else 2
    if argv[0] not in actions:
        raise UserError(f"zoo has no '{argv[0]}'{did_you_mean(argv[0], actions)}; use list, show or run")
    return actions[argv[0]](argv[1:])


def _list(argv: list[str]) -> int:
    flags = Flags("rl-training zoo list", "List presets.")
    flags.add_argument("--env", metavar="WORDS", help="only environments whose name has this in it")
    flags.add_argument("--algo", metavar="NAME", help="only presets of this algorithm")
    flags.add_argument("--family", metavar="NAME", help="only this family of environments")
    wanted, found = flags.parse(argv), read_presets()
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
        raise UserError("no preset is like that; rl-training zoo list shows them all")
    _print_table(sorted(chosen, key=lambda preset: (preset.about.family, preset.task, preset.name)))
    return 0


def _refuse_unknown(flag: str, value: str | None, known: set[str]) -> None:
    if value is not None and value not in known:
        raise UserError(
            f"--{flag} '{value}' is not known{did_you_mean(value, known)}; use one of {', '.join(sorted(known))}"
        )


def _print_table(chosen: Sequence[Preset]) -> None:
    rows = [("preset", "environment", "steps", "score")]
    rows += [
        (preset.name, preset.task, f"{preset.total_timesteps:,}", preset.about.expected) for preset in chosen
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    family = None
    for row, preset in zip(rows, [None, *chosen], strict=True):
        if preset is not None and preset.about.family != family:
            family = preset.about.family
            print(f"\n{family}")
        print(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}")


def _show(argv: list[str]) -> int:
    flags = Flags("rl-training zoo show", "Show a preset.")
    flags.add_argument("preset", help="such as ppo/cartpole, or zoo/classic/ppo_cartpole.yaml")
    (preset,) = _chosen([flags.parse(argv).preset])
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
    print(
        f"Run it:\n  rl-training zoo run {preset.name} --seeds 5\n  rl-training train --config {preset.name}"
    )
    return 0


def _chosen(names: Sequence[str]) -> list[Preset]:
    """Return presets by their names under algorithm or family; one that is not there is answered with the nearest."""
    known = {preset.name: preset for preset in read_presets()}
    found = list[Preset]()
    for given in names:
        name = preset_name(given)
        if name not in known:
            near = did_you_mean(name, [*known, *zoo_names()], nearness=NEAR)
            what = "file or preset" if given.endswith((".yaml", ".yml")) else "preset"
            raise UserError(f"there is no {what} '{given}'{near}; rl-training zoo list shows them all")
        found.append(known[name])
    return found


def _run(argv: list[str]) -> int:
    flags = Flags("rl-training zoo run", "Train presets on many seeds.")
    flags.add_argument("presets", nargs="+", metavar="PRESET", help="such as ppo/cartpole, or a config file")
    add_launch_flags(flags, num_seeds=3, output_dir="runs/zoo")
    wanted = flags.parse(argv)
    names = [known_as(given) or _chosen([given])[0].name for given in wanted.presets]
    from rl_training.cli.launching import run_presets, typed  # heavy, and listing must be quick

    return run_presets(
        names,
        seeds=wanted.seeds,
        folder=Path(wanted.output_dir),
        processes=wanted.jobs,
        retry_failed=wanted.retry_failed,
        overrides={} if wanted.total_timesteps is None else {"total_timesteps": wanted.total_timesteps},
        again=typed("zoo", "run", *argv),
    )
