"""Turns a manifest into jobs, and the records of jobs into scored runs for a report."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, load_config
from rl_training.config.presets import task_name
from rl_training.core.errors import ConfigError, UserError, did_you_mean
from rl_training.lab.benchmark_summary import group
from rl_training.lab.jobs import Job, jobs_of, scored_job
from rl_training.lab.manifests import Manifest
from rl_training.lab.scored_runs import ScoredRun, read_records, records_file
from rl_training.lab.statistics import Published


@dataclass(frozen=True)
class Contender:
    """A preset of a benchmark with its name in tables and its task."""

    preset: str
    config: TrainConfig
    name: str
    task: str
    published: Published | None = None


def contenders(manifest: Manifest, overrides: Mapping[str, Any]) -> list[Contender]:
    """Return the presets of a manifest with all overrides applied.

    Each is named by its algorithm if that is unique for its task, otherwise by its preset.
    """
    configs = [
        _overridden(entry.preset, {**manifest.overrides, **entry.overrides, **overrides})
        for entry in manifest.entries
    ]
    tasks = [task_name(config.task, config.env_kwargs) for config in configs]
    count = Counter((config.algo, task) for config, task in zip(configs, tasks, strict=True))
    found = [
        Contender(
            entry.preset,
            config,
            entry.name or (config.algo if count[config.algo, task] == 1 else entry.preset),
            task,
            None if entry.published is None else Published(**entry.published),
        )
        for entry, config, task in zip(manifest.entries, configs, tasks, strict=True)
    ]
    if problems := [*_shared_names(found), *_strange_references(manifest, tasks)]:
        raise ConfigError(problems, "benchmark")
    return found


def _shared_names(found: Sequence[Contender]) -> Iterator[str]:
    """Yield a problem for each two presets with the same name and task."""
    first = dict[tuple[str, str], str]()
    for contender in found:
        other = first.setdefault((contender.name, contender.task), contender.preset)
        if other != contender.preset:
            yield (
                f"{other} and {contender.preset} are both called '{contender.name}' on {contender.task}; "
                "give one of them another name"
            )


def _strange_references(manifest: Manifest, tasks: Sequence[str]) -> Iterator[str]:
    for task in manifest.references.keys() - set(tasks):
        yield f"references.{task} is not a task of this benchmark{did_you_mean(task, tasks)}"


def _overridden(preset: str, settings: Mapping[str, Any]) -> TrainConfig:
    try:
        return load_config(preset).with_overrides(**settings)
    except ConfigError as error:
        raise ConfigError(error.problems, f"{preset} with overrides") from error


def read_baseline(path: Path, found: Sequence[Contender], folder: Path) -> list[ScoredRun]:
    """Return the records of an earlier report; raise before training if they cannot be compared.

    The report in `folder` is refused too, because the new report replaces it.
    """
    if os.path.realpath(records_file(path)) == os.path.realpath(records_file(folder)):
        raise UserError(f"--baseline {path} would be replaced by this report; use another --output-dir")
    records = read_records(path)
    group(records, f"{path} has no records; leave --baseline out, or give another report")
    theirs, ours = {record.task for record in records}, {contender.task for contender in found}
    if not theirs & ours:
        raise UserError(
            f"the baseline {path} ({', '.join(sorted(theirs))}) and this benchmark ({', '.join(sorted(ours))}) have no "
            "task in common; give another report"
        )
    return records


def benchmark_jobs(found: Sequence[Contender], seeds: Sequence[int]) -> list[Job]:
    """Return a job for each preset and each seed."""
    return jobs_of([(contender.preset, contender.config) for contender in found], seeds)


def scored_jobs(found: Sequence[Contender], records: Sequence[Mapping[str, Any]]) -> list[ScoredRun]:
    """Return the records of finished jobs as scored runs, with the names and tasks of their presets."""
    by_preset = {contender.preset: contender for contender in found}
    return [
        scored_job(record, by_preset[record["name"]].task, by_preset[record["name"]].name)
        for record in records
    ]


def published_figures(found: Sequence[Contender]) -> dict[tuple[str, str], Published]:
    """Return published scores by name and task."""
    return {
        (contender.name, contender.task): contender.published
        for contender in found
        if contender.published is not None
    }
