"""`metadata.json`: settings, versions, machine and times, enough to repeat the run."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.files import MAX_METADATA_BYTES, read_mapping, write_json
from rl_training.version import __version__

PACKAGES = (
    "torch", "numpy", "gymnasium", "safetensors", "mujoco", "ale-py", "box2d", "opencv-python-headless",
    "opencv-python",
)  # fmt: skip


MAX_RESUMES = 200
"""Resumes that are recorded, so that the file stays below its limit."""


class Metadata:
    """Writes `metadata.json` at the start and at every change of status."""

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        arguments: Sequence[str] | None = None,
        started_from: dict[str, Any] | None = None,
        *,
        engine: dict[str, Any] | None = None,
    ) -> None:
        """`arguments` are those of the command line, by default `sys.argv`; `engine` is what `engine: auto` chose."""
        self.path = run_dir / "metadata.json"
        self.data: dict[str, Any] = {
            "status": "running",
            "algo": config.algo,
            "env_id": config.env_id,
            "seed": config.seed,
            "arguments": list(sys.argv if arguments is None else arguments),
            "config_fingerprint": config.fingerprint(),
            "reproducible": config.reproducible,
            "started": _now(),
            "git_commit": _git_commit(),
            "versions": dict(versions()),
            "machine": machine(),
            "num_threads": config.num_threads,
            "resumes": [],
        }
        self.data |= {} if started_from is None else {"started_from": started_from}
        self._engine = {} if engine is None else {"engine": engine}
        self.data |= self._engine

    def resumed(self, previous: dict[str, Any], timesteps: int) -> None:
        """Keep the record of the first start and add this one."""
        first = {name: value for name, value in self.data.items() if name not in self._engine}
        current, self.data = self.data, first | previous
        for ended in ("error", "finished", "stop_reason", "metrics"):
            self.data.pop(ended, None)
        self.data["status"] = "running"
        again = {key: current[key] for key in ("arguments", "git_commit", "versions", "machine")}
        self._list("resumes").append({"started": _now(), "timesteps": timesteps, **again, **self._engine})
        self.data["resumes"] = self.data["resumes"][-MAX_RESUMES:]

    def restarted(self, fault: str) -> None:
        """Record a restart within the same process."""
        self._list("restarts").append({"time": _now(), "fault": fault})
        for ended in ("error", "finished"):
            self.data.pop(ended, None)
        self.write(status="running")

    def _list(self, name: str) -> list[Any]:
        """Return a list in the metadata; a damaged entry is replaced."""
        if not isinstance(self.data.get(name), list):
            self.data[name] = []
        found: list[Any] = self.data[name]
        return found

    def write(self, **changes: Any) -> None:
        """Merge `changes` and replace the file."""
        self.data |= changes
        write_json(self.path, self.data)

    def finish(self, status: str, **changes: Any) -> None:
        """Record how the run ended."""
        self.write(status=status, finished=_now(), **changes)


@lru_cache(maxsize=1)
def versions() -> Mapping[str, str]:
    """Return the versions of Python, this package and its dependencies; cached, because the lookup is slow."""
    found = {"python": platform.python_version(), "rl_training": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def surroundings(config: TrainConfig) -> dict[str, Any]:
    """Return the versions and settings that must not change for a resumed run to be bit-for-bit identical."""
    names = ["python", "torch", "numpy", "gymnasium", "mujoco", "box2d", "ale-py", "rl_training"]
    if config.preprocessing != "none":
        names += ["opencv-python-headless", "opencv-python"]
    found = versions()
    return {name: found[name] for name in names if name in found} | {
        "processor": _processor(),
        "num_threads": config.num_threads,
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return one text per entry that changed since a checkpoint was written."""
    return [
        f"{name} was {before.get(name)} when the checkpoint was written and is {now.get(name)}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def read_metadata(run_dir: Path) -> dict[str, Any]:
    """Return a run's metadata; empty if it cannot be read."""
    try:
        return read_mapping(run_dir / "metadata.json", MAX_METADATA_BYTES)
    except UserError:
        return {}


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "executable": sys.executable,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _git_commit() -> str | None:
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
