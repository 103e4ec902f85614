"""A short version of `make chaos-offline`: a run that learns from a dataset and a recording, each killed once."""

from pathlib import Path
from types import ModuleType

import pytest

from loading import load_file
from rl_training.algorithms import ALGORITHMS

pytestmark = [pytest.mark.fault, pytest.mark.slow]


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend("scripts")
    return load_file("scripts/chaos_offline.py")


def test_every_algorithm_that_needs_a_dataset_is_killed(chaos: ModuleType) -> None:
    needing = {name for name, face in ALGORITHMS.items() if face.config_class.needs_dataset}
    assert needing
    assert needing | {"td3", "sac", "dqn"} == set(chaos.learning_algorithms())


@pytest.mark.parametrize("what", ["BC, Pendulum", "record, hdf5"])
def test_what_is_killed_and_goes_on_leaves_the_same_bytes(
    what: str, chaos: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(chaos, "ALSO_FROM_DATA", ())
    monkeypatch.setattr(chaos, "learning_algorithms", lambda: ["bc"])
    (work,) = [work for work in chaos.all_work(tmp_path, 480) if work.title == what]
    trial = chaos.Killer(work, tmp_path / "torture", chaos.random.Random(1)).torture(1)
    assert len(trial.kills) == 1
    assert trial.differences == []


def test_a_difference_is_found(chaos: ModuleType, tmp_path: Path) -> None:
    work = chaos.Work(("record",), "record")
    for name in ("one", "other"):
        (tmp_path / name / "data set" / "data").mkdir(parents=True)
        (tmp_path / name / "data set" / "data" / "metadata.json").write_text(name)
    assert work.differences(tmp_path / "one", tmp_path / "other") == ["other: metadata.json"]
    assert work.differences(tmp_path / "one", tmp_path / "one") == []
