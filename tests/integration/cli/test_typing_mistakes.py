"""What strangers type: each gets one sentence that names it, exit code 2, and leaves nothing behind."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from rl_training.algorithms import PPO
from rl_training.config import TrainConfig, config_from_dict
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.foreign_names import EXPLANATIONS, OTHER_NAMES, settings_in
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
    assert not ours & (set(OTHER_NAMES) | set(EXPLANATIONS))
    assert not set(OTHER_NAMES) & set(EXPLANATIONS)
    assert set(OTHER_NAMES.values()) - ours <= {"max_episode_steps"}
    said = [name for sentences in EXPLANATIONS.values() for text in sentences for name in settings_in(text)]
    assert set(said) <= ours


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("policy", "there is no policy argument"),
        (
            "policy_kwargs",
            "its entries are settings: net_arch is 'hidden_sizes', activation_fn is 'activation'",
        ),
        (
            "features_extractor_class",
            "use 'encoder': your class in Python, its module:Name in YAML and flags",
        ),
        ("verbose", "use learn(progress=False) in Python or --quiet on the command line"),
        ("tensorboard_log", "TensorBoard files are always written, into the run folder"),
        ("vec_env_cls", "'env_backend' says where environments run: sync, async"),
        ("monitor_dir", "episode returns and lengths are always logged"),
        ("num_workers", "'num_envs' is the number of environments"),
        ("train_batch_size", "a rollout has 'num_steps' * 'num_envs' steps"),
        ("framework", "every network is a PyTorch network"),
    ],
)
def test_a_setting_of_others_without_a_counterpart_gets_a_sentence(name, words, cli, tmp_path):
    """As a keyword, as a flag and as a key, at either level."""
    with pytest.raises(ConfigError) as raised:
        PPO("CartPole-v1", **{name: 1})
    assert f"unknown setting '{name}'; {words}" in str(raised.value)
    flag = f"--{name.replace('_', '-')}"
    assert f"unknown flag '{flag}'; {words}" in cli(*TRAIN, flag, 1).sentence
    for place in ("", "algorithm."):
        with pytest.raises(ConfigError) as raised:
            config_from_dict(BASE | ({"algorithm": {name: 1}} if place else {name: 1}))
        assert f"unknown key '{place}{name}'; {words}" in str(raised.value)


BASE = {"algo": "ppo", "env_id": "CartPole-v1"}


@pytest.mark.parametrize(
    ("name", "ours"),
    [("net_arch", "hidden_sizes"), ("n_eval_episodes", "num_eval_episodes"), ("grad_clip", "max_grad_norm")],
)
def test_a_setting_of_others_that_is_called_otherwise(name, ours, cli):
    flag, our_flag = (f"--{word.replace('_', '-')}" for word in (name, ours))
    assert cli(*TRAIN, flag, 1).sentence.endswith(f"unknown flag '{flag}'; here it is called '{our_flag}'")
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'; here it is called '{ours}'"):
        PPO("CartPole-v1", **{name: 1})


def test_a_sentence_names_only_settings_that_the_algorithm_has():
    config = TrainConfig(algo="dqn", env_id="CartPole-v1")
    with pytest.raises(ConfigError) as raised:
        config.with_overrides(train_batch_size=1, kl_coeff=1)
    assert raised.value.problems[0] == "unknown setting 'train_batch_size'; use 'batch_size'"
    assert "target_kl" not in raised.value.problems[1]


@pytest.mark.parametrize("flag", ["--optimize", "--dropout", "--discount", "--memory"])
def test_nothing_is_suggested_that_is_not_close(flag, cli):
    assert cli(*TRAIN, flag, 1).sentence.endswith(f"'{flag}'; rl-training train ppo --help lists all flags")


def test_an_unknown_algorithm_is_answered_with_all_of_them(cli):
    listed = "algorithms are a2c, awac, bc, cql, dqn, "
    assert f"unknown algorithm 'reinforce'; {listed}" in cli("train", "reinforce").sentence
    assert f"unknown algorithm 'pppo'; did you mean 'ppo'? {listed}" in cli("train", "pppo").sentence
    wanted = "'ppo/cartpole' is a config, not an algorithm; use --config ppo/cartpole"
    assert wanted in cli("train", "ppo/cartpole").sentence


@pytest.mark.parametrize("arguments", [("MlpPolicy", "CartPole-v1"), ("CnnPolicy",)])
def test_a_policy_by_name_is_answered_with_the_first_line(arguments):
    with pytest.raises(UserError, match=r'PPO takes no policy: write PPO\("CartPole-v1"\)'):
        PPO(*arguments)


def test_two_environments_by_place():
    with pytest.raises(UserError, match="PPO takes one environment"):
        PPO("CartPole-v1", "Acrobot-v1")


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
            "a2c, awac, bc, cql, dqn, iql, mappo, ppo, rebrac, recurrent_ppo, sac, td3, td3_bc",
            "train --config ppo/cartpole",
            "train --help",
        ):
            assert words in outcome.sentence

    def test_help_of_train_lists_algorithms_and_examples_on_lines_of_their_own(self, cli):
        lines = cli("train", "--help").out.splitlines()
        assert "  a2c, awac, bc, cql, dqn, iql, mappo, ppo, rebrac, recurrent_ppo, sac, td3, td3_bc" in lines
        assert any(line.startswith("  rl-training train ppo --env-id CartPole-v1  ") for line in lines)
        assert not any(line.count("rl-training train") > 1 for line in lines)

    def test_no_setting_is_called_required_that_a_config_may_name(self, cli):
        for arguments in (("train", "--help"), ("train", "ppo", "--help")):
            said = cli(*arguments).out
            assert "(required)" not in said
            assert "(unless a config names it)" in said
