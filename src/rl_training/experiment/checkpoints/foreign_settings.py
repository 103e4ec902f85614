"""Bounds on the settings of a checkpoint that is not signed by this user: they could take all memory, or all day.

The arguments of environments and wrappers may be small numbers and short names. A text that could be a path is not
among them: an environment would open it, and a pipe in its place would block forever.
"""

import math
import os
from collections.abc import Iterator
from typing import Any

from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import wrapper_calls
from rl_training.config.plain_data import num_values

MAX_COUNTS = {
    "num_envs": 256, "num_eval_episodes": 1_000, "num_threads": 64, "max_restarts": 100, "num_samplers": 64,
    "num_learners": 64, "learner_shards": 64,
}  # fmt: skip
MAX_NUMBER = 10_000
"""Absolute value of a number among the arguments of an environment."""
MAX_WRAPPER_NUMBER = 1_000
MAX_WRAPPERS = 16
MAX_GROWTH = 2**24
"""Product of the numbers among the arguments of all wrappers: stacked and resized images multiply."""
MAX_TEXT = 100
MAX_ARGUMENTS = 1_000
STEPS = "max_episode_steps"
"""An argument that costs no memory, whatever its value."""


def large_counts(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield (setting, problem) for each count that is too large for an untrusted checkpoint."""
    for name, limit in MAX_COUNTS.items():
        value = getattr(config, name)
        if isinstance(value, int) and value > limit:
            yield name, f"{name} is {value:,}, more than {limit:,}"


def unusual_arguments(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield (setting, problem) for the first argument of environment and wrappers that needs trust."""
    if (problem := _problem(config.env_kwargs, MAX_NUMBER)) is not None:
        yield "env_kwargs", f"env_kwargs contain {problem}"
    calls, growth = wrapper_calls(config.env_wrappers), 1.0
    if len(calls) > MAX_WRAPPERS:
        yield "env_wrappers", f"there are {len(calls):,} env_wrappers, more than {MAX_WRAPPERS}"
    for name, arguments in calls:
        if (problem := _problem(arguments, MAX_WRAPPER_NUMBER)) is not None:
            yield "env_wrappers", f"the arguments of env_wrappers '{name}' contain {problem}"
            return
        growth *= math.prod(max(abs(number), 1.0) for number in _numbers(_without_steps(arguments)))
    if growth > MAX_GROWTH:
        yield (
            "env_wrappers",
            f"the numbers in env_wrappers multiply to {growth:.3g}, more than {MAX_GROWTH:,}",
        )


def _problem(arguments: dict[str, Any], largest: int) -> str | None:
    if num_values(arguments) > MAX_ARGUMENTS:
        return f"more than {MAX_ARGUMENTS:,} values"
    for value in _values(_without_steps(arguments)):
        if isinstance(value, str):
            if len(value) > MAX_TEXT or any(letter in value for letter in "/\\:~\0") or value.startswith("."):
                return f"the text {value[:MAX_TEXT]!r}, which may be a path"
            if os.path.lexists(value):
                return f"the name of an existing file, {value!r}"
        elif not isinstance(value, bool | None) and not abs(value) <= largest:
            return f"a number whose absolute value is not at most {largest:,}"
    return None


def _without_steps(arguments: dict[str, Any]) -> dict[str, Any]:
    steps = arguments.get(STEPS)
    return {name: value for name, value in arguments.items() if name != STEPS or not isinstance(steps, int)}


def _values(data: Any) -> Iterator[Any]:
    """Yield the keys and scalars in plain data."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _values(value)
    elif isinstance(data, list | tuple):
        for part in data:
            yield from _values(part)
    else:
        yield data


def _numbers(data: Any) -> Iterator[float]:
    values = (value for value in _values(data) if not isinstance(value, bool))
    return (float(value) for value in values if isinstance(value, int | float))
