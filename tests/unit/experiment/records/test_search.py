"""Runs found by folder and by pattern, and their rows."""

import json
import sys
from dataclasses import fields

import pytest

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.records.search import row_of, run_at, search
from support.folders import run_folder


@pytest.fixture
def folder(tmp_path):
    """Three runs, one of them deeper, and what is none."""
    run_folder(tmp_path, "a", seed=1)
    run_folder(tmp_path, "b", seed=2, algo="dqn", env_id="ALE/Pong-v5", status="failed")
    run_folder(tmp_path / "deep" / "er", "c", seed=3)
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos" / "2026").mkdir(parents=True)
    (tmp_path / ".0123.tmp").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "b")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    return tmp_path


def names(runs):
    return [run.name for run in runs]


def test_a_folder_is_searched_for_runs(folder):
    runs = rl_training.load_runs(folder)
    assert names(runs) == ["a", "b", "deep/er/c"]
    assert [run.path for run in runs] == [folder / "a", folder / "b", folder / "deep/er/c"]


def test_launched_runs_are_found_four_deep_and_no_deeper(tmp_path):
    """`zoo run` and `benchmark` put them there, with a lock and records beside them."""
    run_folder(tmp_path / "zoo" / "runs" / "ppo__seed1", "one", seed=1)
    (tmp_path / "zoo" / ".lock").write_text("1", encoding="utf-8")
    (tmp_path / "zoo" / "jobs").mkdir()
    run_folder(tmp_path / "a" / "b" / "c" / "d", "two", seed=2)
    assert names(rl_training.load_runs(tmp_path)) == ["zoo/runs/ppo__seed1/one"]


def test_what_is_no_run_is_told_once_and_links_are_not_followed(folder):
    others = {record.name: record.problem for record in search(folder) if not record.is_run}
    assert others["empty"] == "empty"
    assert others["latest"] == "a link; give its path to follow it"
    assert set(others) == {"empty", "latest", "photos"}


def test_a_link_that_is_named_is_followed_and_nothing_comes_twice(folder):
    assert names(rl_training.load_runs(folder / "latest")) == ["latest"]
    assert names(rl_training.load_runs(folder / "b", folder, folder / "b")) == ["b", "a", "deep/er/c"]


def test_patterns(folder):
    assert names(rl_training.load_runs(f"{folder}/[ab]")) == ["a", "b"]
    assert names(rl_training.load_runs(f"{folder}/*")) == ["a", "b", "er/c"]
    assert names(rl_training.load_runs(f"{folder}/**/c")) == ["c"]


def test_runs_in_the_working_folder_by_default(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    run_folder(folder / "elsewhere" / "runs", "own")
    assert names(rl_training.load_runs()) == ["own"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("nowhere", "nowhere does not exist; give a folder of runs"),
        ("file", "file is not a folder"),
        ("x*", "no folder matches"),
        ("", "^'' does not exist; give a folder of runs"),
        ("\0", "does not exist"),
    ],
)
def test_what_is_not_there_is_told(folder, monkeypatch, pattern, words):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=words.replace("?", r"\?")):
        rl_training.load_runs(pattern)


def test_an_empty_folder_has_no_runs(folder):
    runs = rl_training.load_runs(folder / "empty")
    assert (len(runs), runs.rows(), repr(runs)) == (0, [], "<0 runs>")


def test_where_and_slices(folder):
    runs = rl_training.load_runs(folder)
    assert names(runs.where(algo=["ppo"])) == ["a", "deep/er/c"]
    assert names(runs.where(env_id=["ALE/*"])) == ["b"]
    assert names(runs.where(status=["failed", "paused"], seed=[2])) == ["b"]
    assert names(runs.where(status=["paused"])) == []
    assert names(runs[1:].where()) == ["b", "deep/er/c"]


def test_rows_are_tidy(folder):
    rows = rl_training.load_runs(folder).rows()
    assert len({tuple(row) for row in rows}) == 1
    assert [row["seed"] for row in rows] == [1, 2, 3]
    assert rows[0]["learning_rate"] == 0.001
    assert rows[0]["env_kwargs.gravity"] == 9.8
    assert json.dumps(rows)


def test_a_row_per_evaluation(folder):
    rows = rl_training.load_runs(folder).rows(evaluations=True)
    assert len(rows) == 6
    assert rows[1] == {
        "name": "a", "path": str(folder / "a"), "algo": "ppo", "env_id": "CartPole-v1", "seed": 1,
        "status": "finished", "timesteps": 1000, "mean_reward": 3.0, "std_reward": 1.0, "mean_ep_length": 5.0,
        "num_episodes": 2,
    }  # fmt: skip


def test_no_setting_has_the_name_of_a_column(folder):
    columns = set(row_of(rl_training.load_runs(folder)[0])) - {"algo", "env_id", "seed", "total_timesteps"}
    classes = [TrainConfig, *(face.config_class for face in ALGORITHMS.values())]
    assert not columns & {item.name for config in classes for item in fields(config)}


@pytest.mark.extra
def test_a_frame(folder):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: run make test-extras")
    frame = rl_training.load_runs(folder).to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.groupby("algo")["score"].mean().to_dict() == {"dqn": 3.0, "ppo": 3.0}
    curves = rl_training.load_runs(folder).to_frame(evaluations=True)
    assert curves.groupby("timesteps")["mean_reward"].mean().to_dict() == {500: 1.0, 1000: 3.0}


def test_a_frame_without_pandas(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="to_frame needs pandas"):
        rl_training.load_runs(folder).to_frame()


def test_a_path_within_a_run_means_the_run(folder, monkeypatch):
    for path in ("", "checkpoints", "checkpoints/step_1000", "checkpoints/last", "last"):
        assert run_at(folder / "a" / path).seed == 1, path
    monkeypatch.chdir(folder / "a" / "checkpoints")
    assert run_at(".").seed == 1
    assert run_at("step_1000").seed == 1


@pytest.mark.parametrize(
    ("path", "words"), [("empty", r"is not a run \(empty\)"), ("nowhere", "does not exist")]
)
def test_a_path_that_is_no_run(folder, path, words):
    with pytest.raises(UserError, match=words):
        run_at(folder / path)


def test_what_a_launch_keeps_beside_its_runs_is_no_broken_run(tmp_path):
    launch = tmp_path / "zoo"
    run_folder(launch / "runs" / "ppo__seed1", "one", seed=1)
    for name in ("jobs", "results", "photos"):
        (launch / name).mkdir()
        (launch / name / "x.json").write_text("{}", encoding="utf-8")
    (launch / "runs" / "ppo__seed2").mkdir()
    (launch / "runs" / "ppo__seed2" / "job.yaml").write_text("algo: ppo\n", encoding="utf-8")
    assert names(search(launch)) == ["photos", "runs/ppo__seed1/one", "runs/ppo__seed2"]
    assert names(search(tmp_path)) == ["zoo/photos", "zoo/runs/ppo__seed1/one", "zoo/runs/ppo__seed2"]
    assert search(launch)[2].problem == "the folder of a job whose run has not started"


def test_folders_that_are_called_so_elsewhere_are_told_and_runs_in_them_found(tmp_path):
    (tmp_path / "jobs").mkdir()
    assert names(search(tmp_path)) == ["jobs"]
    (tmp_path / "runs").mkdir()
    run_folder(tmp_path, "results", seed=1)
    run_folder(tmp_path / "jobs", "two", seed=2)
    assert names(search(tmp_path)) == ["jobs/two", "results", "runs"]
