"""What is said of flags that are wrong: one wording, whichever parser found out."""

from collections.abc import Iterable

from rl_training.core.errors import did_you_mean
from rl_training.core.foreign_names import here_called


def more(prog: str) -> str:
    """Return where all flags are told."""
    return f"; {prog} --help lists all flags"


def unknown_flag(flag: str, known: Iterable[str], prog: str) -> str:
    """Return what a flag may have meant; a name that another library has comes before one that is spelled alike."""
    names = [name for name in known if name.startswith("--")]
    if (other := here_called(flag)) is not None and (ours := f"--{other.replace('_', '-')}") in names:
        return f"unknown flag '{flag}'; here it is called '{ours}'"
    return f"unknown flag '{flag}'{did_you_mean(flag, names) or more(prog)}"


def needs_value(flag: str, prog: str) -> str:
    """Return that a flag stands alone."""
    return f"{flag} needs a value{more(prog)}"


def wrong_value(flag: str, problem: str, prog: str) -> str:
    """Return what is wrong with the value of a flag."""
    return f"{flag}: {problem}{more(prog)}"


def one_too_many(word: str, prog: str) -> str:
    """Return that a word has no place."""
    return f"'{word}' is one word too many{more(prog)}"


def needs(what: str, prog: str) -> str:
    """Return that something has to be given."""
    return f"{prog} needs {what}{more(prog)}"
