"""Defines a case: a command, the expected exit code and message, and what must not be lost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

TRAIN = (
    "train", "ppo", "--env-id", "strange_envs:strange/Slow-v0", "--seed", "1", "--num-envs", "2",
    "--total-timesteps", "256", "--num-steps", "16", "--batch-size", "16", "--update-epochs", "1",
    "--hidden-sizes", "8", "--num-threads", "1", "--eval-every-timesteps", "128", "--num-eval-episodes",
    "1", "--checkpoint-every-timesteps", "32", "--log-every-timesteps", "32", "--rebuild-envs", "off",
    "--use-action-masks", "off", "--output-dir", "runs",
)  # fmt: skip
"""A small run of our own; the flags of a case come after these, and the last one counts."""
SLOWLY = {"STRANGE_SECONDS": "0.01"}
"""So that there is time to do something to a run while it trains."""


class Kept(Enum):
    """What must hold afterwards."""

    NO_TRACE = "bad input leaves nothing behind"
    UNCHANGED = "the run that was there is the same to the byte"
    RESUMES = "the run loads, and goes on to its end once the trouble is over"
    EXACTLY = "the same, and ends with the weights of a run that had no trouble"
    DELETED = "the user has deleted it: nothing is left to be kept"


@dataclass(frozen=True)
class Arena:
    """Where one case is tried: an empty working folder, and a genuine run to be misused."""

    here: Path
    genuine: Path
    """A run paused in the middle; never touched itself."""

    @property
    def run(self) -> Path:
        """The copy of the genuine run that a case damages, or the run that its command has made."""
        runs = [path.parent for path in sorted(self.here.rglob(".origin.json"))]
        return runs[0] if runs else self.here / "runs" / self.genuine.name

    def put(self, name: str, content: str | bytes) -> Path:
        """Write a file into the working folder."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def nothing(arena: Arena) -> None:
    """Do nothing to the arena."""


@dataclass(frozen=True)
class Case:
    """One bad input. In `arguments`, `{run}` stands for the run; in `shell`, `{command}` for the command."""

    name: str
    arguments: tuple[str, ...]
    words: tuple[str, ...] = ()
    """What the error message must contain: the culprit, and the remedy where there is one."""
    code: int = 2
    kept: Kept = Kept.NO_TRACE
    shell: str = "exec {command}"
    """How a shell starts the command."""
    variables: Mapping[str, str] = field(default_factory=dict)
    needs_run: bool = False
    """A copy of the genuine run lies in `runs`."""
    prepare: Callable[[Arena], object] = nothing
    meanwhile: Callable[[Arena], object] | None = None
    """What is done to the run when its second checkpoint is there."""
    read_only: str = ""
    """A folder that the command cannot write to."""


def train(name: str, *flags: str, words: tuple[str, ...], **more: object) -> Case:
    """Return a case whose command is a small run with flags on top."""
    return Case(name, (*TRAIN, *flags), words, **more)  # type: ignore[arg-type]
