"""Writes what pytest reported in JUnit files as a page: the slowest tests, or those with extra packages or clusters.

`make durations`, `make test-extras` and `make cluster` call it.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import tyro

from rl_training.experiment.files import write_text

EXTRA_PACKAGES = (
    "minigrid",
    "minatar",
    "popgym",
    "pandas",
    "rliable",
    "stable-baselines3",
    "sb3-contrib",
    "envpool",
)
CLUSTER_PACKAGES = ("ray", "torch", "gymnasium")
SLOWEST = 50


@dataclass(frozen=True)
class Case:
    """One test of a JUnit file."""

    name: str
    folder: str
    seconds: float
    outcome: str
    """passed, failed, or skipped with the reason."""


def read_cases(path: Path) -> list[Case]:
    """Return the tests of a JUnit file; a class name such as `tests.unit.core.test_state` gives the folder."""
    cases = []
    for element in ElementTree.parse(path).getroot().iter("testcase"):
        parts = element.get("classname", "").split(".")
        module = next((i for i, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
        file = "/".join(parts[: module + 1]) + ".py"
        name = "::".join([file, *parts[module + 1 :], element.get("name", "")])
        outcome = "passed"
        for kind in ("failure", "error", "skipped"):
            found = element.find(kind)
            if found is not None:
                outcome = f"skipped: {found.get('message')}" if kind == "skipped" else "failed"
        cases.append(Case(name, "/".join(parts[:module]), float(element.get("time", 0)), outcome))
    return cases


def durations(cases: Sequence[Case]) -> str:
    """Return `results/test_durations.md`."""
    total = sum(case.seconds for case in cases)
    seconds, counts = Counter[str](), Counter[str]()
    for case in cases:
        seconds[case.folder] += case.seconds
        counts[case.folder] += 1
    lines = [
        "# Test durations",
        "",
        f"`make durations`: {len(cases)} tests, {total:.0f} s in total (setup and teardown included; two tests run at "
        "the same time).",
        "",
        "| folder | tests | seconds |",
        "|---|---:|---:|",
        *(f"| `{folder}` | {counts[folder]} | {spent:.1f} |" for folder, spent in seconds.most_common()),
        "",
        f"## The slowest {SLOWEST}",
        "",
        "| test | seconds |",
        "|---|---:|",
    ]
    slowest = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    lines += [f"| `{case.name.replace('|', '/')}` | {case.seconds:.1f} |" for case in slowest]
    return "\n".join(lines) + "\n"


def extras(cases: Sequence[Case]) -> str:
    """Return `results/test_extras.md`."""
    lines = [
        "# Tests that need extra packages",
        "",
        "`make test` skips these tests and prints why. `make test-extras` installs the packages into an environment of "
        "their own, runs the tests and writes this page.",
        "",
        "| package | version |",
        "|---|---|",
        *(f"| {name} | {_version(name)} |" for name in EXTRA_PACKAGES),
        "",
        "| test | outcome |",
        "|---|---|",
        *(f"| `{case.name.replace('|', '/')}` | {case.outcome} |" for case in cases),
    ]
    return "\n".join(lines) + "\n"


def cluster(cases: Sequence[Case]) -> str:
    """Return `results/cluster.md`."""
    lines = [
        "# Tests on Ray clusters",
        "",
        "`make test` skips these tests. `make cluster` installs Ray into an environment of its own, runs them on "
        "clusters that they start on this machine, and writes this page.",
        "",
        "| package | version |",
        "|---|---|",
        *(f"| {name} | {_version(name)} |" for name in CLUSTER_PACKAGES),
        "",
        "| test | outcome | seconds |",
        "|---|---|---:|",
        *(f"| `{case.name.replace('|', '/')}` | {case.outcome} | {case.seconds:.0f} |" for case in cases),
    ]
    return "\n".join(lines) + "\n"


PAGES = {"durations": durations, "extras": extras, "cluster": cluster}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def main(kind: Literal["durations", "extras", "cluster"], files: list[Path], output: Path) -> int:
    """Write the page; the exit code is 1 if a test failed, or if one was skipped although its packages are there."""
    cases = [case for path in files for case in read_cases(path)]
    write_text(output, PAGES[kind](cases))
    bad = ("failed",) if kind == "durations" else ("failed", "skipped")
    return int(any(case.outcome.startswith(bad) for case in cases))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
