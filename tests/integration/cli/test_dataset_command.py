"""`rl-training dataset`: what it prints and writes, and its mistakes."""

import json

import numpy as np
import pytest

from rl_training.datasets.opening import open_dataset
from support.datasets import tiny_dataset


@pytest.fixture
def table(tmp_path):
    (tmp_path / "t.csv").write_text(
        "x_0,x_1,a,reward,terminal,who\n"
        + "".join(f"{n},1,{n % 2 * 2},0.5,{n % 3 == 2},e{n // 3}\n" for n in range(9))
    )
    return tmp_path / "t.csv"


def test_show_as_page_json_and_picture(cli, tmp_path):
    folder, picture = tiny_dataset("Pendulum-v1"), tmp_path / "p.png"
    page = cli("dataset", "show", folder, "--plot", str(picture))
    assert page.code == 0
    for text in (
        "12 (0 terminated, 12 truncated)",
        "240 (",
        "Pendulum-v1",
        "returns",
        "lengths",
        "bins used",
        "####",
    ):
        assert text in page.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(cli("dataset", "show", folder, "--json").out)
    assert (found["episodes"], found["steps"], found["env_id"]) == (12, 240, "Pendulum-v1")
    assert sum(found["return_histogram"]["counts"]) == 12
    assert found["actions"]["bounds"] == [[-2.0], [2.0]]
    assert sum(found["actions"]["histograms"][0]) == 240
    dataset = open_dataset(folder)
    assert found["observations"][0]["low"] == dataset.obs.min(axis=0).tolist()
    discrete = json.loads(cli("dataset", "show", tiny_dataset("CartPole-v1"), "--json").out)
    assert sum(discrete["actions"]["counts"][0].values()) == discrete["steps"]


def test_import_with_named_columns(cli, table, tmp_path):
    flags = ["--observations", "x", "--actions", "a", "--episode-id", "who", "--format", "arrow"]
    told = cli("dataset", "import", str(table), "--to", str(tmp_path / "d"), *flags)
    assert (told.code, told.out.strip()) == (0, f"{tmp_path / 'd'}: 3 episodes")
    found = open_dataset(str(tmp_path / "d"))
    assert found.obs[:, 0].tolist() == [0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8]
    assert found.actions.tolist() == [0, 2, 0, 2, 0, 2, 0, 2, 0]
    assert found.terminated.tolist() == [False, False, True] * 3


def test_a_tilde_is_the_home_folder_where_datasets_are_written_too(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tiny_dataset("CartPole-v1")
    assert cli("dataset", "merge", folder, folder, "--to", "~/m").code == 0
    assert cli("dataset", "split", "~/m", "--fractions", "0.5", "0.5", "--to", "~/a", "~/b").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "m"]
    assert open_dataset("~/a").num_episodes == 12


def test_merge_and_split(cli, table, tmp_path):
    folder = tiny_dataset("CartPole-v1")
    assert cli("dataset", "merge", folder, folder, "--to", str(tmp_path / "m")).code == 0
    assert open_dataset(str(tmp_path / "m")).num_episodes == 24
    parts = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert (
        cli("dataset", "split", folder, "--fractions", "0.75", "0.25", "--to", *parts, "--seed", "3").code
        == 0
    )
    one, other = (open_dataset(part) for part in parts)
    assert (one.num_episodes, other.num_episodes) == (9, 3)
    assert one.recorded_in.env_id == "CartPole-v1"
    assert (
        np.sort(np.append(one.lengths, other.lengths)).tolist()
        == np.sort(open_dataset(folder).lengths).tolist()
    )


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["shwo"], "unknown action 'shwo'; did you mean 'show'?"),
        (["show"], "dataset show needs a dataset"),
        (["show", "nothing.npz"], "does not exist"),
        (["import", "nothing.csv", "--to", "new"], "there is no file nothing.csv"),
        (["import", "t.csv"], "needs a table and --to"),
        (["import", "t.csv", "--to", "."], ". exists"),
        (["import", "t.csv", "--to", "a/b/c"], "there is no folder a/b"),
        (["import", "t.csv", "--to", "new"], "there is no column for observations"),
        (["merge", "t.csv", "--to", "new"], "needs two datasets and --to"),
        (["split", "t.csv", "--to", "new"], "one folder per fraction"),
        (["split", "t.csv", "--to", "new", "new"], "two parts have the same folder"),
        (["split", "t.csv", "--to", "new", "./new"], "two parts have the same folder"),
    ],
)
def test_a_mistake_is_one_error_and_nothing_is_written(words, culprit, cli, table, monkeypatch):
    monkeypatch.chdir(table.parent)
    told = cli("dataset", *words)
    assert told.code == 2
    assert culprit in told.err
    assert [path.name for path in table.parent.iterdir()] == ["t.csv"]
