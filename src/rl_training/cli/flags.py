"""Flags from config dataclasses: same names, same types, the text under a field as its help."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import tyro
import yaml

from rl_training.cli.parsing import parse
from rl_training.config import TrainConfig, algorithm_config_class
from rl_training.config.env_wrappers import Wrappers, wrapper_texts
from rl_training.config.fields import whole_number
from rl_training.config.preprocessing import SETTINGS_OF
from rl_training.config.schedules import Schedule, schedule_text
from rl_training.config.strict_yaml import StrictLoader
from rl_training.core.errors import UserError
from rl_training.envs.factory import EnvFactory, import_factory

RUN_GROUPS = {
    "run": ("env_id", "seed", "total_timesteps", "output_dir", "device", "num_threads"),
    "environments": (
        "num_envs",
        "env_backend",
        "env_kwargs",
        "env_wrappers",
        "max_episode_steps",
        "env_timeout",
        "rebuild_envs",
        "max_restarts",
        "use_action_masks",
        "normalize_obs",
        "normalize_reward",
    ),
    "images": ("preprocessing", *SETTINGS_OF["atari"]),
    "evaluation and checkpoints": (
        "eval_every_timesteps",
        "num_eval_episodes",
        "best_by",
        "eval_deterministic",
        "max_eval_episode_steps",
        "checkpoint_every_timesteps",
        "keep_checkpoints",
    ),
    "logging": ("log_every_timesteps", "track"),
    "stopping early": ("stop_at_reward", "stop_after_stale_evals", "max_time"),
}
"""How `--help` groups the run-level settings; a test says that each stands in exactly one group."""

LAUNCH: tuple[tuple[str, Any, Any, str], ...] = (
    ("config", str | None, None, "YAML file to start from; flags go on top."),
    (
        "start_from",
        str | None,
        None,
        "A run, or a saved agent, whose weights and statistics the new run begins with, by its settings; flags go on "
        "top. Optimizer, counters and random streams are new, and that run stays as it is.",
    ),
    (
        "trust_modules",
        bool,
        False,
        "With --start-from: import the modules that the run of somebody else names: of environment, wrappers, encoder "
        "and schedules.",
    ),
    ("quiet", bool, False, "Print only the run folder."),
    ("profile", bool, False, "Tell at the end where the time went, and keep it in profile.json."),
)
"""Flags of `train` that are no settings."""

MAPS = ("env_kwargs", "encoder_kwargs")
"""Settings that are maps: their flags take one line of YAML."""
WRITTEN: dict[Any, Any] = {Schedule: str, Wrappers: tuple[str, ...], int | Literal["auto"]: str}
"""How a flag writes settings that have forms of their own."""


def chosen_env(env_id: str | None, env_factory: str | None) -> EnvFactory | str | None:
    """Return the environment that two flags name, of which at most one is given."""
    if env_factory is None:
        return env_id
    if env_id is not None:
        raise UserError("--env-id and --env-factory both name an environment; give one of them")
    return import_factory(env_factory)


def field_help(config_class: type) -> dict[str, str]:
    """Return the string under each field of a dataclass, its bases included."""
    found: dict[str, str] = {}
    for owner in reversed(config_class.__mro__):
        if is_dataclass(owner):
            found |= _own_field_help(owner)
    return found


def _own_field_help(config_class: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(config_class))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found


def parse_train_flags(
    algo: str, base: TrainConfig | None, argv: list[str], prog: str, description: str
) -> dict[str, Any]:
    """Return `quiet`, `profile` and, as `config`, the settings of `base` (or the defaults) with flags on top."""
    config_class = algorithm_config_class(algo)
    assert config_class is not None
    values: Mapping[str, Any] = base.to_dict() if base is not None else {}
    groups = {
        name: _group(name, TrainConfig, names, {n: values[n] for n in names if n in values})
        for name, names in RUN_GROUPS.items()
    }
    inner = [item.name for item in fields(config_class)]
    groups[f"{algo} settings"] = _group(f"{algo} settings", config_class, inner, values.get("algorithm", {}))
    # all but `quiet` and `profile` are for the help alone: whoever calls has read them and taken them out of `argv`
    launch: list[Any] = [
        (name, Annotated[kind, tyro.conf.arg(help=text)], default) for name, kind, default, text in LAUNCH
    ]
    members = [(_identifier(name), kind) for name, kind in groups.items()]
    entry: Any = make_dataclass("Train", [*launch, *members], kw_only=True)
    omit_prefixes: Any = tyro.conf.OmitArgPrefixes
    counts = {name for kind in (TrainConfig, config_class) for name in counts_of(kind)}
    parsed = asdict(parse(omit_prefixes[entry], with_whole_numbers(argv, counts), prog, description))
    run_level = {key: value for name in RUN_GROUPS for key, value in parsed[_identifier(name)].items()}
    run_level["env_kwargs"] = yaml_map("env_kwargs", run_level["env_kwargs"], "gravity: 9.8")
    settings = parsed[_identifier(f"{algo} settings")]
    settings["encoder_kwargs"] = yaml_map("encoder_kwargs", settings["encoder_kwargs"], "depth: 3")
    config = {"algo": algo, **run_level, "algorithm": settings}
    return {"quiet": parsed["quiet"], "profile": parsed["profile"], "config": config}


def named_settings(flags: Iterable[str]) -> set[str]:
    """Return the settings that flags name.

    >>> sorted(named_settings(["--env-id=X", "--no-normalize-obs", "--seed", "3"]))
    ['env_id', 'normalize_obs', 'seed']
    """
    words = [flag.partition("=")[0] for flag in flags if flag.startswith("--")]
    return {word.removeprefix("--").replace("-", "_").removeprefix("no_") for word in words}


def taken_flag(flags: list[str], name: str, kind: str, example: str) -> tuple[str | None, list[str]]:
    """Return the value of a flag that decides what other flags there are, and those flags."""
    rest, found = list[str](), list[str]()
    waiting = iter(flags)
    for flag in waiting:
        if flag.startswith(f"{name}="):
            found.append(flag.partition("=")[2])
        elif flag == name:
            found.append(next(waiting, ""))
        else:
            rest.append(flag)
    if "" in found:
        raise UserError(f"{name} needs a {kind}; write {name} {example}")
    if len(found) > 1:
        raise UserError(f"{name} is given {len(found)} times; give one {kind}, and flags on top of it")
    return (found[0] if found else None), rest


def counts_of(config_class: type) -> list[str]:
    """Return the settings that are whole numbers."""
    return [name for name, kind in get_type_hints(config_class).items() if kind in (int, int | None)]


def with_whole_numbers(argv: list[str], names: Iterable[str]) -> list[str]:
    """Return flags in which counts such as 1e5 are written out: `names` are the settings that are counts."""
    flags = {f"--{name.replace('_', '-')}" for name in names}
    found = list(argv)
    for place, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if equals and flag in flags and (number := whole_number(value)) is not None:
            found[place] = f"{flag}={number}"
        elif place and argv[place - 1] in flags and (number := whole_number(word)) is not None:
            found[place] = str(number)
    return found


def _group(name: str, config_class: type, names: Any, values: Mapping[str, Any]) -> type:
    hints, helps = get_type_hints(config_class), field_help(config_class)
    defaults = {item.name: item for item in fields(config_class)}
    members: list[Any] = []
    for key in names:
        kind: Any = WRITTEN.get(hints[key], hints[key]) if key not in MAPS else str
        annotated: Any = Annotated[kind, tyro.conf.arg(help=helps[key])]
        if key in values or key != "env_id":
            members.append((key, annotated, field(default=_default(key, values, defaults[key].default))))
        else:
            members.append((key, annotated))
    group = make_dataclass(_identifier(name).title(), members, kw_only=True)
    group.__doc__ = ""
    return group


def _default(key: str, values: Mapping[str, Any], default: Any) -> Any:
    if key in MAPS:
        return yaml.safe_dump(values.get(key, {}), default_flow_style=True).strip()
    value = values.get(key, default)
    if key.endswith("_schedule"):
        return schedule_text(value)
    if key == "env_wrappers":
        return wrapper_texts(value)
    if key == "num_threads":
        return str(value)
    return tuple(value) if isinstance(value, list) else value


def _identifier(name: str) -> str:
    return name.replace(" ", "_")


def yaml_map(name: str, text: str, example: str) -> dict[str, Any]:
    """Return the map that a flag holds as one line of YAML."""
    try:
        data = yaml.load(text, Loader=StrictLoader)
    except (
        yaml.YAMLError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # as a date that is none
        data = None
    if not isinstance(data, dict):
        flag = f"--{name.replace('_', '-')}"
        raise UserError(f"{flag} {text!r} is not a YAML map; write it as {flag} '{{{example}}}'")
    return data
