"""The package against examples/a2c_cartpole_reference.py: two implementations, one arithmetic, in float64."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from parity_harness import (
    ROOT,
    Package,
    assert_close,
    load_script,
    moves,
    parameters_of,
    return_printed_by_a_process,
)

from rl_training.algorithms.a2c import A2CConfig, A2CLearner
from rl_training.config import load_config

PLAIN: dict[str, Any] = {}
OTHERS = {
    "num_envs": 3, "num_steps": 16, "gae_lambda": 0.9, "normalize_advantage": True, "ent_coef": 0.01,
    "vf_coef": 0.25, "learning_rate": 2e-3, "gamma": 0.98, "max_grad_norm": 10.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("a2c_cartpole_reference")


def package(args: Any) -> Package:
    return Package("a2c", A2CConfig, args)


def package_parameters(learner: A2CLearner) -> list[torch.Tensor]:
    network = learner.policy.network
    actor = [*network.actor_body.parameters(), *network.actor_head.parameters()]
    assert network.critic_body is not None
    return [
        p.detach() for p in [*actor, *network.critic_body.parameters(), *network.critic_head.parameters()]
    ]


def test_the_script_has_the_settings_of_the_preset(script: ModuleType) -> None:
    args = script.Args()
    preset = load_config(ROOT / "configs" / "a2c" / "cartpole.yaml")
    ours = package(args).config
    assert ours.algorithm == preset.algorithm == A2CConfig()
    for name in ("env_id", "total_timesteps", "num_envs", "seed"):
        assert getattr(ours, name) == getattr(preset, name)


def test_same_seed_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(max_episode_steps=50)
    agent = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    assert_close(package_parameters(package(args).learner), parameters_of(agent), atol=0)


@pytest.mark.parametrize("settings", [PLAIN, OTHERS], ids=["defaults", "other-settings"])
def test_same_batch_gives_the_same_loss_and_gradients(
    script: ModuleType, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = script.Args(max_episode_steps=50, seed=3, **settings)
    parts = package(args)
    parts.collect()
    (batch,) = parts.source.batches(parts.progress)
    agent = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    rng = np.random.default_rng(0)
    for ours, theirs in zip(parts.learner.optimizer.parameters, agent.parameters(), strict=True):
        noise = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.2
        ours.data += noise
        theirs.data += noise  # away from the first, nearly uniform policy
    rows = {n: getattr(batch, n) for n in ("obs", "actions", "advantages", "returns")}
    reference = script.loss_on(agent, rows, args)
    reference_gradients = torch.autograd.grad(reference, list(agent.parameters()))
    assert max(float(gradient.abs().max()) for gradient in reference_gradients) > 1e-2

    seen: list[torch.Tensor] = []

    def note(learning_rate: torch.Tensor) -> float:
        optimizer = parts.learner.optimizer
        seen.extend(optimizer.gradient_of(parameter).clone() for parameter in optimizer.parameters)
        return 0.0

    monkeypatch.setattr(parts.learner.optimizer, "descend", note)
    result = parts.learner.update(batch, parts.progress)
    assert_close([result.metrics["loss"], *seen], [reference.detach(), *reference_gradients], atol=1e-10)


@pytest.mark.parametrize("settings", [PLAIN, OTHERS], ids=["defaults", "other-settings"])
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(max_episode_steps=30, total_timesteps=4800, seed=7, **settings)
    agent, mean_return = script.train(args)
    parts = package(args)
    clipped = [float(r.metrics["grad_norm"]) > args.max_grad_norm for r in parts.train()]
    assert parts.stepper.truncations > 10, "the comparison must cover truncated episodes"
    assert sum(clipped) > 10, "the comparison must cover clipped gradients"
    assert settings == PLAIN or clipped.count(False) > 10, "and gradients below the limit"
    assert parts.episodes.means()["rollout/ep_rew_mean"] == mean_return
    initial = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    assert min(moves(parameters_of(agent), parameters_of(initial))) > 1e-2, "nothing was learned"
    assert_close(package_parameters(parts.learner), parameters_of(agent), atol=1e-8)


def test_the_script_runs_from_the_command_line(tmp_path: Path) -> None:
    found = return_printed_by_a_process(
        "a2c_cartpole_reference", tmp_path, "--total-timesteps", "400", "--seed", "2"
    )
    assert 8 < found <= 500
