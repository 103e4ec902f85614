"""A short version of `make chaos-games`: a run of a game is killed once and resumed."""

from pathlib import Path
from types import ModuleType

import pytest

from loading import load_file
from rl_training.cli.train import run as train
from rl_training.core.errors import UserError

pytestmark = [pytest.mark.fault, pytest.mark.slow]


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend("scripts")
    return load_file("scripts/chaos_games.py")


def test_what_is_killed_is_of_every_kind(chaos: ModuleType) -> None:
    titles = " ".join(chaos.SCENARIOS)
    for part in ("at once", "in turns", "separate", "Recurrent", "masks", "DQN", "worker", "MAPPO", "pool"):
        assert part in titles
    assert len(chaos.all_work(100)) * 3 >= 40


def test_every_run_is_accepted(chaos: ModuleType, tmp_path: Path) -> None:
    """The last setting stops it: it is the only thing to be refused."""
    for work in chaos.all_work(100):
        with pytest.raises(UserError, match="no such function") as raised:
            train([*work.flags[1:], "--output-dir", str(tmp_path), "--device", "no such function"])
        assert "device" in str(raised.value), work.title


@pytest.mark.parametrize("title", ["PPO, in turns, separate policies"])
def test_a_game_that_is_killed_and_resumed_leaves_the_same_bytes(
    title: str, chaos: ModuleType, tmp_path: Path
) -> None:
    (work,) = chaos.all_work(1_200, title)
    trial = chaos.Killer(work, tmp_path / "torture", chaos.random.Random(1)).torture(1)
    assert len(trial.kills) == 1
    assert trial.differences == []
