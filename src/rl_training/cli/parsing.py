"""Flags by tyro, and its complaints as sentences. Imports nothing that a quick command does without."""

import contextlib
import io
import re
from typing import Any

import tyro

from rl_training.cli.sentences import more, needs, needs_value, one_too_many, unknown_flag, wrong_value
from rl_training.core.errors import UserError

FRAME = re.compile(r"[─│╭╮╰╯┌┐└┘|+]+|-{3,}")
NOT_THAT = {
    r"invalid literal for int\(\) with base 10: (.*)": "whole number",
    r"could not convert string to float: (.*)": "number",
    r"Could not find valid parse for arguments: \[(.*)\]": "value for it",
}
"""What Python and tyro say of words that do not fit, and what was asked for."""


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
    # a misspelt flag is the cause of what else the parser misses
    if (unknown := _unknown(target, argv, prog)) is not None:
        raise UserError(unknown)
    raise UserError(_sentence(drawn.getvalue(), prog))


def _unknown(target: Any, argv: list[str], prog: str) -> str | None:
    """Return the sentence about the first flag that there is not, by the flags that the help lists."""
    help_text = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(help_text):
        tyro.cli(target, args=["--help"], prog=prog)
    listed = [
        line for line in FRAME.sub(" ", help_text.getvalue()).splitlines() if line.strip().startswith("-")
    ]
    known = [flag for line in listed for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", line)]
    for word in argv[: argv.index("--") if "--" in argv else None]:
        flag = word.partition("=")[0]
        if re.match(r"-[-a-zA-Z]", flag) and flag.replace("_", "-") not in [*known, "-h"]:
            return unknown_flag(flag, known, prog)
    return None


def _sentence(drawn: str, prog: str) -> str:
    """Return what a box with a title, an explanation and help texts says, without its frame, title and help."""
    text = " ".join(" ".join(FRAME.sub(" ", drawn).strip().splitlines()[1:]).split())
    found = re.split(r" ?(Argument helptext|For full helptext)", text)[0].rstrip(".")
    if word := re.search(r"Unrecognized options: (.*?)(?:,|$)", found):
        return one_too_many(word[1], prog)
    if missing := re.match(r"Missing value for argument '(.*?)'", found):
        # all names of a flag are told, as in '--env-id/--env'
        return (
            needs_value(missing[1].rpartition("/")[2], prog)
            if missing[1].startswith("-")
            else needs(f"a {missing[1]}", prog)
        )
    if missing := re.match(r"Missing from .*?: (?:(--[\w-]+) )?[A-Z|]+ (.*?)\.? \(required\)", found):
        what = missing[1] or f"{missing[2][:1].lower()}{missing[2][1:]}"
        return needs(what, prog)
    if choice := re.match(r"invalid choice (.*?) for argument '(.*?)'. Expected one of \((.*)\)", found):
        return wrong_value(
            choice[2], f"invalid choice {choice[1]}; use one of {choice[3].replace(chr(39), '')}", prog
        )
    if wrong := re.match(r"Error parsing (\S+): (.*)", found):
        return wrong_value(wrong[1], _problem(wrong[2]), prog)
    return f"{found[:1].lower()}{found[1:]}{more(prog)}"


def _problem(said: str) -> str:
    for words, kind in NOT_THAT.items():
        if word := re.fullmatch(words, said):
            return f"{word[1]} is not a {kind}"
    return said
