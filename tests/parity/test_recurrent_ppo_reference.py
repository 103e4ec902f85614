"""The package against examples/recurrent_ppo_cartpole_reference.py: two implementations, one arithmetic, in float64."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from parity_harness import Package, assert_close, load_script, moves, parameters_of, printed_return

from rl_training.algorithms.actor_critic_objective import normalized
from rl_training.algorithms.ppo import ppo_loss
from rl_training.algorithms.recurrent_ppo import RecurrentPPOConfig

SHORT = {
    "max_episode_steps": 30, "total_timesteps": 2560, "num_envs": 4, "num_steps": 64, "update_epochs": 3, "seed": 7,
    "learning_rate": 1e-3, "ent_coef": 0.01, "vf_coef": 0.5,
}  # fmt: skip
SETTINGS: dict[str, dict[str, int]] = {
    # 32 sequences in parts of 6: the last part is smaller
    "shuffled-minibatches": {"sequence_length": 8, "batch_size": 48},
    # each is an environment's whole rollout and holds several episodes
    "long-sequences": {"sequence_length": 64, "batch_size": 128},
    "sequences-of-one-step": {"sequence_length": 1, "batch_size": 128, "core_size": 16},
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("recurrent_ppo_cartpole_reference")


def package(args: Any) -> Package:
    return Package(
        "recurrent_ppo",
        RecurrentPPOConfig,
        args,
        env_id="rl_training.envs.tasks:rl_training/NoVelocity-v0",
        env_kwargs={"game": "CartPole-v1"},
        learning_rate_schedule="linear",
        clip_coef_schedule="linear",
        share_core=True,
    )


def new_agent(script: ModuleType, args: Any) -> Any:
    return script.Agent(4, 2, args.core_size, torch.Generator().manual_seed(args.seed))


def package_parameters(parts: Package) -> list[torch.Tensor]:
    """Core, actor, critic, in the script's order: it is the order of the package, too."""
    return parameters_of(parts.learner.policy.network)


def sequences_of(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Return the script's [B, L, ...] of the package's [L * B, ...]."""
    return rows.view(length, -1, *rows.shape[1:]).transpose(0, 1)


def test_same_seed_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(**SHORT | SETTINGS["shuffled-minibatches"])
    assert_close(package_parameters(package(args)), parameters_of(new_agent(script, args)), atol=0)
    core = [name for name, _ in package(args).learner.policy.network.core.cells.named_parameters()]
    assert core == [
        f"{name}_l0" for name, _ in script.Agent(4, 2, 8, torch.Generator()).core.named_parameters()
    ]


def test_velocities_are_hidden_in_the_same_way(script: ModuleType) -> None:
    args = script.Args(**SHORT | SETTINGS["shuffled-minibatches"])
    envs, stepper = script.Envs(args), package(args).stepper
    obs = np.stack([envs.reset(i) for i in range(args.num_envs)])
    np.testing.assert_array_equal(obs, stepper.out.obs)
    assert (obs[:, [1, 3]] == 0).all()
    assert (obs[:, [0, 2]] != 0).all()
    stepper.step(np.ones(args.num_envs, np.int64))
    np.testing.assert_array_equal(np.stack([env.step(1)[0] for env in envs.envs]), stepper.out.obs)


@pytest.mark.parametrize("length", [8, 64])
def test_same_batch_gives_the_same_loss_and_gradients(script: ModuleType, length: int) -> None:
    args = script.Args(**SHORT | {"sequence_length": length, "batch_size": 192 if length == 64 else 96})
    parts, agent = package(args), new_agent(script, args)
    parts.collect()
    (rollout,) = parts.source.batches(parts.progress)
    parts.learner.update(rollout, parts.progress)
    parts.source.buffer.reset()
    for ours, theirs in zip(package_parameters(parts), agent.parameters(), strict=True):
        theirs.data[:] = ours
    parts.collect()  # the second rollout begins in the middle of episodes
    (rollout,) = parts.source.batches(parts.progress)
    batch = next(iter(rollout.minibatches(args.batch_size, np.random.default_rng(0))))
    starts = sequences_of(batch.extra["episode_starts"], length)
    memory = torch.stack(batch.memory, dim=1)
    assert starts[:, 1:].any(), "episodes must start within sequences"
    assert (memory != 0).any(), "and go on from one sequence to the next"
    rng = np.random.default_rng(0)
    for ours, theirs in zip(parts.learner.optimizer.parameters, agent.parameters(), strict=True):
        noise = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.2
        ours.data += noise
        theirs.data += noise  # away from the collecting policy, so that ratios are clipped on both sides
    names = ("obs", "actions", "logprobs", "advantages", "returns")
    rows = {name: sequences_of(getattr(batch, name), length) for name in names}
    reference = script.loss_on(agent, rows | {"starts": starts, "states": memory}, 0.1, args)
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
    assert min(float(gradient.abs().max()) for gradient in gradients) > 1e-6, "every parameter must count"
    assert_close(gradients, reference_gradients, atol=1e-10)


@pytest.mark.parametrize("name", SETTINGS)
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(**SHORT | SETTINGS[name])
    agent, mean_return = script.train(args)
    parts = package(args)
    parts.train()
    assert parts.progress.updates == 10
    assert min(parts.stepper.truncations, parts.stepper.terminations) > 10, "episodes must end both ways"
    assert parts.episodes.means()["rollout/ep_rew_mean"] == mean_return
    initial = new_agent(script, args)
    assert min(moves(parameters_of(agent), parameters_of(initial))) > 1e-4, "nothing was learned"
    assert_close(package_parameters(parts), parameters_of(agent), atol=1e-8)


def test_the_script_runs_from_the_command_line(tmp_path: Path) -> None:
    flags = ("--total-timesteps", "2048", "--sequence-length", "8", "--update-epochs", "2")
    assert 8 < printed_return("recurrent_ppo_cartpole_reference", tmp_path, *flags) <= 500
