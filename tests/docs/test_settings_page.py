"""docs/settings.md: its configs load, its commands parse, its settings exist."""

import re
import shlex
from dataclasses import fields

import pytest
import yaml

from loading import ROOT
from rl_training.cli.arguments import arguments_of, parse_values
from rl_training.cli.train import Train, config_from_flags
from rl_training.config import TrainConfig, config_from_dict

PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL))
def test_its_configs_load(text):
    config = config_from_dict(yaml.safe_load(text))
    assert config != TrainConfig(algo=config.algo, env_id=config.env_id)
    assert config_from_dict(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_parse(command):
    program, name, *words = shlex.split(command)
    assert (program, name) == ("rl-training", "train")
    rest: list[str] = []
    start = "start_from" in parse_values(arguments_of(Train), words, "prog", rest)
    base = TrainConfig(algo="ppo", env_id="CartPole-v1") if start else None
    assert config_from_flags("ppo", base, rest if start else rest[1:], "prog")[0].algo == "ppo"


def test_its_settings_exist():
    names = {item.name for item in fields(TrainConfig)}
    wanted = {
        "max_episode_steps",
        "env_wrappers",
        "best_by",
        "stop_after_stale_evals",
        "max_eval_episode_steps",
        "num_threads",
    }
    assert wanted <= names
    assert all(f"`{name}" in PAGE for name in wanted)
