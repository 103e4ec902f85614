"""The package against examples/ppo_breakout_atari_reference.py: two implementations, one arithmetic, in float64."""

from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from image_parity import NUM_ACTIONS, SHAPE, Seeing, copy_parameters, stacked
from parity_harness import ROOT, assert_close, load_script, moves, parameters_of, printed_return

from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import load_config

SHORT = {
    "total_timesteps": 384, "num_envs": 2, "num_steps": 32, "batch_size": 24, "update_epochs": 2, "seed": 7,
}  # fmt: skip
RUN = ("env_id", "seed", "total_timesteps", "num_envs")
"""Settings of a run, not of the algorithm."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("ppo_breakout_atari_reference")


def settings(args: Any) -> PPOConfig:
    given = {name: value for name, value in asdict(args).items() if name not in RUN}
    return PPOConfig(
        **given,
        learning_rate_schedule="linear",
        clip_coef_schedule="linear",
        features_dim=512,
        hidden_sizes=(),
        encoder="nature",
    )


def test_the_script_has_the_settings_of_the_preset(script: ModuleType) -> None:
    args = script.Args()
    preset = load_config(ROOT / "configs" / "ppo" / "breakout_atari.yaml")
    # to the preset's 84 x 84 `auto` is the same network
    assert replace(settings(args), encoder="auto") == preset.algorithm
    for name in RUN:
        assert getattr(args, name) == getattr(preset, name)


def test_same_stream_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(**SHORT)
    generator = torch.Generator().manual_seed(args.seed)
    # the package draws a seed for encoders that ask torch's global generator; ours does not
    torch.randint(2**62, (), generator=generator, dtype=torch.int64)
    network = Seeing("ppo", settings(args), args).learner.policy.network
    assert_close(
        parameters_of(network), parameters_of(script.Agent(SHAPE, NUM_ACTIONS, generator)), atol=1e-12
    )


def test_same_weights_give_the_same_parameters_after_several_updates(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(**SHORT)
    parts = Seeing("ppo", settings(args), args)
    agent = script.Agent(SHAPE, NUM_ACTIONS, torch.Generator().manual_seed(0))
    copy_parameters(parts.learner.policy.network, agent)
    initial = [p.clone() for p in parameters_of(agent)]
    mean_score = script.train(agent, script.Envs(stacked, args), args)
    parts.train()
    assert parts.progress.updates == 6
    assert min(parts.stepper.cuts, parts.stepper.truncations, parts.stepper.terminations) >= 5
    assert parts.episodes.means()["rollout/ep_rew_mean"] == mean_score
    assert min(moves(parameters_of(agent), initial)) > 1e-4, "nothing was learned"
    assert_close(parameters_of(parts.learner.policy.network), parameters_of(agent), atol=1e-8)


def test_the_script_runs_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    flags = ("--total-timesteps", "600", "--num-envs", "1", "--num-steps", "300", "--update-epochs", "1")
    assert 0 <= printed_return("ppo_breakout_atari_reference", tmp_path, *flags) < 50
