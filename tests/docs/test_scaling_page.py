"""docs/scaling.md: its commands parse, its settings exist, its groups are divided as it says."""

import re
import shlex

import pytest

from loading import ROOT
from rl_training.cli.arguments import arguments_of, parse_values
from rl_training.cli.plan import flags_and_config
from rl_training.cli.resume import Resume
from rl_training.cli.train import Train, config_from_flags
from rl_training.config import TrainConfig, load_config
from rl_training.config.train_config import NOT_IN_FINGERPRINT, OF_THE_MACHINE

PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
COMMANDS = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_parse(command):
    program, name, *words = shlex.split(command)
    if program == "pip":
        assert words == ["rl-training[ray]"]
        return
    if name == "plan":
        assert flags_and_config(words)[0].cores == (2,)
        return
    rest: list[str] = []
    flags = Train(**parse_values(arguments_of(Train), words, "prog", rest))
    assert flags.config is not None
    base = load_config(flags.config)
    assert config_from_flags(base.algo, base, rest, "prog")[0] != base


def test_the_resume_in_its_text_parses():
    (words,) = re.findall(r"`rl-training resume (.*?)`", PAGE)
    found = parse_values(arguments_of(Resume), shlex.split(words), "prog")
    assert (found["run"], found["engine"]) == ("runs/RUN", "local")


def test_its_two_kinds_of_settings():
    rows = re.findall(r"^\| `(\w+)`: .*? \| `(\w+)`: ", PAGE, flags=re.MULTILINE)
    assert rows == [("env_groups", "engine"), ("lag", "num_samplers"), ("learner_shards", "num_learners")]
    for experiment, machine in rows:
        assert machine in OF_THE_MACHINE
        assert experiment not in NOT_IN_FINGERPRINT


def test_its_groups():
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", num_envs=8, env_groups=3)
    assert "8 environments into groups of {}, {} and {}".format(*config.group_sizes) in PAGE
