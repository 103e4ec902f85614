"""Finds the class behind the setting `algo`: an entry of the table, or `module:Class` for an algorithm of your own."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import Algorithm
from rl_training.config import AlgorithmConfig, TrainConfig
from rl_training.config.object_paths import import_object, imported_object, is_name, is_same_name, name_of
from rl_training.config.plain_data import PLAIN, is_plain, plain
from rl_training.core.errors import ConfigError, UserError, did_you_mean, reason

BUILDERS = ("build_actor", "build_source", "build_learner")


def find_algorithm(algo: str) -> type[Algorithm]:
    """Return the class of an algorithm; the module of `module:Class` is imported, so the caller must trust it."""
    if algo in ALGORITHMS:
        return ALGORITHMS[algo]
    if ":" not in algo:
        known = sorted(ALGORITHMS)
        raise UserError(
            f"algo is '{algo}'; use one of {', '.join(known)}, or module:Class for an algorithm of your own"
            f"{did_you_mean(algo, known)}"
        )
    if "<locals>" in algo or (algo.startswith("__main__:") and imported_object(algo) is None):
        kind = "is a local class" if "<locals>" in algo else "was defined in a script"
        name = algo.rpartition(":")[2].rpartition(".")[2]
        raise UserError(
            f"algo '{algo}' {kind}, and cannot be imported by name; move it to the top level of a module, or use "
            f"{name}.load(path) and resume(path, algorithm={name}) in Python"
        )
    if not is_name(algo):
        raise UserError(f"algo is '{algo}'; write an algorithm of your own as module:Class")
    found = import_object(algo, "algo")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UserError(
            f"algo '{algo}' is not an algorithm; use a subclass of rl_training.algorithms.base.Algorithm, such as "
            "one of PPO"
        )
    check_class(found)
    return found


def algorithm_name(algorithm: type[Algorithm]) -> str:
    """Return the value of `algo` for a class: its name in the table, or `module:Class`."""
    for name, known in ALGORITHMS.items():
        if known is algorithm:
            return name
    return name_of(algorithm) or f"{algorithm.__module__}:{algorithm.__qualname__}"


def is_called(algorithm: type[Algorithm], algo: str) -> bool:
    """Return whether `algo` means this class, which a package may export under a second name; imports nothing.

    A class of a script may have been saved as `__main__:Class`.
    """
    return is_same_name(algorithm_name(algorithm), algo) or imported_object(algo) is algorithm


def check_class(algorithm: type[Algorithm]) -> None:
    """Raise an error that says what is missing in an algorithm of the user's own."""
    if algorithm in ALGORITHMS.values():
        return
    name = algorithm_name(algorithm)
    abstract = sorted(getattr(algorithm, "__abstractmethods__", ()))
    if getattr(algorithm.build, "__func__", None) is Algorithm.build.__func__:  # type: ignore[attr-defined]
        needed: tuple[str, ...] = BUILDERS
    else:
        needed = BUILDERS[:1]
    abstract += [part for part in needed if getattr(algorithm, part) is getattr(Algorithm, part)]
    if abstract:
        raise UserError(
            f"{name} is abstract: it does not define {', '.join(abstract)}; use a subclass that does"
        )
    missing = [part for part in ("config_class", "action_spaces") if not hasattr(algorithm, part)]
    if missing:
        raise UserError(
            f"{name} does not define {' and '.join(missing)}; take PPO in algorithms/ppo.py as an example"
        )
    for problem in _settings_problems(algorithm.config_class):
        raise UserError(f"{name}: config_class {_class_name(algorithm.config_class)} {problem}")
    _refuse_unused_losses(algorithm)


def _refuse_unused_losses(algorithm: type[Algorithm]) -> None:
    """Raise if a user's class has a loss that its parent, a built-in algorithm, does not use."""
    for part in algorithm.__mro__:
        if part in ALGORITHMS.values():
            break
        if "losses" in vars(part) or part is Algorithm:  # it says itself which losses it uses
            return
    known = algorithm.losses(algorithm.config_class())
    own = algorithm.__mro__[: algorithm.__mro__.index(part)]
    named = [name for child in own for name in vars(child) if name == "loss" or name.endswith("_loss")]
    for name in named:
        if name not in known and not name.startswith("_"):
            raise UserError(
                f"{algorithm_name(algorithm)} defines {name}, but {part.__name__} has no loss of that name; use "
                f"{' or '.join(known)}, or another name"
            )


def _class_name(config_class: object) -> str:
    return getattr(config_class, "__name__", repr(config_class))


def _settings_problems(config_class: Any) -> Iterator[str]:
    """Yield what makes a class unusable for settings, most important first."""
    if not (isinstance(config_class, type) and issubclass(config_class, AlgorithmConfig)):
        yield "is not a class of settings; use a frozen dataclass that extends PPOConfig or another AlgorithmConfig"
        return
    undecorated = "__dataclass_fields__" not in vars(config_class)
    if undecorated and inspect.get_annotations(config_class):
        yield "is not a dataclass itself; decorate it with @dataclass(frozen=True, kw_only=True)"
        return
    run_level = {item.name for item in fields(TrainConfig)}
    clashes = [item.name for item in fields(config_class) if item.name in run_level]
    if clashes:
        yield f"has a setting '{clashes[0]}', which is a setting of the run; give it another name"
    try:
        settings = config_class()
    except Exception as error:
        yield f"cannot be built without arguments: {reason(error)}; give every setting a valid default"
        return
    bad = [name for name, value in asdict(settings).items() if not is_plain(plain(value))]
    if bad:
        yield f"has a default of '{bad[0]}' that cannot be saved; use {PLAIN}"


def new_config(algo: str, settings: Mapping[str, Any]) -> TrainConfig:
    """Return a config that settings will complete: with their dataset, or for an environment without a name yet."""
    dataset, given = settings.get("dataset"), find_algorithm(algo).config_class
    if dataset is None and given.needs_dataset:
        raise UserError(
            f"{algo} learns from a dataset; name one: a Minari folder or id, a run folder, or a table"
        )
    known = {"env_id": "unnamed"} if dataset is None else {"dataset": dataset}
    return TrainConfig(algo=algo, **known)


def config_for(algorithm: type[Algorithm], config: TrainConfig) -> TrainConfig:
    """Return the config as one of `algorithm`; the settings of a parent class are taken over as they are."""
    name = algorithm_name(algorithm)
    if config.algo == name:
        return config
    if not is_called(algorithm, config.algo) and not issubclass(algorithm, find_algorithm(config.algo)):
        raise ConfigError([f"algo is '{config.algo}', but {algorithm.__name__} takes algo '{name}'"])
    known = {item.name for item in fields(algorithm.config_class)}
    given = {item.name: getattr(config.algorithm, item.name) for item in fields(config.algorithm)}
    lacking = sorted(given.keys() - known)
    if lacking:
        raise ConfigError(
            [
                f"{name} has no setting '{lacking[0]}' of {config.algo}; let its config_class extend the parent's"
            ]
        )
    return replace(config, algo=name, algorithm=algorithm.config_class(**given))
