"""What can go wrong, by who can mend it: the user before a run (exit 2) or nobody during one (exit 1)."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Bad input: one sentence that names the culprit and the remedy. The command line exits with 2."""


class ConfigError(UserError):
    """Every problem of a configuration at once."""

    def __init__(self, problems: Iterable[str], source: str = "configuration") -> None:
        self.problems = list(problems)
        self.source = source
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"{source}: {self.problems[0]}" if len(self.problems) == 1 else f"{source}:{lines}")


class RunFault(Exception):
    """A fault during a run: names where and what. The command line exits with 1; the last checkpoint is intact."""


class EnvironmentFault(RunFault):
    """An environment raised, or said something that is not a finite number.

    Takes one message, so that it survives the trip from a worker process, which rebuilds it from its text.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or an empty string."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
