"""What a run folder tells without torch: status, steps, scores; and of damaged folders, that they are."""

import builtins
import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.logs import rows as rows_module
from rl_training.experiment.records import read as read_module
from rl_training.experiment.records.read import NO_RUN, STATUSES, read_run
from rl_training.lab.scored_runs import scored_run
from support.folders import CONFIG, evaluation, run_folder


class TestWhole:
    def test_a_finished_run(self, tmp_path):
        run = read_run(run_folder(tmp_path))
        assert (run.name, run.status, run.problem) == ("one", "finished", None)
        assert (run.algo, run.env_id, run.seed) == ("ppo", "CartPole-v1", 3)
        assert (run.timesteps, run.total_timesteps) == (1000, 1000)
        assert (run.score, run.best, run.num_evaluations) == (3.0, 3.0, 2)
        assert run.started == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert run.evaluations == [evaluation(500, 1.0), evaluation(1000, 3.0)]
        assert run.config == {
            "algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "output_dir": "runs", "total_timesteps": 1000,
            "num_envs": 2, "env_kwargs.gravity": 9.8, "learning_rate": 0.001, "hidden_sizes": [8],
        }  # fmt: skip

    def test_the_score_is_the_mean_of_the_last_tenth(self, tmp_path):
        run = read_run(run_folder(tmp_path, means=tuple(float(number) for number in [99, *range(29)])))
        assert (run.score, run.best) == (27.0, 99.0)

    def test_a_last_tenth_is_rounded_down(self, tmp_path):
        run = read_run(run_folder(tmp_path, means=tuple(float(number) for number in range(19))))
        assert (run.score, scored_run(run).score) == (18.0, 18.0)

    def test_an_extended_budget_is_in_the_config(self, tmp_path):
        folder = run_folder(tmp_path)
        (folder / "config.yaml").write_text(CONFIG.replace("1000", "1_000_000"), encoding="utf-8")
        assert read_run(folder).total_timesteps == 1_000_000

    @pytest.mark.parametrize("status", ["stopped", "paused", "failed", "interrupted"])
    def test_an_end_is_told_with_its_reason(self, tmp_path, status):
        run = read_run(run_folder(tmp_path, status=status, error="the disk\nis full", metrics=None))
        assert (run.status, run.problem, run.timesteps) == (status, "the disk is full", 900)

    def test_running_and_abandoned_differ_by_the_lock(self, tmp_path):
        folder = run_folder(tmp_path, status="running", metrics=None)
        with RunLock(folder):
            assert read_run(folder).status == "running"
        run = read_run(folder)
        assert (run.status, run.timesteps) == ("abandoned", 900)
        assert "no process is training it" in run.problem

    @pytest.mark.parametrize("status", ["finished", "paused", "failed"])
    def test_a_run_that_is_being_resumed_runs_before_its_metadata_says_so(self, tmp_path, status):
        folder = run_folder(tmp_path, status=status, stop_reason="it was late")
        with RunLock(folder):
            run = read_run(folder)
        assert (run.status, run.problem) == ("running", None)

    def test_a_run_that_ends_while_it_is_read_is_not_abandoned(self, tmp_path, monkeypatch):
        folder = run_folder(tmp_path, status="running")
        lock, read = RunLock(folder).__enter__(), read_module.read_mapping

        def read_and_end(path, limit: int):
            data = read(path)
            lock.__exit__(None, None, None)
            return data

        monkeypatch.setattr(read_module, "read_mapping", read_and_end)
        assert read_run(folder).status == "running"

    def test_a_run_that_begins_while_it_is_read_is_not_abandoned(self, tmp_path, monkeypatch):
        folder = run_folder(tmp_path, status="running")
        read = read_module.read_mapping
        with contextlib.ExitStack() as begun:

            def begin_and_read(path, limit: int):
                begun.enter_context(RunLock(folder))
                return read(path)

            monkeypatch.setattr(read_module, "read_mapping", begin_and_read)
            assert read_run(folder).status == "running"

    def test_killed_in_its_first_instant(self, tmp_path):
        folder = tmp_path / "new"
        folder.mkdir()
        (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
        (folder / ".origin.json").write_text("{}", encoding="utf-8")
        run = read_run(folder)
        assert (run.status, run.algo, run.timesteps) == ("abandoned", "ppo", None)
        with RunLock(folder):
            assert read_run(folder).status == "running"


@pytest.mark.parametrize(("ended", "limit"), [("finished", 3), ("running", 4)])
def test_few_files_are_read_of_a_run(tmp_path, monkeypatch, ended, limit):
    """Thousands are listed in a second: metadata, config, evaluations, and of a run without an end its last row."""
    folder = run_folder(tmp_path, status=ended, **({} if ended == "finished" else {"metrics": None}))
    read: list[str] = []
    opened = builtins.open

    def count(path, *rest, **options):
        read.append(os.path.basename(path))
        return opened(path, *rest, **options)

    def refuse(*arguments):
        raise AssertionError("YAML takes long")

    monkeypatch.setattr(builtins, "open", count)
    monkeypatch.setattr(Path, "open", lambda path, *rest, **options: count(path, *rest, **options))
    monkeypatch.setattr(read_module, "read_yaml", refuse)
    read_run(folder)
    expected = {"metadata.json", "config.yaml", "evaluations.jsonl"} | (
        {"metrics.jsonl"} if limit == 4 else set()
    )
    assert (set(read), len(read)) == (expected, limit)


def test_only_the_end_of_the_metrics_is_read(tmp_path):
    folder = run_folder(tmp_path, status="failed", metrics=None)
    rows = "".join(json.dumps({"time/total_timesteps": float(step)}) + "\n" for step in range(20_000))
    (folder / "metrics.jsonl").write_text(rows + '{"time/total_timesteps": 3', encoding="utf-8")
    assert (folder / "metrics.jsonl").stat().st_size > 4 * rows_module.TAIL
    assert read_run(folder).timesteps == 19_999


def _write(name: str, content: str | bytes):
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return damage


def _replace(name: str, make):
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


def _metadata(**changes):
    def damage(folder: Path) -> None:
        data = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
        (folder / "metadata.json").write_text(json.dumps(data | changes), encoding="utf-8")

    return damage


def _both(*damages):
    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


def _gone(*names: str):
    return lambda folder: [(folder / name).unlink() for name in names]


def _bare(folder: Path) -> None:
    for name in ("metadata.json", "config.yaml", "metrics.jsonl", "evaluations.jsonl", ".lock"):
        (folder / name).write_bytes(b"")


def _deep(folder: Path) -> None:
    """As deep as a JSON reader goes."""
    names = (
        "versions",
        "git_commit",
        "machine",
        "arguments",
        "started_from",
        "update_path",
        "losses",
        "status",
        "error",
    )
    entries = ", ".join(f'"{name}": {"[" * 900}{"]" * 900}' for name in names)
    text = f'{{"algo": "ppo", "env_id": "x", {entries}}}'
    (folder / "metadata.json").write_text(text, encoding="utf-8")


def _forbidden(path: Path) -> None:
    path.write_text("{}", encoding="utf-8")
    path.chmod(0)


BILLION = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
DAMAGES = {
    "metadata empty": (_write("metadata.json", ""), "damaged", "metadata.json is damaged"),
    "metadata torn": (_write("metadata.json", '{"status": "finis'), "damaged", "metadata.json is damaged"),
    "metadata junk": (_write("metadata.json", b"\xff\x00\xfe"), "damaged", "metadata.json is damaged"),
    "metadata a list": (_write("metadata.json", "[1]"), "damaged", "it is not a mapping"),
    "metadata empty map": (_write("metadata.json", "{}"), "damaged", "has no algorithm"),
    "metadata deep": (_write("metadata.json", "[" * 100_000), "damaged", "metadata.json is damaged"),
    "metadata endless number": (_write("metadata.json", '{"seed": ' + "9" * 5000 + "}"), "damaged", "is damaged"),
    "metadata a folder": (_replace("metadata.json", Path.mkdir), "damaged", "metadata.json is not a regular file"),
    "metadata a pipe": (_replace("metadata.json", os.mkfifo), "damaged", "metadata.json is not a regular file"),
    "metadata a loop": (_replace("metadata.json", lambda path: path.symlink_to(path)), "damaged", "cannot read"),
    "metadata missing": (_gone("metadata.json"), "damaged", "metadata.json is missing"),
    "metadata of somebody": (_write("metadata.json", '{"name": "x"}'), "damaged", "has no algorithm"),
    "algo a list": (_metadata(algo=["ppo"]), "finished", "has no algorithm"),
    "seed a word": (_metadata(seed="three"), "finished", None),
    "seed true": (_metadata(seed=True), "finished", None),
    "status a number": (_metadata(status=5), "damaged", "its status is 5"),
    "status a map": (_metadata(status={"a": 1}), "damaged", "its status is"),
    "status a new word": (_metadata(status="pondering"), "damaged", "its status is 'pondering'"),
    "times wrong": (_metadata(started="yesterday", finished=7), "finished", None),
    "time without a zone": (_metadata(started="2026-01-01T00:00:00"), "finished", None),
    "metrics a list": (_metadata(metrics=[1]), "finished", None),
    "steps endless": (_metadata(metrics={"global_step": 1e300}), "finished", None),
    "steps no number": (_metadata(metrics={"global_step": float("nan")}), "finished", None),
    "versions a list": (_metadata(versions=[1], machine="x", resumes=3, arguments="x"), "finished", None),
    "entries deep": (_deep, "damaged", "its status is not a string"),
    "error a map": (_metadata(status="failed", error={"a": 1}), "failed", None),
    "escapes": (_metadata(env_id="\x1b[31mred", git_commit="\x1b[2J", error="\x1b]0;x\x07"), "finished", "?]0;x?"),
    "config empty": (_write("config.yaml", ""), "finished", None),
    "config torn": (_write("config.yaml", "algo: ppo\nalgorithm: {lear"), "finished", None),
    "config a list": (_write("config.yaml", "- 1\n"), "finished", None),
    "config a bomb": (_write("config.yaml", BILLION), "finished", None),
    "config strange keys": (_write("config.yaml", "1: 2\n? [a]\n: b\nstatus: won\n"), "finished", None),
    "config values": (_write("config.yaml", "status: won\nday: 2026-01-01\nx: .nan\ny: .inf\n"), "finished", None),
    "config a pipe": (_replace("config.yaml", os.mkfifo), "finished", None),
    "config missing": (_gone("config.yaml"), "finished", None),
    "config too large": (_write("config.yaml", "#" * (1 << 21)), "finished", None),
    "evaluations torn": (_write("evaluations.jsonl", '{"timesteps": 5'), "finished", None),
    "evaluations junk": (_write("evaluations.jsonl", b"\xff\n{}\n[]\n\r\n"), "finished", "4 damaged row(s)"),
    "evaluations huge": (
        _write("evaluations.jsonl", '{"timesteps": 1, "mean_reward": 1' + "0" * 400 + ', "returns": []}\n'),
        "finished",
        "1 damaged row(s)",
    ),
    "evaluations no numbers": (
        _write("evaluations.jsonl", '{"timesteps": 1, "mean_reward": NaN, "returns": [Infinity]}\n'),
        "finished",
        "1 damaged row(s)",
    ),
    "evaluations deep": (
        _write(
            "evaluations.jsonl",
            '{"timesteps": 1, "mean_reward": 1, "returns": [], "x": {"y": ' + "[" * 900 + "]" * 900 + "}}\n",
        ),
        "finished",
        None,
    ),
    "evaluations a pipe": (_replace("evaluations.jsonl", os.mkfifo), "finished", "evaluations.jsonl is not a regular"),
    "evaluations a folder": (_replace("evaluations.jsonl", Path.mkdir), "finished", "is not a regular file"),
    "metrics junk": (_both(_metadata(metrics=None), _write("metrics.jsonl", b"\xff\n")), "finished", None),
    "metrics a pipe": (_both(_metadata(metrics=None), _replace("metrics.jsonl", os.mkfifo)), "finished", None),
    "lock a pipe": (_both(_metadata(status="running"), _replace(".lock", os.mkfifo)), "abandoned", "no process"),
    "lock a folder": (_both(_metadata(status="running"), _replace(".lock", Path.mkdir)), "abandoned", "no process"),
    "lock missing": (_both(_metadata(status="running"), _gone(".lock")), "abandoned", "no process"),
    "everything empty": (_bare, "damaged", "metadata.json is damaged"),
    "nothing but checkpoints": (
        _gone("metadata.json", "config.yaml", "metrics.jsonl", "evaluations.jsonl", ".lock", ".origin.json"),
        "damaged",
        "config.yaml is missing",
    ),
}  # fmt: skip
if os.getuid() != 0:
    DAMAGES["metadata forbidden"] = (_replace("metadata.json", _forbidden), "damaged", "Permission denied")


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_a_run_and_says_what_is_wrong(tmp_path, name):
    damage, status, words = DAMAGES[name]
    folder = run_folder(tmp_path)
    damage(folder)
    run = read_run(folder)
    assert run.is_run
    assert run.status == status
    assert status in STATUSES
    assert run.problem is None if words is None else words in run.problem
    assert str(tmp_path) not in (run.problem or "")
    assert isinstance(run.config, dict)
    assert run.seed is None or type(run.seed) is int
    assert all(row["mean_reward"] < 1e300 for row in run.evaluations)


@pytest.mark.parametrize("name", DAMAGES)
def test_every_command_on_a_damaged_run_is_one_of_words(cli, tmp_path, name):
    """Every action reads it to the end: a table, a page, a comparison and JSON that is strict."""
    damage, status, _ = DAMAGES[name]
    other = run_folder(tmp_path / "runs", "other")
    folder = run_folder(tmp_path / "runs")
    damage(folder)

    def strictly(text: str):
        return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    for arguments in (
        ["runs", "list", tmp_path / "runs"],
        ["runs", "show", folder],
        ["runs", "diff", other, folder],
    ):
        plain, data = cli(*arguments), cli(*arguments, "--json")
        assert (plain.code, data.code) == (0, 0), plain.err + data.err
        assert strictly(data.out) is not None
        assert "\x1b" not in plain.out + plain.err
        assert plain.err == "" or plain.warnings
    listed = strictly(cli("runs", "list", tmp_path / "runs", "--json").out)
    assert {row["status"] for row in listed if row["name"] == "one"} == {status}
    for flags in (["--csv", "-"], ["--json", "-"], ["--json", "-", "--evaluations"]):
        exported = cli("export-results", tmp_path / "runs", *flags)
        assert (exported.code, exported.err) == (0, "")


class TestNoRuns:
    def test_an_empty_folder(self, tmp_path):
        run = read_run(tmp_path)
        assert (run.status, run.problem, run.is_run) == (NO_RUN, "empty", False)

    def test_somebody_elses_folder(self, tmp_path):
        (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
        (tmp_path / "metadata.json").write_text('{"title": "photos"}', encoding="utf-8")
        run = read_run(tmp_path)
        assert run.status == NO_RUN
        assert run.problem.startswith("it has no files of a run")

    def test_a_project_with_a_config_of_its_own_is_no_run(self, tmp_path):
        (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
        (tmp_path / "checkpoints").mkdir()
        assert read_run(tmp_path).status == NO_RUN

    def test_a_saved_agent(self, tmp_path):
        for name in ("manifest.json", "model.safetensors"):
            (tmp_path / name).write_bytes(b"")
        assert read_run(tmp_path).problem == "a checkpoint or a saved agent"

    @pytest.mark.parametrize("path", ["nowhere", "file", "\0"])
    def test_what_cannot_be_read(self, tmp_path, path):
        (tmp_path / "file").write_text("x", encoding="utf-8")
        run = read_run(tmp_path / path)
        assert run.status == NO_RUN
        assert run.problem.startswith("cannot be read: ")
