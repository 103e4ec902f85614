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
    from rl_training.envs.factory import EnvFactory

__all__ = ["__version__", "load"]


def load(
    path: "str | PathLike[str]", *, env: "EnvFactory | str | None" = None, trust_modules: bool = False
) -> "Algorithm":
    """Return the agent saved at `path` (a run, a checkpoint, or `last`/`best` of one), whatever its algorithm.

    `env` puts it into another environment: an id, or a function that builds one. A module that the agent itself names
    is imported if this user made it, or with `trust_modules`.
    """
    from rl_training.algorithms.base import Algorithm

    return Algorithm.load(path, env=env, trust_modules=trust_modules)
