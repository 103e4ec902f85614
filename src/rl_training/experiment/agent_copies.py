"""Copying and pickling agents: a copy contains what `save` writes.

The library never writes a pickle to a file or reads one from it, because a pickle can run code.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rl_training.core.errors import UserError
from rl_training.core.state import join_state, split_state
from rl_training.core.types import State
from rl_training.experiment.building import UserObjects
from rl_training.experiment.checkpoints.locking import reading_folder

if TYPE_CHECKING:
    from rl_training.experiment.agent import Agent


def copied_state(state: dict[str, State]) -> dict[str, State]:
    """Return a copy on the CPU; views of one flat vector, which pickle would write once each, become tensors."""
    copies = {}
    for group, content in state.items():
        tensors, plain = split_state(content)
        copied = {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
        copies[group] = join_state(copied, plain)
    return copies


def check_picklable(given: UserObjects) -> None:
    """Raise if another process could not import a user's object by its name."""
    parts: tuple[tuple[str, Any], ...] = (
        ("env", given.factory),
        ("encoder", given.encoder),
        ("the model's class", given.algorithm),
        *given.losses.items(),
    )
    for role, part in parts:
        while isinstance(part, partial):
            part = part.func
        if part is None or _has_a_name(part):
            continue
        name = getattr(part, "__qualname__", repr(part)).rpartition(".")[2]
        kind = "class" if isinstance(part, type) else "function"
        what = "a lambda" if name == "<lambda>" else f"{name}, a local {kind}"
        raise UserError(
            f"the model cannot be pickled: {role} is {what}, which cannot be imported by name; move it to the top "
            "level of a module, or use save(path) and pass it again to load(path)"
        )


def _has_a_name(part: Any) -> bool:
    """Return whether a class or function, or the class of an object, can be imported by its name."""
    named = part if hasattr(part, "__qualname__") and not hasattr(part, "__self__") else type(part)
    found: Any = sys.modules.get(named.__module__)
    for name in named.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is named


@contextlib.contextmanager
def checkpoint_to_continue(
    agent: "Agent | None", run_dir: str | PathLike[str] | None
) -> Iterator[str | PathLike[str] | None]:
    """Yield the path that a model continues from: its run or checkpoint, or else a temporary copy of the agent.

    A checkpoint of a run that is being trained is not pruned until the context exits.
    """
    path = run_dir or (agent.path if agent is not None else None)
    if path is None and (agent is None or agent.timesteps == 0):
        yield None
        return
    with contextlib.nullcontext() if path is None else reading_folder(Path(path)):
        if agent is None or (path is not None and Path(path).exists()):
            yield path
            return
    with tempfile.TemporaryDirectory(prefix="rl_training-") as folder:
        yield agent.save(Path(folder) / "agent")


def existing_folder(run_dir: PathLike[str] | None) -> PathLike[str] | None:
    """Return the folder of a run if it exists on this machine."""
    return run_dir if run_dir is not None and Path(run_dir).exists() else None
