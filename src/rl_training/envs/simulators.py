"""Simulators that speak for themselves, beside Python: what MuJoCo prints and writes into the working folder."""

import contextlib
import importlib
import warnings
from typing import Any


def hear_mujoco(entry_point: Any) -> None:
    """Let MuJoCo's warnings be Python's, if an environment of Gymnasium's is about to be built with it.

    By itself it prints them beside every stream of ours, and appends them to a MUJOCO_LOG.TXT in the working folder.
    Whoever has a handler of his own keeps it.
    """
    if not str(entry_point).startswith("gymnasium.envs.mujoco"):
        return
    with contextlib.suppress(ImportError, AttributeError):  # not installed, or of another age
        mujoco = importlib.import_module("mujoco")
        if mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(_warn)


def _warn(message: str) -> None:
    """Warn, unless it is about the XML of Gymnasium's models, which is not the user's to mend.

    MuJoCo ends the process if anything is raised here, as it is where warnings are errors.
    """
    with contextlib.suppress(Exception):
        if "is deprecated" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)
