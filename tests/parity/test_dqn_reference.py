"""The package against examples/dqn_cartpole_reference.py: two implementations, one arithmetic, in float64."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from parity_harness import ROOT, Package, assert_close, load_script, moves, parameters_of, printed_return

from rl_training.algorithms.dqn import DQNConfig, DQNLearner
from rl_training.config import load_config
from rl_training.core.types import Progress
from rl_training.data.replay_buffer import ReplayBuffer

SHORT = {
    "max_episode_steps": 15, "total_timesteps": 2048, "learning_starts": 500, "exploration_fraction": 0.4,
    "seed": 7, "gradient_steps": 16, "batch_size": 32,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "double": {"double": True},
    # the ring goes round, and some rounds of updates keep the target network of the round before
    "small-buffer-slow-target": {
        "buffer_size": 1000, "target_update_every_timesteps": 300, "train_freq": 100, "gradient_steps": 8,
        "max_episode_steps": 15,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("dqn_cartpole_reference")


def package(args: Any) -> Package:
    return Package("dqn", DQNConfig, args, learning_rate_schedule="linear")


def truncated_rows(buffer: ReplayBuffer) -> np.ndarray:
    """Return the rows whose episode was cut off: the task goes on, but the next row begins elsewhere."""
    count = len(buffer)
    index = np.arange(buffer.total_rows - count, buffer.total_rows) % buffer.capacity
    rows = buffer.rows[index]  # oldest first; of one environment, so each follows the one before
    jumps = (rows["next_obs"][:-1] != rows["obs"][1:]).any(1)
    return index[:-1][jumps & (rows["discounts"][:-1] > 0)]


def package_parameters(learner: DQNLearner) -> list[torch.Tensor]:
    network = learner.policy.network
    return [p.detach() for p in [*network.body.parameters(), *network.advantage.parameters()]]


def test_the_script_has_the_settings_of_the_preset(script: ModuleType) -> None:
    args = script.Args()
    preset = load_config(ROOT / "configs" / "dqn" / "cartpole.yaml")
    ours = package(args).config
    assert ours.algorithm == preset.algorithm
    for name in ("env_id", "total_timesteps", "num_envs", "seed"):
        assert getattr(ours, name) == getattr(preset, name)


def test_same_seed_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(**SHORT)
    network = script.q_network(4, 2, torch.Generator().manual_seed(args.seed))
    learner = package(args).learner
    for parameters in (package_parameters(learner), parameters_of(learner.target.network)):
        assert_close(parameters, parameters_of(network), atol=0)


@pytest.mark.parametrize("double", [False, True], ids=["plain", "double"])
def test_same_batch_gives_the_same_loss_and_gradients(
    script: ModuleType, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = script.Args(**SHORT | {"double": double, "batch_size": 600})
    parts = package(args)
    while not parts.source.owed:
        parts.collect()
    batch = next(next(parts.source.batches(parts.progress)).split(args.batch_size))
    cut_off = truncated_rows(parts.source.buffer)
    assert np.isin(cut_off, batch.indices.numpy()).any()
    assert 0 < int((batch.discounts == 0).sum()) < len(batch)
    target = script.q_network(4, 2, torch.Generator().manual_seed(args.seed))
    network = script.q_network(4, 2, torch.Generator().manual_seed(args.seed))
    rng = np.random.default_rng(0)
    for ours, theirs in zip(parts.learner.optimizer.parameters, network.parameters(), strict=True):
        noise = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.1
        ours.data += noise
        theirs.data += noise  # away from the target, so that errors lie on both sides of Huber's threshold
    rows = {n: getattr(batch, n) for n in ("obs", "actions", "rewards", "next_obs")}
    rows["terminated"] = batch.discounts == 0
    reference = script.loss_on(network, target, rows, args)
    reference_gradients = torch.autograd.grad(reference, list(network.parameters()))
    args.double = not double
    other = script.loss_on(network, target, rows, args)
    assert float((other - reference).detach().abs()) > 1e-4, "the two choices of the next action must differ"

    seen: list[torch.Tensor] = []

    def note(learning_rate: torch.Tensor) -> float:
        optimizer = parts.learner.optimizer
        seen.extend(optimizer.gradient_of(parameter).clone() for parameter in optimizer.parameters)
        return 0.0

    monkeypatch.setattr(parts.learner.optimizer, "descend", note)
    # at timestep 0, where the target network is not yet due to be copied
    result = parts.learner.update(batch, Progress(total_timesteps=args.total_timesteps))
    errors = result.priorities
    assert errors is not None
    assert 0.1 < float((errors > 1).double().mean()) < 0.9
    assert_close([result.metrics["loss"], *seen], [reference.detach(), *reference_gradients], atol=1e-10)


@pytest.mark.parametrize("name", SETTINGS)
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(**SHORT | SETTINGS[name])
    network, mean_return = script.train(args)
    parts = package(args)
    parts.train()
    rounds = -(-args.total_timesteps // args.train_freq) - args.learning_starts // args.train_freq
    assert parts.progress.updates == rounds * args.gradient_steps
    assert parts.stepper.truncations > 10, "the comparison must cover truncated episodes"
    assert (parts.source.buffer.total_rows > args.buffer_size) == (name == "small-buffer-slow-target")
    assert parts.learner.explorer.epsilon(parts.progress) == pytest.approx(args.exploration_final_eps)
    assert parts.episodes.means()["rollout/ep_rew_mean"] == mean_return
    initial = script.q_network(4, 2, torch.Generator().manual_seed(args.seed))
    assert min(moves(parameters_of(network), parameters_of(initial))) > 1e-2, "nothing was learned"
    assert_close(package_parameters(parts.learner), parameters_of(network), atol=1e-8)


def test_the_script_runs_from_the_command_line(tmp_path: Path) -> None:
    flags = ("--total-timesteps", "1024", "--gradient-steps", "16", "--double")
    assert 8 < printed_return("dqn_cartpole_reference", tmp_path, *flags) <= 500
