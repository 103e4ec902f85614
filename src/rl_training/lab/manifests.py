"""Benchmark manifests: YAML files with presets, seeds and reference scores."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.config.fields import whole_number
from rl_training.config.presets import BENCHMARK, NEAR, SHORT, known_as, preset_name, presets, shipped
from rl_training.config.strict_yaml import read_yaml
from rl_training.core.errors import ConfigError, UserError, did_you_mean

MANIFEST = ("summary", "seeds", "presets", "overrides", "references")
MAX_SEEDS = 10_000
"""More is probably a typing error: every seed is a run."""
MAX_PRESETS = 200
SEEDS = f"use a number from 1 to {MAX_SEEDS:,}, or a range such as 21-25"
ENTRY = ("preset", "name", "published", "overrides")
REFERENCE = ("low", "high")
OURS = {
    "algo": "the presets decide it",
    "seed": "use 'seeds', such as 21-25",
    "output_dir": "use the flag --output-dir",
}
"""Settings that a manifest must not override, and what to do instead."""
PUBLISHED = ("mean", "std", "num_seeds", "source", "remark")
WORDS = ("source", "remark")


@dataclass(frozen=True)
class Entry:
    """A preset of a benchmark, with its name in tables, published scores and overrides."""

    preset: str
    name: str | None = None
    published: Mapping[str, Any] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """A benchmark; `references` maps each task to the scores that are normalised to 0 and 1."""

    entries: Sequence[Entry]
    seeds: range
    overrides: Mapping[str, Any]
    references: Mapping[str, tuple[float, float]]
    summary: str = ""


def manifests() -> dict[str, Path]:
    """Return the benchmarks of the zoo by family, and the short ones as `<family>/short`."""
    return {
        path.parent.name + ("" if path.stem == BENCHMARK else f"/{SHORT}"): path
        for folder in shipped("zoo")
        for stem in (BENCHMARK, SHORT)
        for path in sorted(folder.glob(f"*/{stem}.yaml"))
    }


def seed_range(given: Any) -> range | None:
    """Return the seeds for a number (seeds 1 to N) or a range such as 11-15; None if it is neither."""
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", str(given))
    first, last = (1, whole_number(given) or 0) if match is None else (int(match[1]), int(match[2]))
    return range(first, last + 1) if 1 <= last + 1 - first <= MAX_SEEDS else None


def find_manifest(path: str | PathLike[str]) -> Path:
    """Return the manifest at `path`, or that of a family such as `atari`."""
    given = Path(path)
    if given.is_file():
        return given
    name = given.as_posix().removeprefix("zoo/").removesuffix(".yaml").removesuffix(f"/{BENCHMARK}")
    known = manifests()
    if name in known:
        return known[name]
    raise UserError(
        f"{_absence(given)}{did_you_mean(name, known, nearness=NEAR)}; families are {', '.join(known)}"
    )


def _absence(given: Path) -> str:
    if given.is_dir():
        return f"{given} is a folder; give a manifest or a family"
    if given.suffix in (".yaml", ".yml", ".json") or given.is_absolute() or given.parts[:1] == ("..",):
        return f"the file {given} does not exist"
    return f"benchmark {given} does not exist"


def read_manifest(path: str | PathLike[str]) -> Manifest:
    """Read a manifest strictly; one error lists all problems with their keys."""
    data = read_yaml(find_manifest(path), path, example="presets: [ppo/cartpole]")
    if "presets" not in data and "algo" in data:
        raise UserError(
            f"{path} is a config, not a manifest; use rl-training zoo run {path} to train it on several seeds"
        )
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


def _wrong_overrides(given: Any, place: str) -> list[str]:
    if not isinstance(given, Mapping):
        return [f"{place} is {given!r}; use a mapping of settings"]
    problems = [f"{place}.{key} is not a setting; use names" for key in given if not isinstance(key, str)]
    return problems + [
        f"{place}.{key} cannot be set in a benchmark; {OURS[key]}" for key in OURS if key in given
    ]


def _entries(given: Any) -> tuple[list[Entry], list[str]]:
    if not isinstance(given, list) or not given:
        return [], [f"presets is {given!r}; use a list such as [ppo/cartpole, dqn/cartpole]"]
    if len(given) > MAX_PRESETS:
        return [], [f"presets has {len(given):,} entries; use at most {MAX_PRESETS}"]
    known, entries, problems = presets(), list[Entry](), list[str]()
    for number, item in enumerate(given):
        entry: Any = {"preset": item} if isinstance(item, str) else item
        if not isinstance(entry, Mapping) or not isinstance(entry.get("preset"), str):
            problems.append(
                f"presets[{number}] is {item!r}; use the name of a preset, or a mapping with 'preset:'"
            )
            continue
        chosen = known_as(entry["preset"])
        if chosen is None:
            near = did_you_mean(preset_name(entry["preset"]), known, nearness=NEAR)
            problems.append(f"presets[{number}] is '{entry['preset']}', which does not exist{near}")
        elif chosen in [other.preset for other in entries]:
            problems.append(f"presets[{number}] is '{entry['preset']}', which is listed twice; list it once")
        published = entry.get("published")
        problems += _unknown(entry, ENTRY, f"presets[{number}].")
        problems += _wrong_figures(published, PUBLISHED, f"presets[{number}].published", ("mean",))
        if not isinstance(entry.get("name", ""), str):
            problems.append(f"presets[{number}].name is {entry['name']!r}; use text")
        problems += _wrong_overrides(entry.get("overrides", {}), f"presets[{number}].overrides")
        own = entry.get("overrides", {})
        entries.append(Entry(chosen or entry["preset"], entry.get("name"), published, own))
    return entries, problems


def _references(given: Any) -> tuple[dict[str, tuple[float, float]], list[str]]:
    if not isinstance(given, Mapping):
        return {}, [f"references is {given!r}; use a mapping such as 'CartPole-v1: {{low: 22, high: 500}}'"]
    problems = [
        problem
        for task, reference in given.items()
        for problem in _wrong_figures(reference or {}, REFERENCE, f"references.{task}", REFERENCE)
    ]
    if problems:
        return {}, problems
    found = {str(task): (float(item["low"]), float(item["high"])) for task, item in given.items()}
    return found, [
        f"references.{task}: low is {low:g} and high is {high:g}; low must be less than high"
        for task, (low, high) in found.items()
        if low >= high
    ]


def _wrong_figures(given: Any, known: Sequence[str], place: str, needed: Sequence[str]) -> list[str]:
    """Return the problems of a mapping of numbers, if one is given."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        return [f"{place} is {given!r}; use a mapping with {', '.join(needed)}"]
    problems = _unknown(given, known, f"{place}.")
    problems += [f"{place}.{key} is missing" for key in needed if key not in given]
    for key, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if key in WORDS:
            problems += [] if isinstance(value, str) else [f"{place}.{key} is {value!r}; use text"]
        elif key in known and not number:
            problems.append(f"{place}.{key} is {value!r}; use a number")
        elif (key == "std" and value < 0) or (key == "num_seeds" and (value < 1 or value != int(value))):
            problems.append(
                f"{place}.{key} is {value!r}; use {'0 or more' if key == 'std' else 'a whole number, 1 or more'}"
            )
    return problems


def _unknown(given: Mapping[str, Any], known: Sequence[str], place: str) -> list[str]:
    return [f"unknown key '{place}{key}'{did_you_mean(str(key), known)}" for key in given if key not in known]
