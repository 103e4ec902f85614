"""What the documentation tells people to type works as typed."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig, load_config
from rl_training.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PRESET = "configs/ppo/cartpole.yaml"
SHORT = ["--total-timesteps", "512", "--num-eval-episodes", "2"]


def spawn(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """A short CartPole run, trained by the command."""
    import contextlib
    import io

    from rl_training.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(
            [
                "train",
                "--config",
                PRESET,
                *SHORT,
                "--quiet",
                "--output-dir",
                str(tmp_path_factory.mktemp("r")),
            ]
        )
    assert code == 0
    return Path(out.getvalue().strip())


COMMANDS = {
    "module": [sys.executable, "-m", "rl_training.cli", "train"],
    "console script": [str(Path(sys.executable).with_name("rl-training")), "train"],
    "script of the checkout": [sys.executable, str(ROOT / "scripts" / "train.py")],
}


@pytest.mark.parametrize("way", COMMANDS)
def test_train_as_a_process_from_any_folder(tmp_path, way):
    done = spawn([*COMMANDS[way], "--config", PRESET, *SHORT, "--output-dir", "here", "--quiet"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (tmp_path / "here").iterdir()
    assert done.stdout == f"here/{folder.name}\n"
    data = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    assert data["status"] == "finished"
    assert data["metrics"]["global_step"] == 512
    assert data["arguments"][-6:] == ["512", "--num-eval-episodes", "2", "--output-dir", "here", "--quiet"]


def test_bad_input_as_a_process(tmp_path):
    done = spawn([*COMMANDS["module"], "ppo", "--env-id", "CartPol-v1"], tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_train_without_a_config(cli, tmp_path):
    outcome = cli(
        "train", "ppo", "--env-id", "CartPole-v1", "--seed", 3, *SHORT, "--output-dir", tmp_path, "--quiet",
        "--num-envs", 2, "--learning-rate", "1e-3", "--hidden-sizes", 16, 8, "--no-normalize-advantage",
        "--learning-rate-schedule", "cosine", "--target-kl", "0.05", "--normalize-obs",
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    config = load_config(Path(outcome.out.strip()) / "config.yaml")
    expected = TrainConfig(
        algo="ppo", env_id="CartPole-v1", seed=3, total_timesteps=512, num_eval_episodes=2, num_envs=2,
        output_dir=str(tmp_path), normalize_obs=True, rebuild_envs="off",
        algorithm=PPOConfig(
            learning_rate=1e-3, hidden_sizes=(16, 8), normalize_advantage=False, target_kl=0.05,
            learning_rate_schedule="cosine",
        ),
    )  # fmt: skip
    assert config == expected


def test_flags_go_on_top_of_the_config(cli, tmp_path):
    outcome = cli(
        "train", "--config", PRESET, "--seed", 3, "--num-envs", 16, "--learning-rate", "3e-4", *SHORT,
        "--output-dir", tmp_path, "--quiet",
    )  # fmt: skip
    assert outcome.code == 0
    expected = load_config(ROOT / PRESET).with_overrides(
        seed=3,
        num_envs=16,
        learning_rate=3e-4,
        total_timesteps=512,
        num_eval_episodes=2,
        output_dir=str(tmp_path),
        rebuild_envs="off",
    )
    assert load_config(Path(outcome.out.strip()) / "config.yaml") == expected


def test_quiet_prints_only_the_run_folder(cli, tmp_path):
    outcome = cli("train", "--config", PRESET, *SHORT, "--output-dir", tmp_path, "--quiet")
    (folder,) = tmp_path.iterdir()
    assert (outcome.code, outcome.out, outcome.err) == (0, f"{folder}\n", "")


def test_the_commands_it_suggests_work(cli, tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.chdir(tmp_path)
    outcome = cli("train", "--config", PRESET, *SHORT)
    assert (outcome.code, outcome.err) == (0, "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"runs/{folder.name}" in outcome.out
    assert "after 512 steps" in outcome.out
    _, _, suggestions = outcome.out.partition("Try next:")
    commands = [line.split() for line in suggestions.strip().splitlines()]
    names = [next(word for word in line if word in ("eval", "resume")) for line in commands]
    assert names == ["eval", "eval", "resume"]
    for line, name in zip(commands, names, strict=True):
        followed = cli(*line[line.index(name) :])
        assert (followed.code, followed.err) == (0, ""), line
    assert len(list((tmp_path / "videos").glob("*.mp4"))) == 1


@pytest.mark.parametrize("blocked", ["imageio_ffmpeg", "pygame", None])
def test_no_video_is_suggested_that_could_not_be_recorded(cli, tmp_path, monkeypatch, blocked):
    """No package for videos, none to draw with, and an environment that cannot render."""
    env_id = "CartPole-v1" if blocked else "tiny_envs:Clockwork-v0"
    if blocked:
        monkeypatch.setitem(sys.modules, blocked, None)
    outcome = cli("train", "--config", PRESET, *SHORT, "--env-id", env_id, "--output-dir", tmp_path)
    _, found, suggestions = outcome.out.partition("Try next:")
    assert found
    assert "--record" not in suggestions
    assert "--num-episodes 20" in suggestions


def test_the_commands_it_suggests_name_the_factory(cli, tmp_path, monkeypatch):
    """After training, after a pause and after a resume."""
    factory = ("--env-factory", "tiny_envs:Clockwork")
    flags = [*SHORT, "--output-dir", tmp_path]
    outcome = cli("train", "ppo", *flags, *factory, "--max-time", 1e-6)
    paused = outcome.out.strip().splitlines()[-1].split()
    assert outcome.code == 0
    for words in (paused[paused.index("resume") :], None):
        if words is None:
            lines = outcome.out.partition("Try next:")[2].strip().splitlines()
            words = lines[0].split()[lines[0].split().index("eval") :]
        outcome = cli(*words)
        assert (outcome.code, outcome.err) == (0, ""), words


def test_the_last_line_says_that_a_run_did_badly(cli, tmp_path):
    """DQN that does not learn anything, and nothing is said about a run that is too short to tell."""
    flags = ["--env-id", "MountainCar-v0", "--total-timesteps", 4200, "--log-every-timesteps", 500]
    flags += ["--num-eval-episodes", 1, "--num-envs", 1]
    outcome = cli("train", "dqn", *flags, "--output-dir", tmp_path, "--learning-starts", 10**6)
    last = outcome.out.strip().splitlines()[-1]
    assert re.match(
        r"This run did badly: the return did not rise \(.* See docs/troubleshooting.md#the-return", last
    )
    assert "did badly" not in cli("train", "--config", PRESET, *SHORT, "--output-dir", tmp_path).out


def test_progress_is_told_in_plain_lines_where_there_is_no_terminal(cli, tmp_path):
    outcome = cli(
        "train", "--config", PRESET, *SHORT, "--eval-every-timesteps", 256, "--output-dir", tmp_path
    )
    lines = [line for line in outcome.out.splitlines() if "/ 512 steps" in line]
    assert [line.split()[0] for line in lines] == ["256", "512"]
    assert all("evaluation" in line for line in lines)
    assert "\x1b" not in outcome.out


def test_eval_tells_the_return(cli, run_dir):
    outcome = cli("eval", run_dir, "--num-episodes", 3)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("ppo on CartPole-v1 after 512 steps: return ")
    assert "(3 episodes)" in outcome.out
    assert len(outcome.out.splitlines()) == 1


def test_eval_json_prints_exactly_one_object(cli, run_dir):
    outcome = cli("eval", run_dir, "--num-episodes", 3, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    summary = json.loads(outcome.out)
    assert {"mean_reward", "std_reward", "mean_ep_length", "num_episodes"} <= set(summary)
    assert summary["num_episodes"] == 3
    assert outcome.out.count("\n") == 1
    assert json.loads(cli("eval", run_dir / "best", "--num-episodes", 3, "--json").out) == summary


def test_eval_stochastic_plays_other_actions(cli, run_dir):
    fixed = json.loads(cli("eval", run_dir, "--json").out)
    sampled = json.loads(cli("eval", run_dir, "--json", "--stochastic").out)
    assert sampled["returns"] != fixed["returns"]
    assert json.loads(cli("eval", run_dir, "--json", "--stochastic").out) == sampled


def test_eval_record_writes_a_video_of_every_frame(cli, run_dir, tmp_path):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    outcome = cli("eval", run_dir, "--num-episodes", 1, "--record", tmp_path / "videos", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    summary = json.loads(outcome.out)
    (video,) = (tmp_path / "videos").iterdir()
    assert summary["videos"] == [str(video)]
    assert video.suffix == ".mp4"
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(video))
    # the first evaluation episode again: its steps and the frame before the first
    assert frames == summary["lengths"][0] + 1
    assert f"return_{summary['returns'][0]:.0f}" in video.name


def test_resume_goes_on(cli, tmp_path):
    trained = cli("train", "--config", PRESET, *SHORT, "--output-dir", tmp_path, "--quiet").out.strip()
    outcome = cli("resume", trained, "--total-timesteps", 1024)
    assert (outcome.code, outcome.err) == (0, "")
    assert "after 1,024 steps" in outcome.out
    assert (Path(trained) / "checkpoints" / "last").read_text(encoding="utf-8") == "step_1024\n"


def test_help_of_the_program(cli):
    for arguments in (["--help"], ["-h"], ["help"]):
        outcome = cli(*arguments)
        assert outcome.code == 0
        for command in ("train", "eval", "resume", "--debug", "--version"):
            assert command in outcome.out
    assert cli().code == 2


@pytest.mark.parametrize(
    "arguments", [["train", "--help"], ["train", "ppo", "--help"], ["train", "ppo", "-h"]]
)
def test_help_of_train_has_every_setting(cli, arguments):
    outcome = cli(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    names = [item.name for item in (*fields(TrainConfig), *fields(PPOConfig))]
    for name in {*names, "config", "quiet"} - {"algo", "algorithm"}:
        assert f"--{name.replace('_', '-')}" in outcome.out


def test_help_of_train_shows_the_values_of_the_config(cli):
    plain, tuned = cli("train", "ppo", "--help").out, cli("train", "--config", PRESET, "--help").out
    assert "(default: 0.99)" in plain
    assert "(default: 0.98)" in tuned


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("eval", ["--num-episodes", "--json", "--record", "--stochastic"]),
        ("resume", ["--total-timesteps", "--max-time", "--quiet"]),
    ],
)
def test_help_of_the_other_commands(cli, command, flags):
    outcome = cli(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    for flag in flags:
        assert flag in outcome.out


def test_version(cli):
    outcome = cli("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"{__version__}\n", "")
