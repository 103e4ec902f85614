"""Errors of the user before a run (exit code 2), faults during a run (exit code 1), and the text of messages."""

import signal
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from rl_training.core.foreign_names import explanation, here_called

MAX_MESSAGE = 1000
MAX_PROBLEMS = 20
"""Problems of a configuration that an error lists."""
NO_MEMORY = (
    "there is not enough memory; use fewer num_envs, a smaller buffer_size, batch_size or network, or raise the limit "
    "(ulimit -v)"
)
OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "failed to map segment", "can't start new thread",
)  # fmt: skip


def printable(text: object) -> str:
    """Return a text without control characters, which a terminal would interpret; line breaks are kept."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in said)


def readable(message: object) -> str:
    """Return a message as one line of limited length without control characters, as it may quote untrusted files."""
    text = printable(" ".join(str(message).split()))
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def text_of(error: BaseException) -> str:
    """Return the text of an exception; the `__str__` of a user's exception may raise."""
    try:
        return str(error)
    except Exception as problem:
        return f"(error text unavailable: {type(problem).__name__})"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory was short, which Python, torch and the loader of libraries report in different ways."""
    if isinstance(error, MemoryError):
        return True
    said = text_of(error).lower() if isinstance(error, RuntimeError | ImportError | OSError) else ""
    return any(words in said for words in OUT_OF_MEMORY)


def reason(error: BaseException) -> str:
    """Return the text of an exception; of one without text, such as a bare assertion, the line that raised it."""
    if text := text_of(error).strip():
        return text
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "no message"
    last = frames[-1]
    file = "/".join(Path(last.filename).parts[-3:])
    return f"no message; raised by '{last.line}' in {file}, line {last.lineno}"


class UserError(Exception):
    """Bad input: the message names the culprit and the remedy. The command line exits with 2."""

    def __init__(self, message: object) -> None:
        super().__init__(readable(message))


class ConfigError(UserError):
    """All problems of a configuration."""

    def __init__(self, problems: Iterable[str], source: str = "configuration") -> None:
        self.problems = [readable(problem) for problem in problems]
        self.source = readable(source)
        lines = "".join(f"\n  - {problem}" for problem in self.problems[:MAX_PROBLEMS])
        if len(self.problems) > MAX_PROBLEMS:
            lines += f"\n  … and {len(self.problems) - MAX_PROBLEMS:,} more"
        text = f"{self.source}: {self.problems[0]}" if len(self.problems) == 1 else f"{self.source}:{lines}"
        Exception.__init__(self, text)


class RunFault(Exception):
    """A fault during a run. The command line exits with 1; the last checkpoint is intact."""

    def __init__(self, message: object) -> None:
        super().__init__(readable(message))


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal and can be resumed; `code` is the exit code shells expect."""

    def __init__(
        self, signum: int, run_dir: Path, timesteps: int, checkpoint: Path | None, unit: str = "steps"
    ) -> None:
        """`unit` is what `timesteps` counts: `steps` or `updates`."""
        self.signum, self.run_dir, self.timesteps = signum, run_dir, timesteps
        self.code = 128 + signum
        self.flags = ""
        """What the command that resumes the run needs, such as ` --env-factory module:function`."""
        kept = f"checkpoint: {checkpoint}" if checkpoint else "no checkpoint yet"
        super().__init__(f"stopped by {signal.Signals(signum).name} at {timesteps:,} {unit}; {kept}")


class EnvironmentFault(RunFault):
    """An environment raised an error, or returned an invalid result.

    Takes one message, because an exception from a worker process is rebuilt from its text.
    """

    worker_traceback: str | None = None
    """The traceback in the worker process, if it was raised in one."""


def did_you_mean(name: str, known: Iterable[str], *, nearness: float = 0.65) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or an empty string.

    The name that another library uses takes precedence over a similar spelling. Names may be flags. `nearness` is the
    share of letters that must agree: higher where names are long or have parts in common.
    """
    spelled = {known_name.strip("-"): known_name for known_name in known}
    other = here_called(name) or ""
    for ours in (other, other.replace("_", "-")):
        if ours in spelled:
            return f"; here it is called '{spelled[ours]}'"
    if (sentence := explanation(name, spelled)) is not None:
        return f"; {sentence}"
    close = get_close_matches(name.strip("-"), spelled, n=1, cutoff=nearness)
    return f"; did you mean '{spelled[close[0]]}'?" if close else ""
