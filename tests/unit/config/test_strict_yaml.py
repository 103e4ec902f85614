"""Configs of a stranger: small files that would take minutes, and values that would break a message."""

import os
import time
from pathlib import Path

import pytest

from rl_training.config import TrainConfig, config_from_dict, load_config
from rl_training.config.strict_yaml import MAX_VALUES, read_yaml
from rl_training.core.errors import MAX_PROBLEMS, ConfigError, UserError

BEGIN = "algo: ppo\nenv_id: CartPole-v1\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"hidden_sizes: [{'1, ' * 100_000}]", "larger than 256 KiB"),
        (f"env_kwargs: {{a: [{'1,' * MAX_VALUES}]}}", "more than 10,000 values"),
        ("".join(f"k{number}: 1\n" for number in range(20_000)), "more than 10,000 values"),
        (f"seed: {'9' * 4_000}", "more than 400 digits"),
        (f"seed: 0x{'f' * 100_000}", "more than 400 digits"),
        (f"seed: {'1:' * 50_000}1", "more than 400 digits"),
        (f"algorithm: {{gamma: {'9' * 350}}}", "use a finite number"),
        (f"{'k' * 100_000}: 1\n{'k' * 100_000}: 2", "is not valid YAML"),
        (f"env_kwargs: {'[' * 3_000}", "is not valid YAML"),
        (f"seed: {'x' * 200_000}", "use a whole number"),
        (f"algorithm: {{learning_rate_schedule: [{'[0, 1],' * 2_000}]}}", "use at most 1,000 pairs"),
        (f"algorithm: {{hidden_sizes: [{'1,' * 5_000}]}}", "use at most 64 widths"),
    ],
)
def test_a_config_that_would_take_minutes_is_refused_at_once(file: Path, text: str, problem: str) -> None:
    file.write_text(BEGIN + text, encoding="utf-8")
    started = time.monotonic()
    with pytest.raises(UserError, match=problem) as refusal:
        load_config(file)
    assert time.monotonic() - started < 5  # it took minutes
    assert len(str(refusal.value)) < 2_000


@pytest.mark.parametrize("place", ["the run", "the algorithm"])
def test_of_many_unknown_keys_some_are_listed(place: str) -> None:
    unknown = {f"settin{number}": 1 for number in range(5_000)}
    data = {"algo": "ppo", "env_id": "CartPole-v1"} | (
        unknown if place == "the run" else {"algorithm": unknown}
    )
    started = time.monotonic()
    with pytest.raises(ConfigError, match="more") as refusal:
        config_from_dict(data)
    assert time.monotonic() - started < 3
    assert len(str(refusal.value).splitlines()) <= MAX_PROBLEMS + 2
    assert "4,981 more unknown" in "".join(refusal.value.problems)


def test_a_pipe_is_not_read(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(UserError, match="is not a regular file"):
        read_yaml(file, file)


LAUGHS = "{a:w: {a: &a [x, x], b: &b [*a, *a], c: [*b, *b]}}"


@pytest.mark.parametrize(
    "settings", [{"env_wrappers": [LAUGHS]}, {"learning_rate_schedule": "[&a [0, 1], *a]"}]
)
def test_aliases_are_refused_in_every_text_that_is_yaml(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TrainConfig(algo="ppo", env_id="CartPole-v1").with_overrides(**settings)


def test_a_config_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(ConfigError, match="env_kwargs hold more than 5,000 values"):
        TrainConfig(algo="ppo", env_id="CartPole-v1", env_kwargs={"a": [1] * 6_000})
    many = TrainConfig(algo="ppo", env_id="CartPole-v1", env_kwargs={"a": [1] * 4_000})
    assert "a" in many.env_kwargs
