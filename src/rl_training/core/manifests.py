"""Benchmarks as files: which presets, on how many seeds, and what their scores are held against."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError, UserError, did_you_mean
from rl_training.core.presets import BENCHMARK, SHORT, preset_name, presets, shipped
from rl_training.core.strict_yaml import read_yaml

MANIFEST = ("summary", "seeds", "presets", "overrides", "references")
ENTRY = ("preset", "name", "published", "overrides")
REFERENCE = ("low", "high")
PUBLISHED = ("mean", "std", "num_seeds", "source", "remark")
WORDS = ("source", "remark")
SEEDS = "use how many, 1 or more, or the first and the last, such as 11-15"


@dataclass(frozen=True)
class Entry:
    """A preset of a benchmark, what its runs are called in tables, what others published, and settings of its own."""

    preset: str
    name: str | None = None
    published: Mapping[str, Any] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """A benchmark; `references` are per task the scores that count as 0 and as 1."""

    entries: Sequence[Entry]
    seeds: range
    overrides: Mapping[str, Any]
    references: Mapping[str, tuple[float, float]]
    summary: str = ""


def manifests() -> dict[str, Path]:
    """Return the benchmarks of the zoo by family, and those of a short budget by `<family>/short`."""
    return {
        path.parent.name + ("" if path.stem == BENCHMARK else f"/{SHORT}"): path
        for folder in shipped("zoo")
        for stem in (BENCHMARK, SHORT)
        for path in sorted(folder.glob(f"*/{stem}.yaml"))
    }


def seed_range(given: Any) -> range | None:
    """Return the seeds that are meant by a number (seeds 1 to N) or by first and last, such as 11-15; None if none."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(given))
    if match is None or isinstance(given, bool):
        return None
    first, last = (1, int(match[1])) if match[2] is None else (int(match[1]), int(match[2]))
    return range(first, last + 1) or None


def find_manifest(path: str | PathLike[str]) -> Path:
    """Return the file at `path`, or the benchmark of a family, such as `zoo/atari/benchmark.yaml` or `atari`."""
    given = Path(path)
    if given.is_file():
        return given
    name = given.as_posix().removeprefix("zoo/").removesuffix(".yaml").removesuffix(f"/{BENCHMARK}")
    known = manifests()
    if name in known:
        return known[name]
    raise UserError(
        f"benchmark {path} does not exist{did_you_mean(name, known)}; families are {', '.join(known) or 'not here'}"
    )


def read_manifest(path: str | PathLike[str]) -> Manifest:
    """Read a benchmark strictly: everything that is wrong is told at once, by its key."""
    data = read_yaml(find_manifest(path), path)
    problems = _unknown(data, MANIFEST, "")
    entries, found = _entries(data.get("presets"))
    references, odd = _references(data.get("references", {}))
    problems += found + odd
    seeds, overrides = seed_range(data.get("seeds", 5)), data.get("overrides", {})
    if seeds is None:
        problems.append(f"seeds is {data['seeds']!r}; {SEEDS}")
    problems += _wrong_overrides(overrides, "overrides")
    if problems or seeds is None:
        raise ConfigError(problems, str(path))
    return Manifest(entries, seeds, overrides, references, str(data.get("summary", "")))


def _entries(given: Any) -> tuple[list[Entry], list[str]]:
    if not isinstance(given, list) or not given:
        return [], [f"presets is {given!r}; use a list such as [ppo/cartpole, dqn/cartpole]"]
    known, entries, problems = presets(), list[Entry](), list[str]()
    for number, item in enumerate(given):
        entry: Any = {"preset": item} if isinstance(item, str) else item
        if not isinstance(entry, Mapping) or not isinstance(entry.get("preset"), str):
            problems.append(f"presets[{number}] is {item!r}; use a preset's name, or a map with 'preset:'")
            continue
        name = preset_name(entry["preset"])
        if name not in known and not Path(entry["preset"]).is_file():
            problems.append(
                f"presets[{number}] is '{entry['preset']}', which does not exist{did_you_mean(name, known)}"
            )
        published = entry.get("published")
        problems += _unknown(entry, ENTRY, f"presets[{number}].")
        problems += _wrong_figures(published, PUBLISHED, f"presets[{number}].published", ("mean",))
        if not isinstance(entry.get("name", ""), str):
            problems.append(f"presets[{number}].name is {entry['name']!r}; use words")
        problems += _wrong_overrides(entry.get("overrides", {}), f"presets[{number}].overrides")
        chosen = name if name in known else entry["preset"]
        entries.append(Entry(chosen, entry.get("name"), published, entry.get("overrides", {})))
    return entries, problems


def _wrong_overrides(given: Any, place: str) -> list[str]:
    return [] if isinstance(given, Mapping) else [f"{place} is {given!r}; use a map of settings"]


def _references(given: Any) -> tuple[dict[str, tuple[float, float]], list[str]]:
    if not isinstance(given, Mapping):
        return {}, [f"references is {given!r}; use a map such as 'CartPole-v1: {{low: 22, high: 500}}'"]
    problems = [
        problem
        for task, reference in given.items()
        for problem in _wrong_figures(reference, REFERENCE, f"references.{task}", REFERENCE)
    ]
    if problems:
        return {}, problems
    found = {str(task): (float(item["low"]), float(item["high"])) for task, item in given.items()}
    return found, [
        f"references.{task}: low is {low:g} and high {high:g}; low must be the lower one"
        for task, (low, high) in found.items()
        if low >= high
    ]


def _wrong_figures(given: Any, known: Sequence[str], place: str, needed: Sequence[str]) -> list[str]:
    """Return what is wrong with a map of numbers, if one is given."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        return [f"{place} is {given!r}; use a map with {', '.join(needed)}"]
    problems = _unknown(given, known, f"{place}.")
    problems += [f"{place}.{key} is missing" for key in needed if key not in given]
    for key, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if key in WORDS:
            problems += [] if isinstance(value, str) else [f"{place}.{key} is {value!r}; use words"]
        elif key in known and not number:
            problems.append(f"{place}.{key} is {value!r}; use a number")
        elif (key == "std" and value < 0) or (key == "num_seeds" and (value < 1 or value != int(value))):
            problems.append(
                f"{place}.{key} is {value!r}; use {'0 or more' if key == 'std' else 'how many, 1 or more'}"
            )
    return problems


def _unknown(given: Mapping[str, Any], known: Sequence[str], place: str) -> list[str]:
    return [f"unknown key '{place}{key}'{did_you_mean(str(key), known)}" for key in given if key not in known]
