"""The package against examples/masked_ppo_taxi_reference.py: two implementations, one arithmetic, in float64."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from parity_harness import (
    Package,
    assert_close,
    load_script,
    moves,
    parameters_of,
    printed_return,
)

from rl_training.algorithms.actor_critic_objective import normalized
from rl_training.algorithms.ppo import PPOConfig, ppo_loss
from rl_training.core.spaces.masks import split_mask

SHORT = {"max_episode_steps": 100, "total_timesteps": 2560, "seed": 9, "ent_coef": 0.01}
MULTI = {"num_envs": 4, "num_steps": 64, "batch_size": 96, "update_epochs": 2}  # last minibatch is smaller
SINGLE = {"num_envs": 8, "num_steps": 32, "batch_size": 256, "update_epochs": 3}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("masked_ppo_taxi_reference")


def package(args: Any) -> Package:
    """Return the parts on environments whose masks are read."""
    schedules = {"learning_rate_schedule": "linear", "clip_coef_schedule": "linear"}
    return Package("ppo", PPOConfig, args, use_action_masks="on", **schedules)


def new_agent(script: ModuleType, args: Any) -> Any:
    return script.Agent(500, 6, torch.Generator().manual_seed(args.seed))


def package_parameters(parts: Package) -> list[torch.Tensor]:
    network = parts.learner.policy.network
    modules = (network.actor_body, network.actor_head, network.critic_body, network.critic_head)
    return [parameter for module in modules for parameter in parameters_of(module)]


def test_same_seed_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(**SHORT | SINGLE)
    assert_close(package_parameters(package(args)), parameters_of(new_agent(script, args)), atol=0)


def test_masks_are_those_of_where_an_environment_stands_also_after_an_episode(script: ModuleType) -> None:
    args = script.Args(**SHORT | MULTI | {"max_episode_steps": 7})
    envs, stepper, rng = script.Envs(args), package(args).stepper, np.random.default_rng(0)
    taxi = envs.envs.envs[0].unwrapped
    ended = 0
    for _ in range(30):
        obs, masks = split_mask(stepper.out.obs)
        np.testing.assert_array_equal(envs.obs, obs)
        np.testing.assert_array_equal(envs.masks, masks)
        np.testing.assert_array_equal(masks, [taxi.action_mask(int(place)) for place in envs.obs])
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        _, dones, stopped = envs.step(torch.as_tensor(actions))
        stepper.step(actions)
        np.testing.assert_array_equal(dones, stepper.out.ended)
        final_obs, _ = split_mask(stepper.out.final_obs)
        assert all(final_obs[i] == place for i, place in stopped.items())
        ended += int(dones.sum())
    assert ended >= 16


def test_a_forbidden_action_is_never_taken(script: ModuleType) -> None:
    torch.set_default_dtype(
        torch.float32
    )  # as the script trains: there, sums of probabilities miss 1 most often
    agent = new_agent(script, script.Args())
    rng = np.random.default_rng(0)
    masks = torch.as_tensor((np.arange(1, 64)[:, None] >> np.arange(6)) % 2 == 1).repeat(50, 1)
    obs = torch.arange(50).repeat_interleave(63)
    for weight in agent.actor.parameters():
        weight.data += torch.as_tensor(rng.normal(size=tuple(weight.shape)), dtype=torch.float32)
    for uniform in (np.zeros(len(obs)), rng.random(len(obs)), np.full(len(obs), np.nextafter(1.0, 0.0))):
        actions, logprobs = agent.act(obs, masks, uniform)
        assert masks.gather(-1, actions[:, None]).all()
        assert logprobs.isfinite().all()


def test_same_batch_gives_the_same_probabilities_loss_and_gradients(script: ModuleType) -> None:
    args = script.Args(**SHORT | SINGLE | {"seed": 3})
    parts, agent = package(args), new_agent(script, args)
    parts.collect()
    (batch,) = parts.source.batches(parts.progress)
    rows = {n: getattr(batch, n) for n in ("obs", "actions", "logprobs", "advantages", "returns")}
    rows["masks"] = batch.action_masks
    assert (~rows["masks"]).any(0).all(), "every action must be forbidden somewhere"
    collected = agent.evaluate(batch.obs, batch.action_masks, batch.actions)
    torch.testing.assert_close(batch.logprobs, collected[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(batch.values, collected[2], rtol=0, atol=1e-10)
    rng = np.random.default_rng(0)
    for ours, theirs in zip(parts.learner.optimizer.parameters, agent.parameters(), strict=True):
        noise = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.1
        ours.data += noise
        theirs.data += noise  # away from the collecting policy, so that ratios are clipped on both sides
    reference = script.loss_on(agent, rows, 0.1, args)
    reference_gradients = torch.autograd.grad(reference, list(agent.parameters()))

    policy = parts.learner.policy
    logprobs, entropy, values = policy.evaluate_actions(replace(batch, obs=policy.prepare(batch.obs)))
    theirs = agent.evaluate(batch.obs, batch.action_masks, batch.actions)
    assert_close((logprobs, entropy, values), theirs, atol=1e-10)
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
    args = script.Args(**SHORT | settings)
    agent, mean_return = script.train(args)
    parts = package(args)
    parts.train()
    assert parts.progress.updates == 10
    assert parts.stepper.truncations > 10, "the comparison must cover truncated episodes"
    assert parts.stepper.terminations > 0, "and passengers who arrive"
    assert parts.episodes.means()["rollout/ep_rew_mean"] == mean_return
    initial = new_agent(script, args)
    assert max(moves(parameters_of(agent), parameters_of(initial))) > 1e-2, "nothing was learned"
    assert_close(package_parameters(parts), parameters_of(agent), atol=1e-8)


@pytest.mark.parametrize("where", ["act", "evaluate"], ids=["while-acting", "while-learning"])
def test_a_reference_that_ignores_masks_learns_something_else(
    script: ModuleType, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(**SHORT | MULTI | {"total_timesteps": 512})
    parts = package(args)
    parts.train()
    agent, _ = script.train(args)
    assert_close(package_parameters(parts), parameters_of(agent), atol=1e-8)
    heeding = getattr(script.Agent, where)

    def ignoring(agent: Any, obs: torch.Tensor, masks: torch.Tensor, last: Any) -> Any:
        return heeding(agent, obs, torch.ones_like(masks), last)

    monkeypatch.setattr(script.Agent, where, ignoring)
    agent, _ = script.train(args)
    assert max(moves(package_parameters(parts), parameters_of(agent))) > 1e-4


def test_the_script_runs_from_the_command_line(tmp_path: Path) -> None:
    flags = ("--total-timesteps", "2048", "--update-epochs", "2")
    # what is forbidden would cost ten times as much: with masks, 200 steps cannot cost more than 200
    assert -200 <= printed_return("masked_ppo_taxi_reference", tmp_path, *flags) < 20
