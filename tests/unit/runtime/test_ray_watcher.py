"""What a Ray cluster leaves behind is ended, and nothing else."""

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rl_training.runtime import ray_watcher

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.fixture
def processes(tmp_path):
    """A process with the mark, one with a log in the cluster's folder, and two that are not of the cluster."""
    folder, other = tmp_path / "session", tmp_path / "session_of_others"
    for each in (folder, other):
        each.mkdir()
    found = []

    def start(log, **variables):
        with (log / "log").open("ab") as file:
            found.append(subprocess.Popen(["sleep", "60"], stdout=file, env=os.environ | variables))
        return found[-1]

    marked = start(tmp_path, **{ray_watcher.VARIABLE: "mine"})
    yield folder, [marked, start(folder)], [start(other, **{ray_watcher.VARIABLE: "mines"}), start(tmp_path)]
    for process in found:
        process.kill()
        process.wait()


def watch(monkeypatch, folder, run):
    monkeypatch.setattr(ray_watcher, "GRACE", 0.2)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(str(folder).encode())))
    ray_watcher.main("mine", run)


def test_members_are_killed_after_a_while(processes, monkeypatch):
    folder, members, others = processes
    watch(monkeypatch, folder, run=1)
    assert [process.wait(5) for process in members] == [-9, -9]
    assert [process.poll() for process in others] == [None, None]


def test_what_the_run_has_forked_stays(processes, monkeypatch):
    """It may have the same logs open, as the run itself."""
    folder, (marked, logs), _ = processes
    watch(monkeypatch, folder, run=os.getpid())
    assert marked.wait(5) == -9
    assert logs.poll() is None
