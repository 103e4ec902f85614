"""The `rl-training` command.

This file imports nothing: under `python -m rl_training.cli` the working folder comes first in `sys.path` when it is
read, and a `shutil.py` there would be imported instead of Python's.
"""

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from os import PathLike

    from rl_training.config import TrainConfig


def load_config(path: "str | PathLike[str]") -> "TrainConfig":
    """Read a YAML config strictly; see `rl_training.config.load_config`."""
    from rl_training.config import load_config as load

    return load(path)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 a fault during a run, 2 bad input, 130 interrupted."""
    from rl_training.cli.commands import run

    return run(argv)
