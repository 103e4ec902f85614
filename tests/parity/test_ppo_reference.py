"""The package against examples/ppo_cartpole_reference.py: two implementations, one arithmetic, in float64."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from parity_harness import Package, assert_close, load_script, moves, parameters_of

from rl_training.algorithms.actor_critic_objective import normalized
from rl_training.algorithms.ppo import PPOConfig, PPOLearner, ppo_loss

MULTI = {"num_envs": 4, "num_steps": 64, "batch_size": 96, "update_epochs": 3}  # last minibatch is smaller
SINGLE = {"num_envs": 8, "num_steps": 32, "batch_size": 256, "update_epochs": 5}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("ppo_cartpole_reference")


def package(args: Any) -> Package:
    return Package("ppo", PPOConfig, args, learning_rate_schedule="linear", clip_coef_schedule="linear")


def package_parameters(learner: PPOLearner) -> list[torch.Tensor]:
    network = learner.policy.network
    actor = [*network.actor_body.parameters(), *network.actor_head.parameters()]
    assert network.critic_body is not None
    return [
        p.detach() for p in [*actor, *network.critic_body.parameters(), *network.critic_head.parameters()]
    ]


def test_same_seed_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(max_episode_steps=50, **SINGLE)
    agent = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    assert_close(package_parameters(package(args).learner), parameters_of(agent), atol=0)


def test_same_batch_gives_the_same_loss_and_gradients(script: ModuleType) -> None:
    args = script.Args(max_episode_steps=50, ent_coef=0.01, seed=3, **SINGLE)
    parts = package(args)
    parts.collect()
    (batch,) = parts.source.batches(parts.progress)
    agent = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    rng = np.random.default_rng(0)
    for ours, theirs in zip(parts.learner.optimizer.parameters, agent.parameters(), strict=True):
        noise = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.2
        ours.data += noise
        theirs.data += noise  # away from the collecting policy, so that ratios are clipped on both sides
    assert isinstance(batch.obs, torch.Tensor)
    rows = {n: getattr(batch, n) for n in ("obs", "actions", "logprobs", "advantages", "returns")}
    reference = script.loss_on(agent, rows, 0.1, args)
    reference_gradients = torch.autograd.grad(reference, list(agent.parameters()))

    logprobs, entropy, values = parts.learner.policy.evaluate_actions(batch)
    losses = ppo_loss(
        {
            "logprobs": logprobs,
            "old_logprobs": batch.logprobs,
            "advantages": normalized(batch.advantages, None),
            "returns": batch.returns,
            "values": batch.values,
            "new_values": values,
            "entropy": entropy,
        },
        clip_coef=0.1,
        ent_coef=args.ent_coef,
        vf_coef=args.vf_coef,
    )
    assert 0.1 < losses["clip_fraction"] < 0.9
    torch.testing.assert_close(losses["loss"], reference, rtol=0, atol=1e-10)
    gradients = torch.autograd.grad(losses["loss"], parts.learner.optimizer.parameters)
    assert_close(gradients, reference_gradients, atol=1e-10)


@pytest.mark.parametrize("settings", [SINGLE, MULTI], ids=["single-minibatch", "shuffled-minibatches"])
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, settings: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(max_episode_steps=50, total_timesteps=5120, seed=7, ent_coef=0.01, **settings)
    agent, _ = script.train(args)
    parts = package(args)
    parts.train()
    assert parts.stepper.truncations > 10, "the comparison must cover truncated episodes"
    initial = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    assert max(moves(parameters_of(agent), parameters_of(initial))) > 1e-2, "nothing was learned"
    assert_close(package_parameters(parts.learner), parameters_of(agent), atol=1e-8)
