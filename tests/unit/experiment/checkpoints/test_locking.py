"""The lock of a run: kept through anything but the end of its owner, and never written through."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.locking import RunLock, is_held


def held_elsewhere(run_dir: Path) -> bool:
    """Return whether another open file holds the lock, as another process would find out."""
    with (run_dir / ".lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_copy_of_the_folder_by_its_owner_keeps_the_lock(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    refused = (
        "import sys; from pathlib import Path; from rl_training.experiment.checkpoints.locking import RunLock\n"
        "RunLock(Path(sys.argv[1])).__enter__()"
    )
    with RunLock(run_dir):
        shutil.copytree(run_dir, tmp_path / "copy")
        done = subprocess.run(
            [sys.executable, "-c", refused, str(run_dir)], capture_output=True, text=True, check=False
        )
        assert f"in use by process {os.getpid()}" in done.stderr
    assert not held_elsewhere(run_dir)


def test_a_forked_worker_does_not_keep_the_lock(tmp_path):
    """The owner is killed; its worker lives on."""
    reading, writing = os.pipe()
    owner = os.fork()
    if owner == 0:
        lock = RunLock(tmp_path)
        lock.__enter__()
        worker = os.fork()
        if worker == 0:
            signal.pause()
        os.write(writing, str(worker).encode())
        signal.pause()
    worker = int(os.read(reading, 32))
    try:
        assert held_elsewhere(tmp_path)
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        os.kill(worker, 0)
        with RunLock(tmp_path):
            pass
    finally:
        for process in (owner, worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_a_worker_that_leaves_the_block_does_not_take_the_lock_away(tmp_path):
    with RunLock(tmp_path) as lock:
        worker = os.fork()
        if worker == 0:
            lock.__exit__(None, None, None)
            os._exit(0)
        assert os.waitpid(worker, 0)[1] == 0
        assert held_elsewhere(tmp_path)


def test_a_lock_with_another_name_is_replaced_and_not_written(tmp_path):
    run_dir, precious = tmp_path / "run", tmp_path / "precious"
    run_dir.mkdir()
    precious.write_text("years of work", encoding="utf-8")
    os.link(precious, run_dir / ".lock")
    with RunLock(run_dir):
        assert precious.read_text(encoding="utf-8") == "years of work"
        assert (run_dir / ".lock").read_text(encoding="utf-8") == f"{os.getpid()}\n"
        assert held_elsewhere(run_dir)
    assert os.listdir(run_dir) == [".lock"]


def test_a_lock_file_that_is_replaced_while_it_is_taken_belongs_to_who_replaced_it(tmp_path, monkeypatch):
    """Between its opening and its locking: whoever locks the old file owns nothing, and must not delete the new one."""
    flock, path, others = fcntl.flock, tmp_path / ".lock", []

    def late(*arguments):
        if not others:
            path.unlink(missing_ok=True)
            others.append(path.open("wb"))
            flock(others[0], fcntl.LOCK_EX)
        return flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    try:
        with pytest.raises(UserError, match="is in use by process"):
            RunLock(tmp_path).__enter__()
        assert os.path.samestat(os.fstat(others[0].fileno()), path.stat())
    finally:
        others[0].close()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_plain_file_is_refused(tmp_path, kind):
    make = {
        "link": lambda path: path.symlink_to(tmp_path / "elsewhere"),
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
    }
    make[kind](tmp_path / ".lock")
    with pytest.raises(UserError, match=r"\.lock"):
        RunLock(tmp_path).__enter__()
    assert os.listdir(tmp_path) == [".lock"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_is_named_as_such(tmp_path, monkeypatch, code):
    def unable(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", unable)
    with pytest.raises(UserError, match="does not support locks; use an output_dir on another"):
        RunLock(tmp_path).__enter__()


def test_another_error_of_the_lock_is_named_as_it_is(tmp_path, monkeypatch):
    def unable(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", unable)
    with pytest.raises(UserError, match=r"\.lock cannot be locked: Input/output error"):
        RunLock(tmp_path).__enter__()


def test_a_process_does_not_lock_twice(tmp_path):
    with RunLock(tmp_path), pytest.raises(UserError, match="this process"):
        RunLock(tmp_path).__enter__()
    with RunLock(tmp_path):
        pass


def test_whoever_looks_learns_whether_it_is_held_and_changes_nothing(tmp_path):
    assert not is_held(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with RunLock(tmp_path):
        assert is_held(tmp_path)
        assert (tmp_path / ".lock").read_text(encoding="utf-8") == f"{os.getpid()}\n"
    assert not is_held(tmp_path)


def test_several_may_look_at_once(tmp_path):
    """Another look is not the run's owner."""
    with (tmp_path / ".lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not is_held(tmp_path)


def test_a_look_at_the_lock_keeps_nobody_from_taking_it(tmp_path):
    """Looking takes it for an instant: whoever wants it in that instant tries again."""
    with (tmp_path / ".lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.01, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with RunLock(tmp_path):
            assert is_held(tmp_path)


def test_of_a_lock_that_may_not_be_looked_at_the_caller_decides(tmp_path, monkeypatch):
    """Who deletes runs takes it for held; who launches them does not wait for ever."""

    def refuse(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        looks = is_held(tmp_path), is_held(tmp_path, if_unknown=False)
    assert looks == (True, False)
