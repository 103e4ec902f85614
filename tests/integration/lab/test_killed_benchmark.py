"""A benchmark that is killed at random moments, and run again, ends with the tables of one that was left alone."""

import contextlib
import csv
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.experiment import start
from rl_training.experiment.records.read import read_run
from rl_training.lab.benchmark_jobs import benchmark_jobs, contenders, published_figures
from rl_training.lab.benchmark_report import report
from rl_training.lab.manifests import read_manifest
from rl_training.lab.scored_runs import scored_run
from support.configs import tiny_config

pytestmark = pytest.mark.fault

KILLS = 3
SEEDS = 2


@pytest.fixture
def manifest(tmp_path):
    """Two presets of one's own that take some seconds each."""
    budget = {"total_timesteps": 3_000, "eval_every_timesteps": 250, "checkpoint_every_timesteps": 300}
    for algo in ("ppo", "a2c"):
        config = tiny_config(algo, "unused", env_id="CartPole-v1", **budget)
        (tmp_path / f"{algo}.yaml").write_text(config.to_yaml())
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"seeds: {SEEDS}\npresets:\n  - {tmp_path / 'ppo.yaml'}\n"
        f"  - {{preset: {tmp_path / 'a2c.yaml'}, name: critic, published: {{mean: 400, source: a paper}}}}\n"
        "references:\n  CartPole-v1: {low: 20, high: 500}\n"
    )
    return file


def tables(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the tables of a report, but for what the clock says."""
    found = {}
    for name in ("scores.csv", "summary.csv", "curves.csv"):
        with (folder / name).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("axis") != "seconds"]
        found[name] = [{key: row[key] for key in row if key != "seconds"} for row in rows]
    return found


def left_alone(manifest: Path, folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the tables of the same runs, each trained in one go in this process."""
    found = contenders(read_manifest(manifest), {})
    names = {contender.preset: contender for contender in found}
    records = []
    for job in benchmark_jobs(found, range(1, SEEDS + 1)):
        run = start.train(job.config.with_overrides(output_dir=str(folder / "alone")))
        records.append(scored_run(read_run(run.run_dir), name=names[job.name].name))
    references = {"CartPole-v1": (20.0, 500.0)}
    report(records, folder / "report", None, references, published_figures(found))
    return tables(folder / "report")


def kill(launcher: subprocess.Popen[bytes], *, children: bool) -> None:
    """End the launcher without a word, and perhaps those that train for it, too."""
    listed = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    pids = [int(pid) for pid in listed.read_text().split()] if children and listed.is_file() else []
    launcher.kill()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_it_ends_with_the_same_tables(manifest, tmp_path):
    folder, chance = tmp_path / "D", random.Random(3)
    command = [
        sys.executable,
        "-m",
        "rl_training",
        "benchmark",
        str(manifest),
        "--jobs",
        "2",
        "--output-dir",
        str(folder),
    ]
    kills = 0
    while True:
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = launcher.communicate(timeout=chance.uniform(3.0, 8.0) if kills < KILLS else 300)
            break
        except subprocess.TimeoutExpired:
            kills += 1
            kill(launcher, children=chance.random() < 0.5)
            launcher.communicate()
    assert (launcher.returncode, err) == (0, b"")
    assert kills > 0
    assert b"4 of 4 runs are finished" in out
    assert len(list(folder.glob("runs/*/[!.]*/config.yaml"))) == 4, "a job was begun twice"
    assert (folder / "report.md").is_file()
    assert tables(folder) == left_alone(manifest, tmp_path)


def test_bad_manifests_are_told_in_a_sentence(cli, tmp_path):
    (tmp_path / "bad.yaml").write_text("presets: [ppo/cartpole]\noverides: {total_timesteps: 5}\n")
    assert (
        "unknown key 'overides'; did you mean 'overrides'?"
        in cli("benchmark", tmp_path / "bad.yaml").sentence
    )
    (tmp_path / "bad.yaml").write_text("presets: [ppo/cartpole]\noverrides: {total_timestep: 5}\n")
    assert (
        "ppo/cartpole with overrides: unknown setting 'total_timestep'"
        in cli("benchmark", tmp_path / "bad.yaml").sentence
    )
    assert "benchmark clasic does not exist; did you mean 'classic'?" in cli("benchmark", "clasic").sentence
    assert "--retry-failed" in cli("benchmark", "--help").out
    (tmp_path / "file").write_text("")
    taken = cli("benchmark", "classic", "--output-dir", tmp_path / "file")
    assert "is a file; choose a folder" in taken.sentence
