"""The settings of a run as they lie in its folder: plain data, perhaps of another version. Needs no torch."""

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError
from rl_training.core.strict_yaml import read_yaml
from rl_training.experiment.files import read_plain
from rl_training.experiment.rows import count_of

TOTAL = re.compile(rb"^total_timesteps: (\d{1,18})$", re.MULTILINE)
"""As we write it; any other spelling costs a whole YAML parser."""


def read_settings(run_dir: Path) -> dict[str, Any]:
    """Return the map in a run's `config.yaml`, which may have been written by another version of this package."""
    path = run_dir / "config.yaml"
    with contextlib.suppress(OSError):  # what is missing is told by the reader
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"{path} is not a plain file")
    return read_yaml(path, path)


def flattened(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings side by side: the algorithm's have names of their own, and those of other maps a dot.

    >>> flattened({"seed": 1, "env_kwargs": {"g": 9.8}, "algorithm": {"gamma": 0.99, "encoder_kwargs": {}}})
    {'seed': 1, 'env_kwargs.g': 9.8, 'gamma': 0.99}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if not isinstance(value, dict):
            found[str(key)] = value
            continue
        prefix = "" if key == "algorithm" else f"{key}."
        found |= {f"{prefix}{inner}": part for inner, part in flattened(value).items()}
    return found


def total_timesteps_of(run_dir: Path) -> int | None:
    """Return the budget, which `resume --total-timesteps` changes in the config alone."""
    with contextlib.suppress(UserError):
        found = TOTAL.search(read_plain(run_dir / "config.yaml"))
        total = int(found[1]) if found else read_settings(run_dir).get("total_timesteps")
        return count_of(total)
    return None
