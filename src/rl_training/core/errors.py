"""What can go wrong, by who can mend it: the user before a run (exit 2) or nobody during one (exit 1)."""

import signal
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from rl_training.core.foreign_names import here_called

MAX_MESSAGE = 1000
NO_MEMORY = (
    "there is not enough memory; use fewer num_envs, a smaller buffer_size, batch_size or network, or raise the limit "
    "(ulimit -v)"
)
OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "failed to map segment",
    "can't start new thread",
)


def printable(text: object) -> str:
    """Return a text whose escape sequences a terminal does not obey; lines stay lines."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in said)


def readable(message: object) -> str:
    """Return a message that fits a terminal: what a hostile file says in it is neither obeyed nor endless."""
    text = printable(" ".join(str(message).split()))
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def text_of(error: BaseException) -> str:
    """Return what an exception says; one of somebody else may raise another when it is asked."""
    try:
        return str(error)
    except Exception as problem:
        return f"(its text cannot be had: {type(problem).__name__})"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory was short, which Python, torch and the loader of libraries say in different ways."""
    if isinstance(error, MemoryError):
        return True
    said = text_of(error).lower() if isinstance(error, RuntimeError | ImportError | OSError) else ""
    return any(words in said for words in OUT_OF_MEMORY)


def reason(error: BaseException) -> str:
    """Return what an exception says; of one without a word, such as a bare assertion, the line that raised it."""
    if text := text_of(error).strip():
        return text
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "without a word"
    last = frames[-1]
    file = "/".join(Path(last.filename).parts[-3:])
    return f"without a word, by '{last.line}' in {file}, line {last.lineno}"


class UserError(Exception):
    """Bad input: one sentence that names the culprit and the remedy. The command line exits with 2."""

    def __init__(self, message: object) -> None:
        super().__init__(readable(message))


class ConfigError(UserError):
    """Every problem of a configuration at once."""

    def __init__(self, problems: Iterable[str], source: str = "configuration") -> None:
        self.problems = [readable(problem) for problem in problems]
        self.source = readable(source)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        text = f"{self.source}: {self.problems[0]}" if len(self.problems) == 1 else f"{self.source}:{lines}"
        Exception.__init__(self, text)


class RunFault(Exception):
    """A fault during a run: names where and what. The command line exits with 1; the last checkpoint is intact."""

    def __init__(self, message: object) -> None:
        super().__init__(readable(message))


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal and can be resumed; `code` is the exit code shells expect."""

    def __init__(self, signum: int, run_dir: Path, timesteps: int, checkpoint: Path | None) -> None:
        self.signum, self.run_dir, self.timesteps = signum, run_dir, timesteps
        self.code = 128 + signum
        kept = f"checkpoint: {checkpoint}" if checkpoint else "no step was made yet"
        super().__init__(f"stopped by {signal.Signals(signum).name} at {timesteps:,} steps; {kept}")


class EnvironmentFault(RunFault):
    """An environment raised, or said something that is not a finite number.

    Takes one message, so that it survives the trip from a worker process, which rebuilds it from its text.
    """

    worker_traceback: str | None = None
    """Where in the environment's code it happened, if that was in another process: the exception itself cannot tell."""


def did_you_mean(name: str, known: Iterable[str], *, nearness: float = 0.5) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or an empty string.

    A name that another library has for it comes before one that is spelled alike. `nearness` is the share of letters
    that must agree: more where names are long or have parts in common.
    """
    known = list(known)
    other = here_called(name)
    if other in known:
        return f"; here it is called '{other}'"
    close = get_close_matches(name, known, n=1, cutoff=nearness)
    return f"; did you mean '{close[0]}'?" if close else ""
