"""Deleting runs: only runs, none that is in use, and never half of one under its name."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.records import remove
from rl_training.experiment.records.remove import check_removable, foreign_files, leftovers, remove_runs
from support.folders import run_folder


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_runs_are_removed_and_others_stay(tmp_path):
    one, two = run_folder(tmp_path, "one"), run_folder(tmp_path, "two")
    kept = run_folder(tmp_path, "kept")
    remove_runs([one, two])
    assert list(tmp_path.iterdir()) == [kept]


def test_links_inside_of_a_run_are_removed_and_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x", encoding="utf-8")
    one = run_folder(tmp_path, "one")
    (one / "wandb").symlink_to(outside)
    (one / "tensorboard").symlink_to(outside / "precious")
    remove_runs([one])
    assert {path.name for path in files(tmp_path)} == {"outside", "precious"}
    assert (outside / "precious").read_text(encoding="utf-8") == "x"


def test_a_run_that_is_in_use_is_refused(tmp_path):
    one = run_folder(tmp_path)
    before = files(one)
    with RunLock(one), pytest.raises(UserError, match="is in use by"):
        check_removable(one)
    reading, writing = os.pipe()
    owner = os.fork()
    if owner == 0:
        RunLock(one).__enter__()
        os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    try:
        for refuse in (check_removable, lambda path: remove_runs([path])):
            with pytest.raises(UserError, match=f"is in use by process {owner}; wait for it to end"):
                refuse(one)
        assert files(one) == before
    finally:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
    remove_runs([one])
    assert not one.exists()


def test_a_run_that_is_taken_after_the_check_is_refused_too(tmp_path, monkeypatch):
    """Whoever resumes it between the check and the removal has the lock, and keeps the run."""
    one, check = run_folder(tmp_path), remove.check_removable
    owner = RunLock(one)

    def taken(path):
        check(path)
        owner.__enter__()

    monkeypatch.setattr(remove, "check_removable", taken)
    try:
        with pytest.raises(UserError, match="is in use by this process"):
            remove_runs([one])
    finally:
        owner.__exit__()
    assert (one / "metadata.json").exists()
    assert leftovers(tmp_path) == []


def test_a_link_to_a_run_is_refused(tmp_path):
    one = run_folder(tmp_path)
    (tmp_path / "link").symlink_to(one)
    for path in (tmp_path / "link", Path(f"{tmp_path}/link/")):
        with pytest.raises(
            UserError, match=f"link is a link, and rm does not follow links; give the folder itself, {one}"
        ):
            remove_runs([path])
    assert one.exists()


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    run_folder(tmp_path / "runs")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for name, words in (
        ("empty", r"is not a run \(empty\)"),
        ("runs", "is not a run"),
        ("file", "is not a run"),
        ("nowhere", "does not exist"),
        ("runs/one/checkpoints/step_1000", "is not a run"),
        ("runs/one/checkpoints", "is not a run"),
    ):
        with pytest.raises(UserError, match=words):
            remove_runs([tmp_path / name])
    assert (tmp_path / "runs" / "one" / "checkpoints" / "step_1000").is_dir()


def test_the_folder_that_we_are_in_is_refused(tmp_path, monkeypatch):
    one = run_folder(tmp_path)
    for place in (one, one / "checkpoints"):
        monkeypatch.chdir(place)
        with pytest.raises(UserError, match="is or contains the working folder"):
            check_removable(one)


def test_what_a_killed_removal_left_is_recognised_and_goes_with_the_next(tmp_path, monkeypatch):
    one, two = run_folder(tmp_path, "one"), run_folder(tmp_path, "two")
    delete = shutil.rmtree
    child = os.fork()
    if child == 0:

        def half(folder, **options):
            delete(folder / "checkpoints")
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(remove.shutil, "rmtree", half)
        remove_runs([one])
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not one.exists()
    (left,) = leftovers(tmp_path)
    assert (left / "metadata.json").exists()
    remove_runs([two])
    assert list(tmp_path.iterdir()) == []


def test_only_what_was_meant_to_go_counts_as_left(tmp_path):
    (tmp_path / f".link{remove.REMOVED}").symlink_to(tmp_path)
    (tmp_path / f".file{remove.REMOVED}").write_text("x", encoding="utf-8")
    (tmp_path / ".0123.tmp").mkdir()
    assert leftovers(tmp_path) == []


def test_what_cannot_be_deleted_is_told(tmp_path, monkeypatch):
    one = run_folder(tmp_path)
    monkeypatch.setattr(remove.os, "rename", lambda *names: (_ for _ in ()).throw(OSError(16, "Device busy")))
    with pytest.raises(UserError, match="one cannot be removed: Device busy"):
        remove_runs([one])
    assert one.exists()
    monkeypatch.undo()

    def stuck(folder, onerror):
        try:
            raise PermissionError(13, "Permission denied", str(folder / "x"))
        except PermissionError as error:
            onerror(os.unlink, str(folder), (type(error), error, None))

    monkeypatch.setattr(remove.shutil, "rmtree", stuck)
    with pytest.raises(
        UserError, match=r"one was only partially deleted \(Permission denied: .*/x\); the next rm"
    ):
        remove_runs([one])


def test_strange_files_are_named(tmp_path):
    one = run_folder(tmp_path)
    assert foreign_files(one) == []
    (one / "notes.txt").write_text("x", encoding="utf-8")
    assert foreign_files(one) == ["notes.txt"]


def test_a_run_with_other_runs_in_it_is_refused(tmp_path):
    """Such as those of a launch whose output folder was a run."""
    one, other = run_folder(tmp_path, "one"), run_folder(tmp_path, "other")
    (one / "notes").mkdir()
    (one / "link").symlink_to(other)
    inner = run_folder(one / "runs" / "job", "two")
    before = files(tmp_path)
    with pytest.raises(UserError, match=f"one contains another run, {inner}; move or remove that run first"):
        remove_runs([one])
    assert files(tmp_path) == before
    remove_runs([inner])
    remove_runs([one])
    assert list(tmp_path.iterdir()) == [other]
