"""Fixtures for tests that train: a small config, the command line in this process, and how to read run files."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str
    left: bool = False
    """It ended by leaving the process, as an argument parser's help does."""

    @property
    def sentence(self) -> str:
        """The one line on the error stream; fails if there is more than one or a traceback."""
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, f"expected one line on stderr, got:\n{self.err}"
        assert lines[0].startswith("error: ")
        assert "Traceback" not in self.err
        return lines[0]

    @property
    def warnings(self) -> list[str]:
        """The lines on the error stream, which must all be warnings."""
        lines = self.err.splitlines()
        assert all(line.startswith("warning: ") for line in lines), self.err
        return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave clusters to `make cluster`, also where Ray is installed: they take minutes and all cores."""
    if "cluster" in config.getoption("markexpr"):
        return
    for item in items:
        if item.get_closest_marker("cluster") is not None:
            item.add_marker(pytest.mark.skip(reason="it starts a Ray cluster: run make cluster"))


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are signed with a key of their own, which child processes see; the user's stays alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_runs() -> Iterator[Callable[..., bytes]]:
    """Most of a tiny run's time is its picture and waiting for the disk; few tests look at these.

    The picture is drawn where a test asks for `real_curves`, and in every process of its own. Waiting for the disk is
    left out everywhere but there: no test pulls the plug. The fixture is what draws.
    """
    from rl_training.experiment.logs import curves

    drawing = curves._draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "_draw", lambda rows, evaluations, title: b"no picture")
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield drawing


@pytest.fixture
def real_curves(quick_runs: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the learning curve for real."""
    from rl_training.experiment.logs import curves

    monkeypatch.setattr(curves, "_draw", quick_runs)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Call the command line in this process; an argument parser's exit counts as the exit code."""
    from rl_training.cli import main

    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the working folder

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        left = False
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code, left = stop.code if isinstance(stop.code, int) else 1, True
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err, left)

    return call


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Any]:
    """Return a config that trains in a tenth of a second; keywords override settings of either level."""
    from support.configs import tiny_config

    def build(algo: str = "ppo", **overrides: Any) -> Any:
        return tiny_config(algo, tmp_path / "runs", **overrides)

    return build


@pytest.fixture
def rows() -> Callable[[Path], list[dict[str, Any]]]:
    """Read a JSON-lines file strictly."""

    def read(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return read


@pytest.fixture
def read_pointer() -> Callable[[Path, str], Path]:
    """Follow `last` or `best` of a run by hand."""

    def follow(run_dir: Path, pointer: str) -> Path:
        text = (run_dir / "checkpoints" / pointer).read_text(encoding="utf-8")
        assert text.endswith("\n")
        assert "\n" not in text[:-1]
        return run_dir / "checkpoints" / text.strip()

    return follow
