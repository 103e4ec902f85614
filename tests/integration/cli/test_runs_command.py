"""`rl-training runs` and `export-results` on real runs, on terminals and pipes, and what they do without."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from rl_training.experiment import start
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.records.remove import REMOVED
from support.folders import run_folder

COMMAND = [sys.executable, "-m", "rl_training"]


@pytest.fixture
def folder(tmp_path):
    """Runs written by hand."""
    run_folder(tmp_path, "a", seed=1, started="2026-01-01T00:00:00+00:00")
    run_folder(
        tmp_path, "b", (5.0, 9.0), seed=2, status="failed", error="boom", started="2026-01-03T00:00:00+00:00"
    )
    run_folder(tmp_path, "c", (7.0, 2.0), seed=3, algo="dqn", started="2026-01-02T00:00:00+00:00")
    (tmp_path / "empty").mkdir()
    return tmp_path


def first_column(outcome):
    assert (outcome.code, outcome.err) == (0, "")
    return [line.split()[0] for line in outcome.out.splitlines()[1:]]


class TestOfRealRuns:
    def test_what_a_run_leaves_is_what_is_told(self, cli, tiny, tmp_path):
        config = tiny("ppo", eval_every_timesteps=32, learning_rate=0.002)
        run_dir = start.train(config).run_dir
        (listed,) = json.loads(cli("runs", "list", tmp_path / "runs", "--json").out)
        rows = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
        assert (listed["name"], listed["status"], listed["problem"]) == (run_dir.name, "finished", None)
        assert (listed["timesteps"], listed["total_timesteps"], listed["seed"]) == (64, 64, 1)
        assert (listed["score"], listed["best"]) == (
            rows[-1]["mean_reward"],
            max(r["mean_reward"] for r in rows),
        )
        shown = json.loads(cli("runs", "show", run_dir, "--json").out)
        assert shown["changed_settings"]["learning_rate"] == 0.002
        assert "gamma" not in shown["changed_settings"]
        assert [checkpoint["called"] for checkpoint in shown["checkpoints"]][-1][0] == "last"
        assert sum(checkpoint["bytes"] for checkpoint in shown["checkpoints"]) < shown["bytes"]
        page = cli("runs", "show", run_dir / "last").out
        assert "  learning_rate = 0.002\n" in page
        assert f"resume {run_dir} --total-timesteps 128" in page

    def test_the_commands_that_it_suggests_work(self, cli, tiny):
        run_dir = start.train(tiny("ppo")).run_dir
        _, _, suggested = cli("runs", "show", run_dir).out.partition("Next\n")
        for line in suggested.splitlines():
            words = line.split()
            outcome = cli(*words[words.index("rl_training.cli") + 1 :])
            assert outcome.code == 0, outcome.err

    def test_a_difference(self, cli, tiny):
        one = start.train(tiny("ppo")).run_dir
        two = start.train(tiny("ppo", seed=2, gamma=0.9)).run_dir
        found = json.loads(cli("runs", "diff", one, two, "--json").out)
        assert found["settings"] == {"seed": [1, 2], "gamma": [0.99, 0.9]}
        assert "versions" not in found
        lines = cli("runs", "diff", one, two).out.splitlines()
        assert ["settings", "gamma", "0.99", "0.9"] in [line.split() for line in lines]
        assert cli("runs", "diff", one, one).out.startswith("no difference in settings")


class TestList:
    def test_the_table(self, cli, folder):
        outcome = cli("runs", "list", folder)
        header, newest, *_ = outcome.out.splitlines()
        assert header.split() == [
            "run",
            "algo",
            "env",
            "seed",
            "status",
            *("step", "/", "total"),
            "score",
            "best",
            "age",
            "remark",
        ]
        assert newest.split()[:10] == [
            "b",
            "ppo",
            "CartPole-v1",
            "2",
            "failed",
            "1,000",
            "/",
            "1,000",
            "9.0",
            "9.0",
        ]
        assert newest.endswith("boom")
        assert first_column(outcome) == ["b", "c", "a", "empty"]
        assert outcome.out.splitlines()[-1].split()[4:] == ["not", "a", "run", "-", "-", "-", "-", "empty"]

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            (["--algo", "dqn"], ["c"]),
            (["--algo", "dqn", "--algo", "ppo"], ["b", "c", "a"]),
            (["--env", "Cart*", "--seed", "1"], ["a"]),
            (["--env-id", "Other"], []),
            (["--status", "failed"], ["b"]),
            (["--status", "not a run"], ["empty"]),
            (["--sort", "score"], ["b", "a", "c", "empty"]),
            (["--sort", "best"], ["b", "c", "a", "empty"]),
            (["--sort", "score", "--reverse"], ["c", "a", "b", "empty"]),
            (["--sort", "name"], ["a", "b", "c", "empty"]),
            (["--sort", "algo"], ["c", "a", "b", "empty"]),
        ],
    )
    def test_filters_and_orders(self, cli, folder, flags, expected):
        listed = json.loads(cli("runs", "list", folder, *flags, "--json").out)
        assert [row["name"] for row in listed] == expected

    def test_nothing_is_told_in_words(self, cli, folder, tmp_path):
        assert cli("runs", "list", folder / "empty").out == f"no runs in {folder / 'empty'}\n"
        assert cli("runs", "list", folder, "--seed", 9).out == f"none of the 4 folders in {folder} fits\n"

    def test_a_run_removed_by_halves_is_mentioned(self, cli, folder):
        (folder / f".12{REMOVED}").mkdir()
        assert "1 run(s)" in cli("runs", "list", folder).err

    def test_half_a_thousand_rows_are_enough_to_draw(self, folder, monkeypatch, capsys):
        from rl_training.cli import tables

        monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(tables, "_draw", lambda header, rows, right: sys.stdout.write("drawn\n"))
        for count in (tables.MAX_DRAWN, tables.MAX_DRAWN + 1):
            tables.print_table(["a"], [["x"]] * count)
        assert capsys.readouterr().out.splitlines() == ["drawn", "a", *["x"] * (tables.MAX_DRAWN + 1)]


class TestRemove:
    def test_elsewhere_than_on_a_terminal_it_needs_a_yes(self, cli, folder):
        assert "use --yes" in cli("runs", "rm", folder / "a").sentence
        assert (folder / "a").exists()
        outcome = cli("runs", "rm", folder / "a", folder / "b", f"{folder}/empty/../a", "--yes")
        assert (outcome.code, outcome.err) == (0, "")
        assert sorted(path.name for path in folder.iterdir()) == ["c", "empty"]

    def test_what_else_went_is_named(self, cli, folder):
        (folder / "a" / "notes.txt").write_text("x", encoding="utf-8")
        removed = cli("runs", "rm", folder / "a", folder / "b", "--yes").out
        assert removed == f"deleted {folder / 'a'}, and with it notes.txt\ndeleted {folder / 'b'}\n"

    def test_one_refusal_and_nothing_is_touched(self, cli, folder):
        with RunLock(folder / "b"):
            outcome = cli("runs", "rm", folder / "a", folder / "b", "--yes")
            assert outcome.code == 2
            assert "b is in use by" in outcome.sentence
        assert cli("runs", "rm", folder / "a", folder / "empty", "--yes").sentence.endswith(
            "rm deletes runs only"
        )
        assert {path.name for path in folder.iterdir()} == {"a", "b", "c", "empty"}

    @pytest.mark.parametrize(
        ("answer", "gone"), [("y", True), ("yes", True), ("", False), ("n", False), ("\x04", False)]
    )
    def test_on_a_terminal_it_asks(self, folder, answer, gone):
        (folder / "a" / "notes.txt").write_text("x", encoding="utf-8")
        said, code = on_terminal(
            ["runs", "rm", str(folder / "a")], f"{answer}\n" if answer != "\x04" else answer
        )
        assert code == 0
        assert "finished, 1,000 steps, and with it notes.txt" in said
        assert "Delete this run permanently? [y/N]" in said
        assert ("nothing was deleted" in said) == (not gone)
        assert (folder / "a").exists() == (not gone)


class TestExport:
    def test_csv_and_json_as_files(self, cli, folder):
        outcome = cli("export-results", folder, "--csv", folder / "x.csv", "--json", folder / "x.json")
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out == f"{folder}/x.csv: 3 row(s) of 3 run(s)\n{folder}/x.json: 3 row(s) of 3 run(s)\n"
        table = list(csv.DictReader(io.StringIO((folder / "x.csv").read_text(encoding="utf-8"))))
        data = json.loads((folder / "x.json").read_text(encoding="utf-8"))
        assert [row["score"] for row in table] == ["3.0", "9.0", "2.0"]
        assert [row["score"] for row in data] == [3.0, 9.0, 2.0]
        assert (table[0]["hidden_sizes"], data[0]["hidden_sizes"]) == ("[8]", [8])
        assert {path.name for path in folder.iterdir()} == {"a", "b", "c", "empty", "x.csv", "x.json"}

    def test_a_row_per_evaluation_to_the_standard_output(self, cli, folder):
        rows = list(
            csv.DictReader(io.StringIO(cli("export-results", folder, "--evaluations", "--csv", "-").out))
        )
        assert [(row["name"], row["timesteps"], row["mean_reward"]) for row in rows[:2]] == [
            ("a", "500", "1.0"),
            ("a", "1000", "3.0"),
        ]
        assert json.loads(cli("export-results", folder / "empty", "--json", "-").out) == []

    def test_a_link_stays_and_its_target_is_replaced(self, cli, folder):
        (folder / "target").write_text("old", encoding="utf-8")
        (folder / "link").symlink_to("target")
        assert cli("export-results", folder, "--json", folder / "link").code == 0
        assert (folder / "link").is_symlink()
        assert len(json.loads((folder / "target").read_text(encoding="utf-8"))) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "lits"], "unknown action 'lits'; did you mean 'list'?"),
        (["runs", "xyzzy"], "use one of list, show, diff, rm"),
        (["runs", "list", "nowhere"], "nowhere does not exist"),
        (["runs", "list", "--sort", "colour"], "--sort is 'colour'; use one of age"),
        (["runs", "list", "--status", "happy"], "--status is 'happy'; use one of running"),
        (["runs", "list", "--seed", "x"], "--seed"),
        (["runs", "list", "--sorted"], "unknown flag '--sorted'"),
        (["runs", "show"], "rl-training runs show --help"),
        (["runs", "show", "nowhere"], "nowhere does not exist; give a run folder"),
        (["runs", "show", "empty"], "empty is not a run (empty)"),
        (["runs", "diff", "a"], "diff needs two runs or more"),
        (["runs", "diff", "a", "empty"], "empty is not a run"),
        (["runs", "rm"], "rm needs runs"),
        (["runs", "rm", "nowhere", "--yes"], "nowhere does not exist"),
        (["export-results", "."], "needs --csv FILE or --json FILE"),
        (["export-results", ".", "--csv", "x", "--json", "x"], "both name x"),
        (["export-results", ".", "--csv", "empty"], "empty is not a regular file"),
        (["export-results", ".", "--csv", "x", "--json", "./x"], "both name x"),
        (
            ["export-results", ".", "--csv", "no/where.csv"],
            "no/where.csv cannot be written: there is no folder no; create it first",
        ),
        (["export-results", "nowhere", "--csv", "-"], "nowhere does not exist"),
    ],
)
def test_bad_input_is_one_sentence(cli, folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    before = set(folder.rglob("*"))
    outcome = cli(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.sentence
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize("words", ["runs --help", "runs list --help", "runs show --help", "runs diff --help",
                                   "runs rm --help", "export-results --help"])  # fmt: skip
def test_help(cli, words):
    outcome = cli(*words.split())
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("usage: rl-training ")
    if "list" in words or "export" in words:
        assert "mean return of the last tenth" in " ".join(outcome.out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "list", "."],
        ["runs", "list", ".", "--json"],
        ["runs", "diff", "a", "b"],
        ["runs", "rm", "a", "--yes"],
        ["export-results", ".", "--csv", "-"],
    ],
)
def test_what_is_quick_imports_nothing_heavy(folder, arguments):
    script = (
        "import sys; from rl_training.cli import main\n"
        f"assert main({arguments!r}) == 0\n"
        "print(sorted({'torch', 'numpy', 'gymnasium', 'matplotlib', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_load_runs_imports_nothing_heavy(folder):
    script = (
        "import sys, rl_training; assert len(rl_training.load_runs('.').rows()) == 3\n"
        "print(sorted({'torch', 'numpy', 'gymnasium', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def on_terminal(arguments: list[str], typed: str = "", **environment: str) -> tuple[str, int]:
    """Return what a command prints on a terminal of 120 columns, and how it ends."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(
            sys.executable,
            [*COMMAND, *arguments],
            os.environ | {"COLUMNS": "120", "TERM": "xterm"} | environment,
        )
    said = b""
    try:
        os.write(terminal, typed.encode())
        while part := os.read(terminal, 1 << 16):
            said += part
    except OSError:  # a terminal whose program has ended
        pass
    finally:
        os.close(terminal)
    return said.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_table_is_drawn_on_a_terminal(folder):
    said, code = on_terminal(["runs", "list", str(folder)])
    assert code == 0
    assert "\x1b[31mfailed" in said


def test_what_a_stranger_wrote_is_not_obeyed_by_a_terminal(folder):
    run_folder(folder, "d", env_id="\x1b[31mred")
    (folder / "d" / "config.yaml").write_text('note: "\\e[31mred"\n', encoding="utf-8")
    said, code = on_terminal(["export-results", str(folder / "d"), "--csv", "-"])
    assert code == 0
    assert said.count("?[31mred") == 2
    assert "\x1b" not in said


def test_a_terminal_that_knows_ascii_alone(folder):
    run_folder(folder, "é[bold]", seed=4)
    said, code = on_terminal(["runs", "list", str(folder)], PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert code == 0
    assert said.isascii()
    assert "?[bold]" in said


def test_a_reader_that_goes_away_is_no_fault(folder):
    for number in range(300):
        run_folder(folder, f"{number}__{'x' * 200}")
    with subprocess.Popen(
        [*COMMAND, "runs", "list", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_killed_run_is_abandoned_and_one_in_training_runs(cli, tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "100000000", "--quiet"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 100
        while not list(tmp_path.glob("runs/*/metrics.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (row,) = json.loads(cli("runs", "list", tmp_path / "runs", "--json").out)
        assert row["status"] == "running"
        assert f"in use by process {process.pid}" in cli("runs", "rm", row["path"], "--yes").sentence
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (row,) = json.loads(cli("runs", "list", tmp_path / "runs", "--json").out)
    assert row["status"] == "abandoned"
    assert cli("runs", "rm", row["path"], "--yes").code == 0
    assert list((tmp_path / "runs").iterdir()) == []
