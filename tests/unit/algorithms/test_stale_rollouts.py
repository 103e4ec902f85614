"""Rollouts of an older policy: corrections that vanish if the policy is the same, and that are right if it is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.actor_critic_objective import normalized
from rl_training.algorithms.ppo import MAX_WEIGHT, decoupled, ppo_loss
from rl_training.core.returns import gae, vtrace
from rl_training.core.types import Progress
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.building import build_parts
from rl_training.runtime.sampler import LocalSampler
from support.configs import tiny_config

STEPS, ENVS = 7, 3
LOCKS = "rl_training.envs.tasks:rl_training/Locks-v0"


def returns_of(**settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    parts = [torch.from_numpy(rng.normal(size=(STEPS, ENVS))) for _ in range(3)]
    dones = torch.from_numpy(rng.random((STEPS, ENVS)) < 0.2)
    ratios = torch.from_numpy(settings.pop("ratios")(rng))
    advantages, returns = torch.zeros(STEPS, ENVS).double(), torch.zeros(STEPS, ENVS).double()
    vtrace(*parts, dones, ratios, **settings, advantages=advantages, returns=returns)
    plain = gae(*parts, dones, **settings, out=torch.zeros(STEPS, ENVS).double())
    expected = slowly(*(part.numpy() for part in parts), dones.numpy(), ratios.numpy(), **settings)
    np.testing.assert_allclose(advantages.numpy(), expected[0], rtol=1e-12)
    np.testing.assert_allclose(returns.numpy(), expected[1], rtol=1e-12)
    return advantages - plain, returns - plain - parts[1]


def slowly(rewards: Any, values: Any, next_values: Any, dones: Any, ratios: Any, **settings: float) -> Any:
    """The sums of arXiv:1802.01561 as they are written there, with c = lambda * min(1, ratio)."""
    gamma, gae_lambda = settings["gamma"], settings["gae_lambda"]
    rho = np.minimum(ratios, 1.0)
    delta = rewards + gamma * next_values - values
    targets = np.zeros_like(values)
    for t in range(STEPS):
        for env in range(ENVS):
            trace, total = 1.0, 0.0
            for k in range(t, STEPS):
                total += trace * rho[k, env] * delta[k, env]
                trace *= gamma * gae_lambda * rho[k, env] * (not dones[k, env])
            targets[t, env] = values[t, env] + total
    advantages = np.zeros_like(values)
    for t in range(STEPS):
        later = targets[t + 1] - values[t + 1] if t + 1 < STEPS else np.zeros(ENVS)
        advantages[t] = rho[t] * (delta[t] + gamma * gae_lambda * ~dones[t] * later)
    return advantages, targets


@pytest.mark.parametrize("gae_lambda", [0.0, 0.9, 1.0])
def test_vtrace_is_gae_if_the_policy_is_the_same(gae_lambda):
    by_advantages, by_returns = returns_of(
        gamma=0.9, gae_lambda=gae_lambda, ratios=lambda rng: np.ones((STEPS, ENVS))
    )
    assert by_advantages.abs().max() < 1e-12
    assert by_returns.abs().max() < 1e-12


def test_vtrace_is_its_definition_and_clips_large_ratios():
    changed, _ = returns_of(
        gamma=0.9, gae_lambda=0.8, ratios=lambda rng: rng.uniform(0.2, 3.0, (STEPS, ENVS))
    )
    assert changed.abs().max() > 0.1
    same, _ = returns_of(gamma=0.9, gae_lambda=0.8, ratios=lambda rng: rng.uniform(1.0, 3.0, (STEPS, ENVS)))
    assert same.abs().max() < 1e-12


def rollout_of(algo: str, tmp_path: Any, **settings: Any) -> Any:
    """A rollout and the parts that collected it."""
    config = tiny_config(algo, tmp_path, num_envs=4, **settings)
    stepper = training_stepper(config, None)
    stepper.reset()
    parts = build_parts(config, stepper.spec)
    LocalSampler(stepper, parts.actor.explorer, parts.source).collect(16, Progress(total_timesteps=999))
    return parts, next(parts.source.batches(Progress(total_timesteps=999)))


CASES = [
    ("ppo", {}),
    ("ppo", {"update_path": "autograd"}),
    ("ppo", {"env_id": "Pendulum-v1"}),
    ("recurrent_ppo", {}),
    ("recurrent_ppo", {"env_id": LOCKS, "use_action_masks": "on"}),
    ("ppo", {"env_id": "rl_training.envs.tasks:rl_training/Catch-v0", "features_dim": 16}),
]


@pytest.mark.parametrize(("algo", "settings"), CASES, ids=str)
def test_the_decoupled_objective_is_the_plain_one_if_the_policy_is_the_same(algo, settings, tmp_path):
    parts, batch = rollout_of(algo, tmp_path, lag=1, **settings)
    learner = parts.learner
    rows = learner.prepared(batch)
    corrected = decoupled(rows, learner.objective, 16)
    np.testing.assert_allclose(corrected.logprobs, rows.logprobs, atol=2e-6)
    np.testing.assert_allclose(corrected.weights, 1.0, atol=4e-6)


@pytest.mark.parametrize(("algo", "settings"), CASES, ids=str)
def test_an_update_on_a_rollout_of_the_same_policy_is_the_plain_update(algo, settings, tmp_path):
    found = []
    for lag in (0, 1):
        parts, batch = rollout_of(algo, tmp_path, lag=lag, **settings)
        assert parts.learner.stale == bool(lag)
        parts.learner.update(batch, Progress(total_timesteps=999))
        found.append(torch.cat([each.detach().reshape(-1) for each in parts.actor.policy.parameters()]))
    torch.testing.assert_close(found[0], found[1], atol=5e-5, rtol=0)


def test_a_row_counts_by_how_likely_the_learner_would_have_chosen_it(tmp_path):
    parts, batch = rollout_of("ppo", tmp_path, lag=1)
    older = replace(batch, logprobs=batch.logprobs - torch.linspace(-1.0, 2.0, len(batch)))
    rows = decoupled(parts.learner.prepared(older), parts.learner.objective, 16)
    expected = np.exp(np.linspace(-1.0, 2.0, len(batch))).clip(max=MAX_WEIGHT)
    np.testing.assert_allclose(rows.weights, expected, rtol=1e-4)
    np.testing.assert_allclose(rows.logprobs, batch.logprobs, atol=2e-6)
    metrics, _ = parts.learner.objective.forward(rows, clip_coef=0.2, ent_coef=0.0, vf_coef=0.0)
    advantages = normalized(batch.advantages, None) * torch.from_numpy(expected)
    loss = ppo_loss(
        {
            "logprobs": batch.logprobs, "old_logprobs": batch.logprobs, "advantages": advantages,
            "returns": batch.returns, "values": batch.values, "new_values": batch.values,
            "entropy": torch.zeros(len(batch)),
        },
        clip_coef=0.2, ent_coef=0.0, vf_coef=0.0,
    )  # fmt: skip
    assert float(metrics["policy_loss"]) == pytest.approx(float(loss["policy_loss"]), abs=1e-5)


def test_a2c_learns_from_vtrace(tmp_path):
    parts, _ = rollout_of("a2c", tmp_path, lag=1, num_steps=16)
    plain, _ = rollout_of("a2c", tmp_path, lag=0, num_steps=16)
    torch.testing.assert_close(
        parts.source.buffer.advantages, plain.source.buffer.advantages, atol=1e-5, rtol=0
    )
    for source in (parts.source, plain.source):
        source.buffer.logprobs += 0.5
        next(source.batches(Progress(total_timesteps=999)))
    assert (parts.source.buffer.advantages - plain.source.buffer.advantages).abs().max() > 0.01
