"""What a preset says of itself in its `about:` block: words for people, never settings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rl_training.core.errors import ConfigError, did_you_mean

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class About:
    """Where a preset belongs and comes from, and what it reached."""

    family: str = ""
    """The group of environments it is listed under."""
    summary: str = ""
    """What it is."""
    source: str = ""
    """Where its settings come from."""
    expected: str = NOT_MEASURED
    """The scores that were measured, and on which seeds."""
    needs: str = ""
    """What must be installed besides the package."""


def about_of(data: Mapping[str, Any], source: str) -> About:
    """Return the `about:` block of a config file; a key that nobody reads is refused, as it may be a misspelt one."""
    given = data.get("about", {})
    if not isinstance(given, Mapping):
        raise ConfigError([f"about is {given!r}; use a map of words, such as 'summary: …'"], source)
    known = [item.name for item in fields(About)]
    problems = [
        f"unknown key 'about.{key}'{did_you_mean(str(key), known)}" for key in given if key not in known
    ]
    problems += [
        f"about.{key} is {value!r}; use words"
        for key, value in given.items()
        if key in known and not isinstance(value, str | int | float)
    ]
    if problems:
        raise ConfigError(problems, source)
    return About(**{key: str(value) for key, value in given.items()})


def settings_of(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the settings of a config file, without what it says of itself, which is checked."""
    if "presets" in data and "algo" not in data:
        raise ConfigError(
            [f"a manifest, and no config; rl-training benchmark {source} trains what it lists"], source
        )
    about_of(data, source)
    return {key: value for key, value in data.items() if key != "about"}
