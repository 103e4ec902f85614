"""A checkpoint that replaces another of the same name: at every instant one of the two can be found and is whole."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig
from rl_training.core.spaces.as_data import space_to_data
from rl_training.core.types import Progress
from rl_training.experiment.checkpoints.folders import (
    delete_newer,
    find_checkpoint,
    prune,
    read_newest,
    read_pointer,
    restore_backups,
    write_pointer,
)
from rl_training.experiment.checkpoints.format import read_checkpoint, write_checkpoint

CONFIG = TrainConfig(algo="ppo", env_id="CartPole-v1", algorithm=PPOConfig(hidden_sizes=(3,)))
SPACES = {
    "spaces": {
        "observation_space": space_to_data(spaces.Box(-1, 1, (1,))),
        "action_space": space_to_data(spaces.Discrete(2)),
    }
}
CHANGES = ("replace", "mkdir", "unlink", "rmdir", "fsync")


class Killed(BaseException):
    """Ends everything here and now: no handler that a program has for errors may run."""


def write(folder: Path, number: int) -> None:
    state = {"model": {"weight": torch.full((3, 3), float(number))}}
    write_checkpoint(folder, config=CONFIG, progress=Progress(number, 1, 9), state=state, facts=SPACES)


def found(folder: Path) -> int:
    """Return which of the two is there, after verifying it."""
    return read_checkpoint(find_checkpoint(folder)).progress.timesteps


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> bool:
    """Do the work, but for the change of a file with this number and all that follow; tell whether it came so far."""
    calls = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= number:
                raise Killed
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        for name in CHANGES:
            patch.setattr(os, name, counted(getattr(os, name)))
        work()
    return calls >= number


@pytest.mark.parametrize("lives", [1, 2])
def test_killed_at_any_change_either_the_old_or_the_new_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    """With two lives the second is killed at the same place, among the leftovers of the first."""
    seen, number = [], 1
    while True:
        folder = tmp_path / str(number) / "step_7"
        write(folder, 1)
        for life in range(lives):
            killed = killed_at(number, monkeypatch, lambda folder=folder, life=life: write(folder, 2 + life))
        seen.append(found(folder))
        restore_backups(folder.parent)
        assert folder.is_dir()
        assert found(folder) == seen[-1]
        if not killed:
            break
        number += 1
    assert number > 6
    assert seen == sorted(seen)
    assert {seen[0], seen[-1]} == {1, 1 + lives}


def test_a_leftover_beside_its_successor_is_not_put_back(tmp_path: Path) -> None:
    write(tmp_path / "step_7", 1)
    (tmp_path / "step_7").rename(tmp_path / ".step_7.old")
    write(tmp_path / "other", 2)
    (tmp_path / "other").rename(tmp_path / "step_7")
    assert found(tmp_path / "step_7") == 2
    restore_backups(tmp_path)
    assert found(tmp_path / "step_7") == 2


def steps(checkpoints: Path, *numbers: int, **pointers: int) -> Path:
    for number in numbers:
        (checkpoints / f"step_{number}").mkdir()
    for pointer, number in pointers.items():
        write_pointer(checkpoints, pointer, f"step_{number}")
    return checkpoints


def left(checkpoints: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step_")) for folder in checkpoints.glob("step_*"))


def test_the_newest_checkpoints_and_those_with_a_pointer_are_kept(tmp_path: Path) -> None:
    """By number: as words, step_900 would be newer than step_1000."""
    prune(steps(tmp_path, 100, 200, 900, 1000, 1100, best=100, last=200), keep=2)
    assert left(tmp_path) == [100, 200, 1000, 1100]
    prune(tmp_path, keep=1)
    assert left(tmp_path) == [100, 200, 1100]


@pytest.mark.parametrize(
    ("best", "expected"), [(100, "step_100"), (200, "step_200"), (1000, None), (150, None)]
)
def test_a_best_that_is_written_again_or_missing_is_pointed_to_no_more(
    tmp_path: Path, best: int, expected: str | None
) -> None:
    delete_newer(steps(tmp_path, 100, 200, 1000, best=best, last=1000), "step_200")
    assert left(tmp_path) == [100, 200]
    assert read_pointer(tmp_path, "best") == expected


def test_a_folder_newer_than_the_last_one_is_not_read(tmp_path: Path) -> None:
    """A killed process may have left it incomplete."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    for number in (100, 200, 300):
        write(checkpoints / f"step_{number}", number)
    write_pointer(checkpoints, "last", "step_200")
    assert read_newest(tmp_path).progress.timesteps == 200
    assert read_newest(tmp_path, before="step_200").progress.timesteps == 100
