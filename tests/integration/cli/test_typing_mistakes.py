"""What strangers type: each gets one sentence that names it, exit code 2, and leaves nothing behind."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from rl_training.algorithms import PPO
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.foreign_names import OTHER_NAMES
from rl_training.experiment.console import Console, python_console

pytestmark = pytest.mark.fault

TRAIN = ("train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", 64, "--num-envs", 2, "--num-steps", 16,
         "--batch-size", 16, "--eval-every-timesteps", 0, "--num-eval-episodes", 1, "--quiet")  # fmt: skip


def test_a_path_that_no_disk_has(tmp_path):
    with pytest.raises(ConfigError, match=r"a path cannot contain the character \\0"):
        TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=f"{tmp_path}/a\0b")


def test_a_path_that_is_too_long_leaves_room_for_the_reason(cli):
    outcome = cli(*TRAIN, "--output-dir", "/".join(["x" * 100] * 50))
    assert outcome.code == 2
    assert outcome.sentence.endswith("xxx…' cannot be written: File name too long")


@pytest.mark.parametrize("count", ["1e2", "100.0", 100])
def test_counts_are_read_as_people_write_them(count, cli, tmp_path):
    outcome = cli(*TRAIN, "--total-timesteps", count, "--output-dir", tmp_path / "runs")
    assert outcome.code == 0, outcome.err
    assert cli("eval", outcome.out.strip(), "--num-episodes", "1e0").code == 0


def test_names_of_others_are_known_in_configs_and_python_too():
    with pytest.raises(ConfigError, match="unknown setting 'n_envs'; here it is called 'num_envs'"):
        TrainConfig(algo="ppo", env_id="CartPole-v1").with_overrides(n_envs=4)
    with pytest.raises(UserError, match="'clip_range'; here it is called 'clip_coef'"):
        TrainConfig(algo="ppo", env_id="CartPole-v1").with_overrides(clip_range=0.2)


def test_a_name_of_others_is_none_of_ours():
    """Otherwise a setting would be told to be called otherwise."""
    from dataclasses import fields

    from rl_training.algorithms import ALGORITHMS

    ours = {item.name for face in ALGORITHMS.values() for item in fields(face.config_class)}
    ours |= {item.name for item in fields(TrainConfig)}
    assert not ours & set(OTHER_NAMES)
    assert set(OTHER_NAMES.values()) - ours <= {"max_episode_steps"}


def test_the_package_itself_is_a_command():
    command = [sys.executable, "-m", "rl_training", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip()


class TestProgress:
    @pytest.mark.parametrize(("asked", "lines"), [(True, True), (False, False), ("auto", False)])
    def test_python_shows_what_is_asked_for(self, asked, lines, tiny, capsys):
        PPO(tiny("ppo")).learn(progress=asked)
        assert bool(capsys.readouterr().out) == lines

    def test_a_terminal_gets_a_bar_by_itself(self, tiny, monkeypatch):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        assert type(python_console("auto")).__name__ == "RichConsole"
        assert type(python_console(False)) is Console

    def test_a_notebook_gets_one_too(self, monkeypatch):
        shell = type("ZMQInteractiveShell", (), {})
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=shell))
        assert type(python_console("auto")).__name__ == "RichConsole"

    def test_other_words_are_refused(self, tiny):
        with pytest.raises(UserError, match="progress is 'yes'; use True, False or 'auto'"):
            PPO(tiny("ppo")).learn(progress="yes")


class TestHelp:
    def test_train_alone_says_what_to_do_next(self, cli):
        outcome = cli("train")
        assert outcome.code == 2
        for words in (
            "a2c, dqn, ppo, recurrent_ppo, sac, td3",
            "train --config ppo/cartpole",
            "train --help",
        ):
            assert words in outcome.sentence

    def test_help_of_train_lists_algorithms_and_examples_on_lines_of_their_own(self, cli):
        lines = cli("train", "--help").out.splitlines()
        assert "  a2c, dqn, ppo, recurrent_ppo, sac, td3" in lines
        assert any(line.startswith("  rl-training train ppo --env-id CartPole-v1  ") for line in lines)
        assert not any(line.count("rl-training train") > 1 for line in lines)

    def test_no_setting_is_called_required_that_a_config_may_name(self, cli):
        for arguments in (("train", "--help"), ("train", "ppo", "--help")):
            said = cli(*arguments).out
            assert "(required)" not in said
            assert "(unless a config names it)" in said
