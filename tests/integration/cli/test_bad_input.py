"""Bad input: one sentence that names the culprit, exit code 2, and no run folder left behind."""

import sys
from pathlib import Path

import pytest

from rl_training.algorithms import PPO
from rl_training.core.errors import UserError

pytestmark = pytest.mark.fault


def run_folders(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


FLAGS = {
    "unknown environment": (["--env-id", "CartPol-v1"], ["CartPol", "CartPole"]),
    "an environment of a package": (["--env-id", "Xyzzy-Empty-v0"], ["module:Xyzzy-Empty-v0"]),
    "environment without its package": (["--env-id", "NoSuchGames/Pong-v5"], ["NoSuchGames/Pong-v5"]),
    "unknown module": (["--env-id", "no_such_module:Env-v0"], ["no_such_module"]),
    "unknown id in a module": (["--env-id", "tiny_envs:Nothing-v0"], ["Nothing"]),
    "argument the environment does not take": (
        ["--env-id", "tiny_envs:Clockwork-v0", "--env-kwargs", "{lenth: 4}"],
        ["tiny_envs:Clockwork-v0", "lenth"],
    ),
    "arguments that are no map": (
        ["--env-id", "CartPole-v1", "--env-kwargs", "[4]"],
        ["--env-kwargs", "[4]"],
    ),
    "broken arguments": (["--env-id", "CartPole-v1", "--env-kwargs", "{a: ["], ["--env-kwargs"]),
    "action space": (["--env-id", "tiny_envs:Unsupported-v0"], ["action space Text", "Discrete"]),
    "observation space": (
        ["--env-id", "tiny_envs:Unsupported-v0", "--env-kwargs", "{part: observation}"],
        ["observation space Text", "'words'"],
    ),
    "no native implementation": (
        ["--env-id", "tiny_envs:Clockwork-v0", "--env-backend", "native"],
        ["tiny_envs:Clockwork-v0", "'sync' or 'async'"],
    ),
    "impossible setting of the run": (["--env-id", "CartPole-v1", "--num-envs", "0"], ["num_envs is 0"]),
    "impossible setting of the algorithm": (["--env-id", "CartPole-v1", "--gamma", "2"], ["gamma is 2"]),
    "batch larger than the rollout": (
        ["--env-id", "CartPole-v1", "--num-envs", "1", "--num-steps", "8"],
        ["batch_size is 64", "8 rows"],
    ),
    "unknown device": (["--env-id", "CartPole-v1", "--device", "abacus"], ["device 'abacus'", "'cpu'"]),
    "device that is not here": (["--env-id", "CartPole-v1", "--device", "cuda:99"], ["device 'cuda:99'"]),
}


@pytest.mark.parametrize("case", FLAGS)
def test_train_refuses_and_leaves_nothing_behind(cli, tmp_path, case):
    arguments, facts = FLAGS[case]
    outcome = cli("train", "ppo", "--output-dir", tmp_path / "runs", "--total-timesteps", 64, *arguments)
    assert outcome.code == 2, outcome
    for fact in facts:
        assert fact in outcome.sentence
    assert outcome.out == ""
    assert run_folders(tmp_path / "runs") == []


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_unknown_environment_in_processes(cli, tmp_path, backend):
    outcome = cli(
        "train", "ppo", "--env-id", "Nothing-v7", "--env-backend", backend, "--output-dir", tmp_path / "runs"
    )
    assert outcome.code == 2
    assert "Nothing" in outcome.sentence
    assert run_folders(tmp_path / "runs") == []


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("algo: ppo\nenv_id: CartPole-v1\nnum_env: 3\n", ["num_env", "num_envs"]),
        ("algo: ppo\nenv_id: CartPole-v1\nalgorithm: {gama: 0.9}\n", ["algorithm.gama", "gamma"]),
        ("algo: ppo\nenv_id: CartPole-v1\nseed: many\n", ["seed is 'many'", "whole number"]),
        ("algo: ppo\nenv_id: CartPole-v1\nseed: 1\nseed: 2\n", ["'seed' is written twice"]),
        ("algo: [ppo\n", ["not valid YAML"]),
        ("algo: ppo\nenv_id: {{ environment }}\n", ["not valid YAML"]),
        ("- ppo\n", ["not a map"]),
        ("env_id: CartPole-v1\n", ["'algo' is missing"]),
        ("algo: pppo\nenv_id: CartPole-v1\n", ["'pppo'", "did you mean 'ppo'"]),
    ],
)
def test_a_wrong_config_file_is_named_with_the_culprit(cli, tmp_path, text, facts):
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    outcome = cli("train", "--config", path, "--output-dir", tmp_path / "runs")
    assert outcome.code == 2
    for fact in [str(path), *facts]:
        assert fact in outcome.sentence
    assert run_folders(tmp_path / "runs") == []


def test_many_problems_are_told_at_once_each_on_a_line(cli, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("algo: ppo\nenv_id: CartPole-v1\nnum_env: 3\nsede: 4\nnum_envs: x\n", encoding="utf-8")
    outcome = cli("train", "--config", path)
    assert outcome.code == 2
    lines = outcome.err.strip().splitlines()
    assert lines[0] == f"error: {path}:"
    assert len(lines) == 4
    assert all(line.startswith("  - ") for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["train"], ["train needs an algorithm or a config"]),
        (["train", "--seed", "3"], ["train needs an algorithm or a config"]),
        (["train", "pppo", "--env-id", "CartPole-v1"], ["'pppo'", "did you mean 'ppo'"]),
        (
            ["train", "--config", "configs/ppo/cartpol.yaml"],
            ["cartpol.yaml does not exist", "'ppo/cartpole'"],
        ),
        (["train", "--config=nothing.yaml"], ["nothing.yaml does not exist"]),
        (["train", "--config"], ["--config needs a file"]),
        (["train", "--config="], ["--config needs a file"]),
        (["train", "--config", "ppo/cartpole", "--config=ppo/acrobot"], ["--config is given twice"]),
        (["trian"], ["unknown command 'trian'", "did you mean 'train'"]),
        (["eval", "nowhere"], ["nowhere does not exist"]),
        (["resume", "nowhere"], ["nowhere does not exist"]),
        (["eval", "."], ["holds no checkpoint"]),
        (["resume", "."], ["is not part of a run", "resume takes a run folder"]),
        (["eval", "empty/last"], ["has no checkpoint yet"]),
    ],
)
def test_other_commands(cli, tmp_path, monkeypatch, arguments, facts):
    monkeypatch.chdir(tmp_path)
    outcome = cli(*arguments)
    assert outcome.code == 2
    for fact in facts:
        assert fact in outcome.sentence
    assert list(tmp_path.iterdir()) == []


WRONG_FLAGS = [
    (["train", "ppo", "--env-id", "CartPole-v1", "--sed", "3"], "--sed"),
    (["train", "ppo", "--env-id", "CartPole-v1", "--seed", "three"], "--seed"),
    (["train", "ppo", "--env-id", "CartPole-v1", "--env-backend", "asynch"], "--env-backend"),
    (["train", "ppo"], "--env-id"),
    (["eval"], "rl-training eval"),
    (["resume"], "rl-training resume"),
    (["eval", "RUN", "--episodes", "3"], "--episodes"),
    (["resume", "RUN", "--total-timesteps", "many"], "--total-timesteps"),
]


@pytest.mark.parametrize(("arguments", "culprit"), WRONG_FLAGS)
def test_a_wrong_flag_is_one_sentence_like_all_bad_input(cli, tmp_path, monkeypatch, arguments, culprit):
    monkeypatch.chdir(tmp_path)
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert not outcome.left, "the argument parser left the process instead of letting the command return"
    assert outcome.out == ""
    assert culprit in outcome.sentence
    assert not set("─│╭╮╰╯") & set(outcome.sentence)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("arguments", "culprit"), WRONG_FLAGS)
def test_nothing_is_left_of_the_box_around_a_wrong_flag(cli, tmp_path, monkeypatch, arguments, culprit):
    monkeypatch.chdir(tmp_path)
    assert "---" not in cli(*arguments).sentence


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--learning-rte", "3"], "unknown flag '--learning-rte'; did you mean '--learning-rate'?"),
        (["--zzzz"], "unknown flag '--zzzz'; rl-training train dqn --help lists all flags"),
        (
            ["--learning-rate", "abc"],
            "--learning-rate is 'abc'; use a number",
        ),
    ],
)
def test_the_sentence_about_a_wrong_flag_says_no_more_than_it_must(
    cli, tmp_path, monkeypatch, flags, sentence
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["rl-training"])
    outcome = cli("train", "dqn", "--env-id", "CartPole-v1", *flags)
    assert (outcome.code, outcome.sentence) == (2, f"error: {sentence}")


def test_a_config_for_another_algorithm(cli, tmp_path, monkeypatch):
    from rl_training.cli import train as command

    monkeypatch.setattr(command, "known_algorithms", lambda: ["ppo", "sac"])
    outcome = cli("train", "sac", "--config", "ppo/cartpole", "--output-dir", tmp_path / "runs")
    assert outcome.code == 2
    assert "the config is for ppo, not for sac" in outcome.sentence


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
def test_an_output_folder_that_cannot_be_made(cli, tmp_path, below):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    outcome = cli("train", "ppo", "--env-id", "CartPole-v1", "--output-dir", tmp_path / "file" / below)
    assert outcome.code == 2
    assert str(tmp_path / "file") in outcome.sentence
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_tracker_that_is_not_installed(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    outcome = cli(
        "train", "ppo", "--env-id", "CartPole-v1", "--track", "wandb", "--output-dir", tmp_path / "runs"
    )
    assert outcome.code == 2
    assert "pip install 'rl-training[wandb]'" in outcome.sentence
    assert run_folders(tmp_path / "runs") == []


def test_a_video_without_its_extra(cli, tiny, tmp_path, monkeypatch):
    run_dir = PPO(tiny()).learn().agent.path.parents[1]
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    outcome = cli("eval", run_dir, "--num-episodes", 1, "--record", tmp_path / "videos")
    assert outcome.code == 2
    assert "pip install 'rl-training[video]'" in outcome.sentence


@pytest.mark.filterwarnings(
    "ignore:.*not in the possible render_modes:UserWarning"
)  # Gymnasium's, before ours
def test_a_video_of_an_environment_that_cannot_render(cli, tiny, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    run_dir = PPO(tiny()).learn().agent.path.parents[1]
    outcome = cli("eval", run_dir, "--num-episodes", 1, "--record", tmp_path / "videos")
    assert outcome.code == 2
    assert "Clockwork-v0" in outcome.sentence
    assert not (tmp_path / "videos").exists()


def test_no_episodes(cli, tiny):
    run_dir = PPO(tiny()).learn().agent.path.parents[1]
    outcome = cli("eval", run_dir, "--num-episodes", 0)
    assert outcome.code == 2
    assert "num_episodes is 0" in outcome.sentence


def test_the_python_side_raises_the_same_sentence(tiny, tmp_path):
    with pytest.raises(UserError, match="CartPol"):
        PPO(tiny(env_id="CartPol-v1")).learn()
    assert run_folders(tmp_path / "runs") == []


def test_the_traceback_of_bad_input_is_shown_on_request(cli):
    outcome = cli("train", "ppo", "--env-id", "CartPol-v1", "--debug")
    assert outcome.code == 2
    assert "Traceback" in outcome.err
