"""Flags of the commands that train many runs. Imports nothing heavy, so that mistakes are reported at once."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rl_training.cli.arguments import Option
from rl_training.config.fields import whole_number
from rl_training.core.cpu import usable_cores
from rl_training.lab.manifests import SEEDS, seed_range


def read_seeds(text: str) -> range:
    """Return seeds that are given as a number of seeds, or as the first and the last."""
    found = seed_range(text)
    if found is None:
        raise ValueError(SEEDS)
    return found


def read_count(text: str) -> int:
    """Return a whole number of 1 or more, which may be written as 1e5."""
    number = whole_number(text)
    if number is None or number < 1:
        raise ValueError("use a whole number of 1 or more")
    return number


@dataclass(frozen=True, kw_only=True)
class LaunchFlags:
    """Which runs to train, how many at a time, and where."""

    seeds: Annotated[range | None, Option(read=read_seeds, metavar="N|A-B")] = None
    """Train seeds 1 to N, or A to B; by default the manifest's."""
    jobs: Annotated[int | None, Option(read=read_count, metavar="N")] = None
    """Runs at a time; by default as many as there are cores, or CPUs in the Ray cluster."""
    engine: Literal["process", "ray"] = "process"
    """Where runs train: process, in processes of this machine; ray, on a Ray cluster."""
    ray_address: Annotated[str | None, Option(metavar="auto|HOST:PORT")] = None
    """Address of an existing Ray cluster; by default one is started on this machine."""
    output_dir: Annotated[str, Option(metavar="DIR")] = "runs"
    """Folder for all runs and results."""
    total_timesteps: Annotated[int | None, Option(read=read_count, metavar="N")] = None
    """Environment steps per run; by default the preset's."""
    total_updates: Annotated[int | None, Option(read=read_count, metavar="N")] = None
    """Updates per run, for presets that learn from a dataset alone; by default the preset's."""
    retry_failed: bool = False
    """Train runs again that have failed."""

    @property
    def launching(self) -> dict[str, Any]:
        """How and where to train, as arguments of `lab.launcher.launch`."""
        jobs = usable_cores() if self.jobs is None and self.engine == "process" else self.jobs
        return {
            "processes": jobs,
            "engine": self.engine,
            "ray_address": self.ray_address,
            "retry_failed": self.retry_failed,
        }

    @property
    def overrides(self) -> dict[str, int]:
        """Settings that replace those of the presets."""
        given = {"total_timesteps": self.total_timesteps, "total_updates": self.total_updates}
        return {name: number for name, number in given.items() if number is not None}
