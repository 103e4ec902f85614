"""Replaced losses by name: what a checkpoint was trained with, and what would train it now.

A checkpoint stores `module:name` of each replaced loss, never its code, and nothing imports it.
"""

from collections.abc import Callable, Mapping

from rl_training.config import TrainConfig
from rl_training.config.object_paths import is_same_name
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
                f"weights in a new run with start_from(path, ...)"
            )
        if before is not None and (after is None or not is_same_name(before, after)):
            instead = "it is not given here" if after is None else f"{after} is given"
            raise UserError(
                f"{source} was trained with {before} as its {name}, but {instead}; {_remedy(name, before)}"
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
    if continued is not None:
        refuse_other_losses(source.path, saved, {name: now[name] for name in saved.keys() & now.keys()})
    for name in sorted(saved.keys() | now.keys()):
        if not is_same_name(saved.get(name, ""), now.get(name, "")):
            before, after = saved.get(name, f"the built-in {name}"), now.get(name, f"the built-in {name}")
            notice(f"{source.path} was trained with {before}; this run trains with {after}")


def _remedy(name: str, function: str) -> str:
    """Return how to give a loss again; only a class has a gradient."""
    if name.endswith("_gradient"):
        return f"in Python, use the algorithm class that has {function} as its {name}"
    short = function.rpartition(":")[2].rpartition(".")[2]
    if not function.rpartition(":")[2].isidentifier():  # a method, a lambda or a local function
        return f"in Python, pass {function} as {name}, or use an algorithm class that has it"
    return f"in Python, pass {name}={short}, or use an algorithm class with {name} = staticmethod({short})"
