"""Agents that are copied, or sent to another process: what goes with them is what `save` writes.

No file of ours is made this way, and none is read: whoever pickles a model does so himself, and a pickle can run code.
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

if TYPE_CHECKING:
    from rl_training.experiment.agent import Agent


def copied_state(state: dict[str, State]) -> dict[str, State]:
    """Return the state with tensors of their own, as they are now and on the CPU.

    Parameters are views of one flat vector, which pickling would write for each of them.
    """
    return {group: _copied(content) for group, content in state.items()}


def _copied(content: State) -> State:
    tensors, plain = split_state(content)
    return join_state(
        {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        },
        plain,
    )


def check_picklable(given: UserObjects) -> None:
    """Refuse to pickle what another process could not find under its name."""
    parts: tuple[tuple[str, Any], ...] = (
        ("env", given.factory),
        ("encoder", given.encoder),
        ("the model's class", given.algorithm),
    )
    for role, part in parts:
        while isinstance(part, partial):
            part = part.func
        if part is None or _has_a_name(part):
            continue
        name = getattr(part, "__qualname__", repr(part)).rpartition(".")[2]
        what = "a lambda" if name == "<lambda>" else f"{name}, {_kind(part)}"
        raise UserError(
            f"a model cannot be pickled whose parts have no name to be found by: {role} is {what}; move it to the top "
            "of a module, or save the model with save(path) and give it again to load(path)"
        )


def _kind(part: Any) -> str:
    return f"a {'class' if isinstance(part, type) else 'function'} inside of another one"


def _has_a_name(part: Any) -> bool:
    """Tell whether something is what its module has under its name; an object is pickled by its class and content."""
    named = part if hasattr(part, "__qualname__") and not hasattr(part, "__self__") else type(part)
    found: Any = sys.modules.get(named.__module__)
    for name in named.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is named


@contextlib.contextmanager
def checkpoint_to_continue(
    agent: "Agent | None", run_dir: str | PathLike[str] | None
) -> Iterator[str | PathLike[str] | None]:
    """Yield what a model goes on from: its run or checkpoint, or, if that is gone, the agent, written for this."""
    path = run_dir or (agent.path if agent is not None else None)
    if path is None and (agent is None or agent.timesteps == 0):
        yield None
    elif agent is None or (path is not None and Path(path).exists()):
        yield path
    else:
        with tempfile.TemporaryDirectory(prefix="rl_training-") as folder:
            yield agent.save(Path(folder) / "agent")


def existing_folder(run_dir: PathLike[str] | None) -> PathLike[str] | None:
    """Return the folder of a run if this machine has it."""
    return run_dir if run_dir is not None and Path(run_dir).exists() else None
