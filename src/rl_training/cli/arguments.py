"""Command-line arguments from dataclasses: a field is a flag, and the docstring under it is the flag's help.

Values are converted by the same code as YAML (`config.fields.coerce`). Every mistake raises a `UserError` of one
sentence that names the culprit and the remedy. tyro renders `--help`, and is imported for nothing else.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from rl_training.config.env_wrappers import Wrappers, wrapper_texts
from rl_training.config.fields import coerce, field_docs, misplaced_schedule
from rl_training.config.policies import Policies
from rl_training.config.schedules import Schedule, schedule_text
from rl_training.config.strict_yaml import FORGED, StrictLoader
from rl_training.core.errors import UserError, did_you_mean
from rl_training.core.info_keywords import InfoKeywords

MAX_SHOWN = 60
"""Characters of a wrong value that a message shows."""
NOTHING = ("none", "null")
"""How a value of None is written; as in YAML, upper or lower case."""
PLAIN_TYPES: dict[Any, str] = {str | None: "STR", int | None: "INT", float | None: "FLOAT"}
"""How the help calls values that may be left out."""
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What an annotation cannot say about an argument: `Annotated[str, Option(positional=True)]`."""

    positional: bool = False
    repeated: bool = False
    """The flag takes one value, and may be given several times."""
    once: bool = False
    """Giving the flag twice is an error; otherwise the last one counts."""
    aliases: tuple[str, ...] = ()
    metavar: str | None = None
    """How help and messages call its value."""
    read: Callable[[str], Any] | None = None
    """Converts the text instead of `coerce`; raises ValueError with the remedy."""
    hint: str | None = None
    """What the help shows instead of the default."""


@dataclass(frozen=True)
class Argument:
    """One argument of a command."""

    name: str
    kind: Any
    """The annotation of its value."""
    option: Option
    default: Any
    """`MISSING` if it is required."""
    owner: type
    """The dataclass that documents it."""

    @property
    def flag(self) -> str:
        """How it is typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def spellings(self) -> dict[str, bool]:
        """Every way to type the flag; what a flag without a value means."""
        names = [] if self.option.positional else [self.flag, *self.option.aliases]
        negated = {f"--no-{name[2:]}": False for name in names} if self.kind is bool else {}
        return dict.fromkeys(names, True) | negated

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values."""
        kinds = (self.kind, *get_args(self.kind))
        return self.kind in (Wrappers, InfoKeywords) or any(get_origin(kind) is tuple for kind in kinds)

    @property
    def value_name(self) -> str:
        """How messages call a value of it."""
        metavar = self.option.metavar or ""
        return metavar.lower() if len(metavar) > 1 and metavar.isalpha() else "value"


def parse(command: type[T], argv: Sequence[str], prog: str) -> T:
    """Return the flags of a command, as an instance of its dataclass; print its help if `--help` is given."""
    arguments = arguments_of(command)
    if wants_help(argv):
        print_help({"": arguments}, prog, command.__doc__ or "")
    return command(**parse_values(arguments, argv, prog))


def arguments_of(
    config_class: type, names: Iterable[str] | None = None, values: Mapping[str, Any] | None = None
) -> list[Argument]:
    """Return the fields of a dataclass as arguments, by default all; `values` replace defaults."""
    hints = get_type_hints(config_class, include_extras=True)
    items = {item.name: item for item in fields(config_class)}
    found = []
    for name in items if names is None else names:
        item, kind = items[name], hints[name]
        kind, option = get_args(kind) if get_origin(kind) is Annotated else (kind, Option())
        default: Any = item.default if item.default_factory is MISSING else item.default_factory()
        default = default if values is None else values.get(name, default)
        found.append(Argument(name, kind, option, default, config_class))
    return found


def wants_help(argv: Sequence[str]) -> bool:
    """Return whether `-h` or `--help` is among the flags."""
    return bool({"-h", "--help"} & set(_before_dashes(argv)))


def parse_values(
    arguments: Sequence[Argument], argv: Sequence[str], prog: str, rest: list[str] | None = None
) -> dict[str, Any]:
    """Return the values that are given, converted; raise an error for the first mistake.

    With `rest`, words that belong to none of the arguments are added to it instead of being refused.
    """
    known = {name: argument for argument in arguments for name in argument.spellings}
    if rest is None:
        _refuse_unknown(argv, known, prog)
    values, positional = dict[str, Any](), list[str]()
    others = positional if rest is None else rest
    words = list(_before_dashes(argv))
    while words:
        word = words.pop(0)
        typed, equals, text = word.partition("=")
        argument = known.get(typed.replace("_", "-")) if is_flag(word) else None
        if argument is None:
            others.append(word)
            continue
        given = [text] if equals else _values_after(argument, words)
        value = _flag_value(argument, typed.replace("_", "-"), given, prog)
        if argument.option.repeated:
            values[argument.name] = (*values.get(argument.name, ()), value)
        elif argument.option.once and argument.name in values:
            raise UserError(f"{typed} is given twice; give one {argument.value_name}")
        else:  # of a flag that is given twice the last one counts, so that scripts can append flags
            values[argument.name] = value
    after = list(argv[len(list(_before_dashes(argv))) :])
    if rest is not None:
        rest += after
        return values
    values |= _positional_values(arguments, positional + after[1:], prog)
    for argument in arguments:
        if argument.default is MISSING and argument.name not in values:
            what = f"a {argument.value_name}" if argument.option.positional else argument.flag
            raise UserError(f"{prog} needs {what}{_see_help(prog)}")
    return values


def is_flag(word: str) -> bool:
    """Return whether a word is a flag, and not a value such as -1 or -."""
    return re.match(r"-[-a-zA-Z]", word) is not None


def setting_name(flag: str) -> str:
    """Return the setting that a flag names.

    >>> setting_name("--env-id=X"), setting_name("--no-normalize-obs")
    ('env_id', 'normalize_obs')
    """
    return flag.partition("=")[0].removeprefix("--").replace("-", "_").removeprefix("no_")


def _before_dashes(argv: Sequence[str]) -> Sequence[str]:
    """Return the words in which flags may stand: `--` ends them."""
    return argv[: argv.index("--")] if "--" in argv else argv


def _values_after(argument: Argument, words: list[str]) -> list[str]:
    """Take the values of a flag from the words that follow it."""
    if argument.kind is bool:
        return []
    found, many = list[str](), argument.is_list and not argument.option.repeated
    while words and not is_flag(words[0]) and (many or not found):
        found.append(words.pop(0))
    return found


def _flag_value(argument: Argument, flag: str, given: list[str], prog: str) -> Any:
    if argument.kind is bool:
        if given:
            raise UserError(f"{flag} takes no value, but got '{given[0][:MAX_SHOWN]}'{_see_help(prog)}")
        return argument.spellings[flag]
    takes_none = argument.is_list and not argument.option.repeated
    if (not given and not takes_none) or (argument.option.metavar and given == [""]):
        raise UserError(f"{flag} needs a {argument.value_name}{_see_help(prog)}")
    return _converted(argument, given, flag)


def _converted(argument: Argument, given: list[str], called: str) -> Any:
    try:
        return _value(argument, given)
    except ValueError as error:
        text = " ".join(given)
        shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
        hint = misplaced_schedule(argument.owner, argument.name, text)
        raise UserError(f"{called} is {shown!r}; {error}{hint}") from None


def _value(argument: Argument, given: list[str]) -> Any:
    """Return words as the value that their annotation asks for, or raise ValueError with the remedy."""
    kind, option = argument.kind, argument.option
    if option.read is not None:
        return option.read(given[0])
    if option.repeated or (argument.is_list and option.positional):
        kind = get_args(kind)[0]
        return coerce(given[0], kind) if option.repeated else tuple(coerce(word, kind) for word in given)
    optional, text = type(None) in get_args(kind), given[0] if given else ""
    if optional and len(given) == 1 and text.lower() in NOTHING and str not in get_args(kind):
        return None
    if argument.is_list:
        return coerce(_yaml(text) if kind != Wrappers and text.startswith("[") else given, kind)
    if kind == Policies:
        return coerce(_yaml(text) if text.startswith("{") else text, kind)
    if get_origin(kind) is dict:
        if not isinstance(data := _yaml(text), dict):
            raise ValueError(f"that is not a YAML map; write it as {argument.flag} '{{name: value}}'")
        return coerce(data, kind)
    if bool in get_args(kind) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    return coerce(text, kind)


def _yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=StrictLoader)
    except (yaml.YAMLError, *FORGED):
        return None


def _positional_values(arguments: Sequence[Argument], words: list[str], prog: str) -> dict[str, Any]:
    values = dict[str, Any]()
    for argument in arguments:
        if argument.option.positional and words:
            taken, words = (words, []) if argument.is_list else (words[:1], words[1:])
            values[argument.name] = _converted(argument, taken, argument.value_name)
    if words:
        raise UserError(f"'{words[0]}' is one word too many{_see_help(prog)}")
    return values


def _refuse_unknown(argv: Sequence[str], known: Iterable[str], prog: str) -> None:
    """Raise an error for the first flag that does not exist, as it is the cause of other mistakes."""
    names = list(known)
    for word in _before_dashes(argv):
        flag = word.partition("=")[0]
        if not is_flag(word) or flag.replace("_", "-") in names:
            continue
        raise UserError(f"unknown flag '{flag}'{did_you_mean(flag, names) or _see_help(prog)}")


def _see_help(prog: str) -> str:
    return f"; {prog} --help lists all flags"


def print_help(groups: Mapping[str, Sequence[Argument]], prog: str, description: str) -> None:
    """Print the help of a command and exit; arguments in groups other than "" are listed under the group's name."""
    import tyro

    members: list[Any] = []
    for name, arguments in groups.items():
        items = [_help_field(argument, tyro.conf, is_setting=bool(name)) for argument in arguments]
        if not name:
            members += items
            continue
        group = make_dataclass(re.sub(r"\W", "", name.title()), items, kw_only=True)
        group.__doc__ = ""
        members.append((re.sub(r"\W", "_", name), group))
    entry: Any = make_dataclass("Command", members, kw_only=True)
    without_prefixes: Any = tyro.conf.OmitArgPrefixes
    tyro.cli(without_prefixes[entry], args=["--help"], prog=prog, description=inspect.cleandoc(description))


def _help_field(argument: Argument, conf: Any, *, is_setting: bool) -> Any:
    """Return an argument as a field that tyro renders; those that are no settings are shown in short."""
    kind, option = argument.kind, argument.option
    metavar, hint = option.metavar, option.hint
    if argument.default is MISSING:
        hint = hint or "(required)"
    elif not is_setting and argument.default is None:
        metavar, hint = metavar or PLAIN_TYPES.get(kind), hint or ""
    if (
        option.read is not None
        or kind in (Schedule, Policies, int | Literal["auto"])
        or get_origin(kind) is dict
    ):
        kind = str | None if argument.default is None else str
    elif kind in (Wrappers, InfoKeywords):
        kind = tuple[str, ...]
    elif kind is bool and not is_setting:
        kind = conf.FlagCreatePairsOff[kind]
    kind = conf.Positional[kind] if option.positional else kind
    kind = conf.UseAppendAction[kind] if option.repeated else kind
    known = field_docs(argument.owner).get(argument.name)  # a user's own setting may have no docstring
    text = "" if known is None else " ".join(known.text.split())
    about = conf.arg(help=text, aliases=option.aliases or None, metavar=metavar, help_behavior_hint=hint)
    return argument.name, Annotated[kind, about], field(default=_help_default(argument))


def _help_default(argument: Argument) -> Any:
    """Return a default as the text that would be typed for it."""
    kind, default = argument.kind, argument.default
    if default is MISSING:
        return () if argument.is_list else ""
    if get_origin(kind) is dict or isinstance(default, dict):
        return yaml.safe_dump(default, default_flow_style=True).strip()
    if kind == Schedule:
        return schedule_text(default)
    if kind == Wrappers:
        return wrapper_texts(default)
    if isinstance(default, range):
        return f"{default[0]}-{default[-1]}"
    if argument.option.read is not None or kind == int | Literal["auto"]:
        return None if default is None else str(default)
    return tuple(default) if isinstance(default, list) else default
