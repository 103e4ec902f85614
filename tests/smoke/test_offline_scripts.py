"""The scripts that measure learning from data: what they keep, and what they say, without training anything."""

import json

import pytest

from loading import load_file


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The script behind `make offline`, with two small tasks and results in a folder of their own."""
    module = load_file("scripts/offline.py")
    tasks = {name: module.Task(name, 10, {"bc": (), "cql": ()}, num_seeds=2) for name in ("one", "two")}
    monkeypatch.setattr(module, "TASKS", tasks)
    monkeypatch.setattr(module, "DATA", tmp_path / "offline.json")
    return module


def test_every_finished_run_is_kept_beside_those_of_other_processes(offline, monkeypatch):
    trained = []

    def train(dataset, algo, seed):
        if trained:  # another process has saved a run meanwhile, and this one its first
            others = json.loads(offline.DATA.read_text(encoding="utf-8"))
            offline.DATA.write_text(json.dumps(others | {"theirs": {}}), encoding="utf-8")
        trained.append((dataset, algo, seed))
        if len(trained) == 4:
            raise SystemExit("interrupted")
        return {"returns": [1.0], "updates": 10}

    monkeypatch.setattr(offline, "trained", train)
    with pytest.raises(SystemExit):
        offline.fill(["one"], at_once=1)
    assert set(offline.saved()) == {"one bc 1 10", "one bc 2 10", "one cql 1 10", "theirs"}
    assert offline.complete("one", offline.saved()) == ["bc"]
    offline.fill(["one"], at_once=1)
    assert trained[-2:] == [("one", "cql", 2)] * 2, "only what was missing"
    assert len(trained) == 5
    assert offline.complete("one", offline.saved()) == ["bc", "cql"]


def test_a_task_that_does_not_exist_is_refused_with_the_names_of_all(offline, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["offline.py", "three"])
    with pytest.raises(SystemExit):
        offline.main()
    assert "no task is called three: choose from one, two" in capsys.readouterr().err


def test_only_a_busy_machine_is_remarked():
    module = load_file("scripts/offline_memory.py")
    assert module.remark(0.2) == []
    assert "the machine had other work (load 3.4 on " in module.remark(3.42)[-1]
