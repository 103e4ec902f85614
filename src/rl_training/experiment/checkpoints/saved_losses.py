"""Replaced losses by name: what a checkpoint was trained with, and what would train it now.

A checkpoint stores `module:name` of each replaced loss, never its code, and nothing imports it.
"""

from collections.abc import Callable, Mapping

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.building import UserObjects
from rl_training.experiment.checkpoints.format import Checkpoint


def refuse_other_losses(source: object, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise an error if other losses would continue training than those that trained so far."""
    for name in sorted(saved.keys() | now.keys()):
        before, after = saved.get(name), now.get(name)
        if before is None and after is not None:
            raise UserError(
                f"{source} was trained with the built-in {name}, but {after} is given; leave it out, or fine-tune the "
                f"weights in a new run: start_from(path, {_as_argument(name, after)})"
            )
        if before is not None and before != after:
            instead = "it is not given here" if after is None else f"{after} is given"
            raise UserError(
                f"{source} was trained with {before} as its {name}, but {instead}; in Python, pass "
                f"{_as_argument(name, before)}, or use an algorithm class with {name} = staticmethod({_short(before)})"
            )


def compare_losses(
    config: TrainConfig,
    given: UserObjects,
    continued: Checkpoint | None,
    learned: Checkpoint | None,
    notice: Callable[[str], None],
) -> None:
    """Compare the losses of a new run with those of the checkpoint that it starts from.

    A run that continues an agent needs the replaced losses of that agent; it may replace a built-in loss. A run that
    uses only the weights may have any loss. Each change is reported.
    """
    source = continued or learned
    if source is None:
        return
    saved, now = source.losses, given.loss_names(config)
    if continued is not None and saved:
        refuse_other_losses(source.path, saved, now)
    for name in sorted(saved.keys() | now.keys()):
        if saved.get(name) != now.get(name):
            before, after = saved.get(name, f"the built-in {name}"), now.get(name, f"the built-in {name}")
            notice(f"{source.path} was trained with {before}; this run trains with {after}")


def _as_argument(name: str, function: str) -> str:
    return f"{name}={_short(function)}"


def _short(function: str) -> str:
    """Return the last part of `module:name`."""
    return function.rpartition(":")[2].rpartition(".")[2]
