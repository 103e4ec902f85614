"""Command-line arguments from dataclasses: what is accepted, and what each mistake says."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from rl_training.cli.arguments import Option, arguments_of, parse, parse_values
from rl_training.config.env_wrappers import Wrappers
from rl_training.config.schedules import Schedule
from rl_training.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of every kind."""

    run: Annotated[str, Option(positional=True, metavar="RUN")]
    """A run."""
    others: Annotated[tuple[str, ...], Option(positional=True, metavar="RUN")] = ()
    """More runs."""
    count: int = 3
    """A whole number."""
    rate: float | None = None
    """A number, or none."""
    name: str | None = None
    """A text."""
    file: Annotated[str | None, Option(metavar="FILE", once=True)] = None
    """At most once."""
    quiet: bool = False
    """Without a value."""
    gray: bool | None = None
    """True, false or none."""
    threads: int | Literal["auto"] = "auto"
    """A word or a number."""
    kind: Literal["sync", "async"] = "sync"
    """One of two words."""
    sizes: tuple[int, ...] | None = (64, 64)
    """A list."""
    seed: Annotated[tuple[int, ...], Option(repeated=True, aliases=("--random-seed",))] = ()
    """May be given several times."""
    extra: dict[str, Any] = field(default_factory=dict)
    """A map."""
    schedule: Schedule = "constant"
    """A schedule."""
    wrappers: Wrappers = ()
    """Wrappers."""
    even: Annotated[int, Option(read=lambda text: int(text) * 2)] = 0
    """Read by its own function."""


def given(*words: str) -> dict[str, Any]:
    return parse_values(arguments_of(Flags), ["RUN", *words], "prog")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--count 1e5", {"count": 100_000}),
        ("--count=-1", {"count": -1}),
        ("--count -1", {"count": -1}),
        ("--count 9007199254740993", {"count": 2**53 + 1}),
        ("--count 1 --count 2", {"count": 2}),
        ("--quiet --no-quiet", {"quiet": False}),
        ("--rate 3e-4", {"rate": 3e-4}),
        ("--rate None", {"rate": None}),
        ("--name none", {"name": "none"}),
        ("--name=a=b", {"name": "a=b"}),
        ("--quiet", {"quiet": True}),
        ("--no-quiet", {"quiet": False}),
        ("--gray True", {"gray": True}),
        ("--gray none", {"gray": None}),
        ("--threads auto", {"threads": "auto"}),
        ("--threads 2e0", {"threads": 2}),
        ("--kind async", {"kind": "async"}),
        ("--sizes 8 1e1", {"sizes": (8, 10)}),
        ("--sizes [8,16]", {"sizes": (8, 16)}),
        ("--sizes", {"sizes": ()}),
        ("--sizes none", {"sizes": None}),
        ("--sizes=8 --quiet", {"sizes": (8,), "quiet": True}),
        ("--seed 1 --random-seed 2", {"seed": (1, 2)}),
        ("--extra {a:[1]}", {"extra": {"a": [1]}}),
        ("--schedule linear:0.1", {"schedule": "linear:0.1"}),
        ("--schedule [[0,1],[1,0]]", {"schedule": ((0.0, 1.0), (1.0, 0.0))}),
        ("--wrappers a:B {c:D:{x:[1]}}", {"wrappers": ("a:B", {"c:D": {"x": [1]}})}),
        ("--wrappers a:B c:D", {"wrappers": ("a:B", "c:D")}),
        ("--even 2", {"even": 4}),
        ("b c --quiet d", {"others": ("b", "c", "d"), "quiet": True}),
        ("-- --quiet -x", {"others": ("--quiet", "-x")}),
    ],
)
def test_what_is_accepted(words, value):
    assert given(*words.split(" ")) == {"run": "RUN"} | value


def test_underscores_are_dashes():
    assert given("--random_seed", "3") == {"run": "RUN", "seed": (3,)}


def test_an_instance_has_the_defaults():
    assert parse(Flags, ["RUN", "--count", "4"], "prog") == Flags(run="RUN", count=4)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--count", "--count needs a value; prog --help lists all flags"),
        ("--count --quiet", "--count needs a value; prog --help lists all flags"),
        ("--count 2.5", "--count is '2.5'; use a whole number such as 5000"),
        ("--file a --file b", "--file is given twice; give one file"),
        ("--file=", "--file needs a file; prog --help lists all flags"),
        ("--quiet=1", "--quiet takes no value, but got '1'; prog --help lists all flags"),
        ("--kind asynch", "--kind is 'asynch'; use one of sync, async; did you mean 'async'?"),
        ("--extra [1]", "--extra is '[1]'; that is not a YAML map; write it as --extra '{name: value}'"),
        ("--schedule quadratic", "--schedule is 'quadratic'; use constant, linear, cosine, one with an end"),
        ("--gray maybe", "--gray is 'maybe'; use true or false"),
        ("--cuont 1", "unknown flag '--cuont'; did you mean '--count'?"),
        ("--cuont 1 --count x", "unknown flag '--cuont'; did you mean '--count'?"),
        ("-x", "unknown flag '-x'; prog --help lists all flags"),
    ],
)
def test_what_each_mistake_says(words, sentence):
    with pytest.raises(UserError) as raised:
        given(*words.split(" "))
    assert str(raised.value).startswith(sentence)


def test_what_is_missing_and_what_is_too_much():
    with pytest.raises(UserError, match=r"^prog needs a run; prog --help lists all flags$"):
        parse(Flags, [], "prog")
    with pytest.raises(UserError, match=r"^'b' is one word too many; prog --help lists all flags$"):
        parse_values(arguments_of(Flags, ["run"]), ["a", "b"], "prog")
    with pytest.raises(UserError, match=r"^prog needs --run; prog --help lists all flags$"):
        parse_values(arguments_of(Required), [], "prog")


@dataclass(frozen=True, kw_only=True)
class Required:
    """A flag that must be given."""

    run: str
    """A run."""


def test_flags_that_decide_which_others_there_are():
    rest: list[str] = []
    words = ["x", "--count", "4", "--learning-rate", "1", "--quiet", "--", "--count"]
    assert parse_values(arguments_of(Flags, ["count", "quiet"]), words, "prog", rest) == {
        "count": 4,
        "quiet": True,
    }
    assert rest == ["x", "--learning-rate", "1", "--", "--count"]


def test_help_lists_every_flag_with_its_text(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(Flags, ["--help"], "prog")
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "usage: prog",
        "Flags of every kind.",
        "--random-seed",
        "May be given several times.",
        "(required)",
    ):
        assert words in text
