"""The package against examples/dqn_breakout_atari_reference.py: two implementations, one arithmetic, in float64."""

from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from image_parity import NUM_ACTIONS, SHAPE, Seeing, copy_parameters, stacked
from parity_harness import ROOT, assert_close, load_script, moves, parameters_of, printed_return

from rl_training.algorithms.dqn import DQNConfig
from rl_training.config import load_config

# the ring goes round, and some updates keep the target network of the one before
SHORT = {
    "total_timesteps": 560, "learning_starts": 300, "buffer_size": 250, "target_update_every_timesteps": 50,
    "train_freq": 8, "batch_size": 16, "exploration_fraction": 0.8, "seed": 7,
}  # fmt: skip
RUN = ("env_id", "seed", "total_timesteps")
"""Settings of a run, not of the algorithm."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("dqn_breakout_atari_reference")


def settings(args: Any) -> DQNConfig:
    given = {name: value for name, value in asdict(args).items() if name not in RUN}
    return DQNConfig(**given, features_dim=512, hidden_sizes=(), encoder="nature")


def test_the_script_has_the_settings_of_the_preset(script: ModuleType) -> None:
    args = script.Args()
    preset = load_config(ROOT / "configs" / "dqn" / "breakout_atari.yaml")
    # to the preset's 84 x 84 `auto` is the same network
    assert replace(settings(args), encoder="auto") == preset.algorithm
    assert preset.num_envs == 1
    for name in RUN:
        assert getattr(args, name) == getattr(preset, name)


def test_same_streams_give_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(**SHORT)
    learner = Seeing("dqn", settings(args), args).learner
    assert_close(parameters_of(learner.target.network), parameters_of(learner.policy.network), atol=0)
    # the package has a seed of its own for the encoder, and goes on with the first stream for the values
    generator = torch.Generator().manual_seed(args.seed)
    seed = int(torch.randint(2**62, (), generator=generator, dtype=torch.int64))
    network = script.QNetwork(SHAPE, NUM_ACTIONS, torch.Generator().manual_seed(seed))
    script.uniform(network.values, generator)
    assert_close(parameters_of(learner.policy.network), parameters_of(network), atol=1e-12)


def test_same_weights_give_the_same_parameters_after_several_updates(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(**SHORT)
    parts = Seeing("dqn", settings(args), args)
    network = script.QNetwork(SHAPE, NUM_ACTIONS, torch.Generator().manual_seed(0))
    copy_parameters(parts.learner.policy.network, network)
    initial = [p.clone() for p in parameters_of(network)]
    mean_score = script.train(network, script.Env(stacked(), args), args)
    parts.train()
    assert parts.progress.updates == 33
    assert parts.source.buffer.frames is not None, "the package must keep each frame once, too"
    assert parts.source.buffer.total_rows > 2 * args.buffer_size
    assert min(parts.stepper.cuts, parts.stepper.truncations, parts.stepper.terminations) >= 5
    assert parts.episodes.means()["rollout/ep_rew_mean"] == mean_score
    assert min(moves(parameters_of(network), initial)) > 1e-4, "nothing was learned"
    assert_close(parameters_of(parts.learner.policy.network), parameters_of(network), atol=1e-8)


def test_the_script_runs_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    flags = ("--total-timesteps", "600", "--learning-starts", "500", "--train-freq", "10")
    assert 0 <= printed_return("dqn_breakout_atari_reference", tmp_path, *flags) < 50
