"""Opens the games of PettingZoo by id, and recognises games that a function builds."""

import importlib
from pkgutil import iter_modules
from typing import Any

from rl_training.config.train_config import GAMES
from rl_training.core.errors import UserError, did_you_mean, reason

PREFIX = GAMES
FAMILIES = ("classic", "butterfly", "sisl", "atari", "mpe2")
"""Families whose packages are known: their ids import nothing else."""
EXTRA = "pip install 'rl-training[agents]'"


def names_game(env_id: str) -> bool:
    """Return whether an id names a game of PettingZoo."""
    return env_id.startswith(PREFIX)


def is_game(env: Any) -> bool:
    """Return whether an object has PettingZoo's interface, of either kind."""
    return hasattr(env, "possible_agents") and callable(getattr(env, "step", None))


def family_of(env_id: str) -> str:
    """Return the family of a game's id, which is a package unless it is one of PettingZoo's own.

    >>> family_of("pettingzoo://classic/connect_four_v3")
    'classic'
    """
    return env_id.removeprefix(PREFIX).partition("/")[0]


def open_game(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Return a new game: with simultaneous actions where there is such a version, otherwise in turns.

    `pettingzoo://family/name` is looked up in PettingZoo's registry. A package that registers nothing, such as mpe2,
    has a module `family.name` with a function `parallel_env` or `env`.
    """
    family, name = family_of(env_id), env_id.removeprefix(PREFIX).partition("/")[2]
    if not family.replace(".", "_").isidentifier() or not name.replace("-", "_").isidentifier():
        raise UserError(
            f"env_id '{env_id}' is not a game; write {PREFIX}family/name, such as {PREFIX}mpe2/simple_spread_v3"
        )
    try:
        pettingzoo = importlib.import_module("pettingzoo")
    except ImportError as error:
        raise UserError(f"env_id '{env_id}' needs PettingZoo; {EXTRA}") from error
    if family not in FAMILIES:
        _import_package(family, env_id)
    full = f"{family}/{name}"
    for kind in ("parallel", "aec"):
        try:
            found = pettingzoo.spec(kind, full)
        except Exception:  # not of this kind, or not at all
            continue
        try:
            return pettingzoo.make(kind, found, **kwargs)
        except Exception as error:
            if type(error).__name__ != "FailedToImport":
                raise
            missing = error.__cause__ if error.__cause__ is not None else error
            raise UserError(
                f"env_id '{env_id}' needs a package that is not installed ({reason(missing)}); "
                f"pip install 'pettingzoo[{family}]'"
            ) from error
    ids = {
        spec_id.replace("-v", "_v") for spec_id in (*pettingzoo.parallel_registry, *pettingzoo.aec_registry)
    }
    return _of_module(
        env_id, family, name, kwargs, sorted(each for each in ids if each.startswith(f"{family}/"))
    )


def _import_package(family: str, env_id: str) -> None:
    try:
        importlib.import_module(family)
    except ImportError as error:
        close = did_you_mean(family, FAMILIES) or f"; PettingZoo's families are {', '.join(FAMILIES)}"
        raise UserError(f"env_id '{env_id}': there is no package '{family}'{close}") from error


def _of_module(env_id: str, family: str, name: str, kwargs: dict[str, Any], known: list[str]) -> Any:
    """Return a game of a module that has the function `parallel_env` or `env`."""
    try:
        package = (
            importlib.import_module(family)
            if family not in ("classic", "butterfly", "sisl", "atari")
            else None
        )
    except ImportError as error:
        raise UserError(
            f"env_id '{env_id}' needs the package {family}; pip install {family}, or {EXTRA}"
        ) from error
    try:
        module = None if package is None else importlib.import_module(f"{family}.{name}")
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) or error.name != f"{family}.{name}":
            raise UserError(f"env_id '{env_id}' cannot be imported: {reason(error)}") from error
        module = None
    build = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if build is None:
        known = known or [
            f"{family}/{each.name}"
            for each in iter_modules(getattr(package, "__path__", ()))
            if "_v" in each.name
        ]
        close = did_you_mean(f"{family}/{name}", known)
        listed = (
            f"; {family} has {', '.join(each.partition('/')[2] for each in known)}"
            if known and not close
            else ""
        )
        raise UserError(f"env_id '{env_id}': there is no game '{name}' in {family}{close}{listed}")
    return build(**kwargs)
