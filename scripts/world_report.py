"""The table of `make world`."""

from collections import Counter
from importlib import metadata
from typing import Any

from world_cell import CHECK
from world_identity import SUITE, THRESHOLD

from rl_training.algorithms import ALGORITHMS

PACKAGES = (
    "gymnasium", "mujoco", "stable-baselines3", "minigrid", "MinAtar", "highway-env", "popgym", "mo-gymnasium",
    "gymnasium-robotics", "dm_control", "Shimmy", "pettingzoo", "ale-py", "Box2D", "jax", "numpy", "torch",
)  # fmt: skip
INTRODUCTION = """# Against the world

`make world` trains every algorithm in other people's environments, each for at most {steps} steps with real
updates, saves it, loads it, compares what both predict, and evaluates the loaded one; `check-env` is asked about each
as well. *ok*: all of that. *no* with a number: refused before or while it ran, with the sentence of that number below.
*FAULT*: anything else. An empty cell is still to be tried. Cells: {counts}.

Versions: {versions}.
"""
NOISE = """## What others print

Lines that appeared while cells ran. None of them is from here.
"""


class Notes:
    """Sentences by number, each once."""

    def __init__(self) -> None:
        self.sentences: dict[str, int] = {}

    def mark(self, word: str, sentence: str) -> str:
        """Return the word with the sentence's number."""
        return f"{word} {self.sentences.setdefault(sentence, len(self.sentences) + 1)}"

    def __str__(self) -> str:
        return "\n".join(f"{number}. {sentence}" for sentence, number in self.sentences.items())


def report(cells: dict[str, dict[str, dict[str, Any]]], mujoco: str) -> str:
    """Return the whole page."""
    outcomes = Counter(cell["outcome"] for suite in cells.values() for cell in suite.values())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    notes = Notes()
    parts = [INTRODUCTION.format(steps="a few hundred", counts=counts, versions=versions)]
    parts += [_table(suite, found, notes) for suite, found in cells.items() if suite != SUITE]
    parts += ["## Sentences\n", f"{notes}\n", _learned(cells.get(SUITE, {})), mujoco]
    return "\n".join([*parts, _remarks(cells), _noise(cells)]).rstrip() + "\n"


def _table(suite: str, found: dict[str, dict[str, Any]], notes: Notes) -> str:
    columns = (CHECK, *ALGORITHMS)
    lines = [f"## {suite}\n", f"| environment | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name in dict.fromkeys(key.rpartition(" | ")[0] for key in found):
        cells = [found.get(f"{name} | {column}") for column in columns]
        marks = [_mark(cell, name, notes) if cell else "" for cell in cells]
        lines.append(f"| {name} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _mark(cell: dict[str, Any], name: str, notes: Notes) -> str:
    if cell["outcome"] == "ok":
        return "ok"
    word = "no" if cell["outcome"] == "refused" else "**FAULT**"
    return notes.mark(word, f"`{cell['said'].replace(name, '…').replace(name.replace(' ', '-'), '…')}`")


def _learned(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"## {SUITE}\n",
        f"With its budgets (500 to 4,000 steps) and settings, to its threshold: {THRESHOLD:g} of 100 as mean of 20 "
        "episodes. RecurrentPPO, which it has not, gets 3,000 steps and a learning rate of 1e-3, "
        "chosen on these seeds after 3e-4 had missed.\n",
        "| environment | algorithm | score | reached |",
        "|---|---|---|---|",
    ]
    for key, cell in found.items():
        name, _, algo = key.rpartition(" | ")
        reached = {"ok": "yes", "missed": "no"}.get(cell["outcome"], f"**FAULT** `{cell.get('said')}`")
        reached += f"; stable-baselines3 itself, same seed: {cell['peer']:.1f}" if "peer" in cell else ""
        lines.append(f"| {name} | {algo} | {cell.get('score', float('nan')):.1f} | {reached} |")
    return "\n".join(lines) + "\n"


def _remarks(cells: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Say which environments are not what exact resume rests on."""
    names: dict[str, list[str]] = {}
    for suite in cells.values():
        for key, cell in suite.items():
            for remark in cell.get("remarks", ()):
                kind = (
                    "built anew for every episode"
                    if "built anew" in remark
                    else "resumed runs may not be exact"
                )
                names.setdefault(kind, []).append(key.rpartition(" | ")[0])
    lines = [f"- {kind}: {', '.join(dict.fromkeys(found))}" for kind, found in names.items()]
    return "\n".join(["## Episodes that depend on more than their seed\n", *lines]) + "\n"


def _noise(cells: dict[str, dict[str, dict[str, Any]]]) -> str:
    found: dict[str, dict[str, None]] = {}
    for suite, inside in cells.items():
        for cell in inside.values():
            for line in cell.get("noise", ()):
                found.setdefault(line, {})[suite] = None
    return "\n".join([NOISE, *(f"- {', '.join(suites)}: `{line}`" for line, suites in found.items())]) + "\n"
