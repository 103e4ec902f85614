"""Reinforcement learning that resumes, reports and runs fast: PyTorch and Gymnasium.

Importing this package imports no heavy dependency; `torch` comes in with the first algorithm.
"""

from os import PathLike

from rl_training.version import __version__

TYPE_CHECKING = (
    False  # `python -m` reads this file while it would take a `typing.py` out of the working folder
)
if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm

__all__ = ["__version__", "load"]


def load(path: "str | PathLike[str]") -> "Algorithm":
    """Return the agent saved at `path` (a run, a checkpoint, or `last`/`best` of one), whatever its algorithm."""
    from rl_training.algorithms.base import Algorithm

    return Algorithm.load(path)
