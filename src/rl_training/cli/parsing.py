"""Flags by tyro, and its complaints as sentences. Imports nothing that a quick command does without."""

import contextlib
import io
import re
from typing import Any

import tyro

from rl_training.core.errors import UserError
from rl_training.core.other_names import here_called


def parse(target: Any, argv: list[str], prog: str, description: str | None = None) -> Any:
    """Let tyro parse the flags; what it draws in a box when they are wrong becomes one sentence.

    It has no public way to ask what was wrong, so its version is bounded where the package's requirements are listed.
    """
    drawn, help_text = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(drawn), contextlib.redirect_stdout(help_text):
            return tyro.cli(target, args=argv, prog=prog, description=description)
    except SystemExit as stop:
        if not stop.code:
            # a config may name it; the frame around it stays where it is
            print(re.sub(r"\(required\) {16}", "(unless a config names it)", help_text.getvalue()), end="")
            raise
        raise UserError(_sentence(drawn.getvalue(), prog)) from None


def _sentence(drawn: str, prog: str) -> str:
    """Return what a box with a title, an explanation and help texts says, without its frame, title and help."""
    lines = re.sub(r"[─│╭╮╰╯┌┐└┘|+]+|-{3,}", " ", drawn).strip().splitlines()
    text = " ".join(" ".join(lines[1:]).split())
    more = f"; {prog} --help lists all flags"
    unknown = re.match(r"Unrecognized options: ([^\s,]+)", text)
    if unknown:
        if (other := here_called(unknown[1])) is not None:
            return f"unknown flag '{unknown[1]}'; here it is called '--{other.replace('_', '-')}'"
        similar = re.search(r"Perhaps you meant: (--[\w-]+)", text)
        return f"unknown flag '{unknown[1]}'" + (f"; did you mean '{similar[1]}'?" if similar else more)
    found = re.split(r" ?(Argument helptext|For full helptext)", text)[0].rstrip(".")
    found = found.removeprefix("Error parsing ")
    return f"{found[:1].lower()}{found[1:]}{more}"
