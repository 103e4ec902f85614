"""State-dependent exploration against a small reference of its own: plain layers, torch's optimizers and autograd."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from our_parts import OurLearner
from torch import Tensor
from torch.distributions import Normal

from rl_training.data.recurrent_rollout_buffer import SequenceBatch
from rl_training.data.rollout_buffer import RolloutBatch

OBSERVATIONS, MOTORS = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)
SIZES, ROWS, UPDATES = (8, 6), 24, 4
GAMMA, TAU, RATE = 0.97, 0.05, 3e-3


def layers(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


def run(layers: list[Tensor], x: Tensor, activation: Any) -> Tensor:
    """Return what weights and biases in turns make of rows, with the activation after each pair."""
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        x = activation(x @ weight.T + bias)
    return x


def deviations(features: Tensor, log_std: Tensor) -> Tensor:
    """The root of a sum over features, entry by entry."""
    return (torch.einsum("bh,ha->ba", features**2, log_std.exp() ** 2) + 1e-6).sqrt()


def assert_same(ours: OurLearner, theirs: dict[str, list[Tensor]]) -> None:
    assert ours.tensors.keys() == theirs.keys()
    for name, tensors in theirs.items():
        for mine, other in zip(ours.tensors[name], tensors, strict=True):
            torch.testing.assert_close(mine, other.detach(), rtol=0, atol=1e-10)


def moved(ours: OurLearner, before: dict[str, list[Tensor]]) -> bool:
    return all(
        bool((mine - other).abs().max() > 1e-3)
        for name, tensors in before.items()
        for mine, other in zip(ours.tensors[name], tensors, strict=True)
    )


def unsettled(ours: OurLearner) -> dict[str, list[Tensor]]:
    """Move every tensor away from where it began; return copies."""
    rng = torch.Generator().manual_seed(5)
    for tensors in ours.tensors.values():
        for tensor in tensors:
            tensor += 0.1 * torch.randn(tensor.shape, generator=rng)
    return copy.deepcopy(ours.tensors)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_an_actor_critic_learns_as_the_reference(algo: str) -> None:
    settings: dict[str, Any] = {"batch_size": ROWS, "update_epochs": 1} if algo == "ppo" else {}
    package = OurLearner(
        algo, OBSERVATIONS, MOTORS, num_envs=1, num_steps=ROWS, hidden_sizes=SIZES, learning_rate=RATE, ent_coef=0.02,
        use_sde=True, log_std_init=-0.7, normalize_advantage=False, max_grad_norm=1e9, **settings,
    )  # fmt: skip
    before = unsettled(package)
    actor, critic = layers(before["actor"]), layers(before["critic"])
    (log_std,) = own = layers(before["log_std"])
    parameters = [*own, *actor, *critic]
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, lr=RATE, eps=1e-5)
        if algo == "ppo"
        else torch.optim.RMSprop(parameters, lr=RATE, alpha=0.99, eps=1e-5)
    )
    rng = torch.Generator().manual_seed(1)
    for update in range(UPDATES):
        obs, actions, *columns = (
            torch.randn(ROWS, *size, generator=rng) for size in ((3,), (2,), (), (), (), ())
        )
        advantages, returns, values, old = columns
        features = run(actor[:-2], obs, torch.tanh)
        normal = Normal(features @ actor[-2].T + actor[-1], deviations(features.detach(), log_std))
        logprobs, entropies = normal.log_prob(actions).sum(1), normal.entropy().sum(1)
        ratio = (logprobs - (logprobs.detach() + 0.2 * old)).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        gain = gain if algo == "ppo" else logprobs * advantages
        value = run(critic[:-2], obs, torch.tanh) @ critic[-2].T + critic[-1]
        loss = -gain.mean() + 0.5 * F.mse_loss(value[:, 0], returns) - 0.02 * entropies.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows = {
            "obs": obs, "actions": actions, "logprobs": logprobs.detach() + 0.2 * old, "values": values,
            "advantages": advantages, "returns": returns,
        }  # fmt: skip
        if algo == "ppo":
            metrics = package.update_on_rollout(rows, np.random.RandomState(update))
        else:
            metrics = package._update(RolloutBatch(**rows))
        assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-10)
        assert_same(package, {"actor": actor, "critic": critic, "log_std": own})
    assert moved(package, before)


LENGTH, SEQUENCES, CORE = 6, 4, 5


def unrolled(cell: list[Tensor], obs: Tensor, memory: list[Tensor], starts: Tensor) -> Tensor:
    """Return what an LSTM of torch's parameters says at each step of [L, B, D], forgetting where episodes begin."""
    (hidden, carried), said = memory, []
    for seen, begins in zip(obs, starts, strict=True):
        hidden, carried = (part * ~begins[:, None] for part in (hidden, carried))
        gates = seen @ cell[0].T + cell[2] + hidden @ cell[1].T + cell[3]
        enter, forget, new, leave = gates.chunk(4, 1)
        carried = forget.sigmoid() * carried + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * carried.tanh()
        said.append(hidden)
    return torch.cat(said)


def test_an_actor_critic_with_a_memory_learns_as_the_reference() -> None:
    package = OurLearner(
        "recurrent_ppo", OBSERVATIONS, MOTORS, num_envs=SEQUENCES, num_steps=LENGTH, sequence_length=LENGTH,
        batch_size=ROWS, update_epochs=1, hidden_sizes=SIZES, core_size=CORE, learning_rate=RATE, ent_coef=0.02,
        use_sde=True, log_std_init=-0.7, normalize_advantage=False, max_grad_norm=1e9,
    )  # fmt: skip
    before = unsettled(package)
    theirs = {name: layers(tensors) for name, tensors in before.items()}
    actor, critic, (log_std,) = theirs["actor"], theirs["critic"], theirs["log_std"]
    optimizer = torch.optim.Adam([part for own in theirs.values() for part in own], lr=RATE, eps=1e-5)
    rng = torch.Generator().manual_seed(1)
    for _ in range(UPDATES):
        obs, actions, *columns = (
            torch.randn(ROWS, *size, generator=rng) for size in ((3,), (2,), (), (), (), ())
        )
        advantages, returns, values, old = columns
        memory = [torch.randn(SEQUENCES, CORE, generator=rng) for _ in range(4)]
        starts = torch.rand(LENGTH, SEQUENCES, generator=rng) < 0.3
        steps = obs.view(LENGTH, SEQUENCES, -1)
        features = run(actor[:-2], unrolled(theirs["core"], steps, memory[:2], starts), torch.tanh)
        normal = Normal(features @ actor[-2].T + actor[-1], deviations(features.detach(), log_std))
        logprobs, entropies = normal.log_prob(actions).sum(1), normal.entropy().sum(1)
        ratio = (logprobs - (logprobs.detach() + 0.2 * old)).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        remembered = unrolled(theirs["critic core"], steps, memory[2:], starts)
        value = run(critic[:-2], remembered, torch.tanh) @ critic[-2].T + critic[-1]
        loss = -gain.mean() + 0.5 * F.mse_loss(value[:, 0], returns) - 0.02 * entropies.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch = SequenceBatch(
            obs=obs, actions=actions, logprobs=logprobs.detach() + 0.2 * old, values=values, advantages=advantages,
            returns=returns, extra={"episode_starts": starts.flatten()},
            sequences=torch.arange(ROWS).view(LENGTH, SEQUENCES).T,
            memory=tuple(memory),
        )  # fmt: skip
        metrics = package._update(batch)
        assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-10)
        assert metrics["explicit"] == 1.0
        assert_same(package, theirs)
    assert moved(package, before)


def squashed(actor: list[Tensor], log_std: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions and log-probabilities; features learn from the deviation, and means are bounded."""
    features = run(actor[:-2], obs, torch.relu)
    normal = Normal(F.hardtanh(features @ actor[-2].T + actor[-1], -2.0, 2.0), deviations(features, log_std))
    raw = normal.mean + features @ (log_std.exp() * noise)
    actions = raw.tanh()
    return actions, (normal.log_prob(raw) - (1 - actions**2).log()).sum(1)


def values(critics: list[list[Tensor]], obs: Tensor, actions: Tensor) -> Tensor:
    pairs = torch.cat([obs, actions], 1)
    found = [run(layers[:-2], pairs, torch.relu) @ layers[-2].T + layers[-1] for layers in critics]
    return torch.cat(found, 1).T


def test_a_soft_actor_critic_learns_as_the_reference() -> None:
    package = OurLearner(
        "sac", OBSERVATIONS, MOTORS, hidden_sizes=SIZES, buffer_size=64, learning_rate=RATE, tau=TAU, gamma=GAMMA,
        ent_coef_init=0.4, use_sde=True, log_std_init=-0.7,
    )  # fmt: skip
    before = unsettled(package)
    *actor, log_std = layers(before["actor"])
    critics, target = layers(before["critics"]), [part.clone() for part in before["target critics"]]
    (log_alpha,) = layers(before["temperature"])
    half = len(critics) // 2
    pair, target_pair = [critics[:half], critics[half:]], [target[:half], target[half:]]
    optimizers = [torch.optim.Adam(part, lr=RATE) for part in ([*actor, log_std], critics, [log_alpha])]
    rng = torch.Generator().manual_seed(2)
    for _ in range(UPDATES):
        obs, next_obs, actions, rewards = (
            torch.randn(ROWS, *size, generator=rng) for size in ((3,), (3,), (2,), ())
        )
        discounts = GAMMA * (torch.rand(ROWS, generator=rng) < 0.7)
        noise = torch.randn(SIZES[-1], 2, generator=rng)
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_logprobs = squashed(actor, log_std, next_obs, noise)
            worth = values(target_pair, next_obs, next_actions).amin(0) - alpha * next_logprobs
        new_actions, logprobs = squashed(actor, log_std, obs, noise)
        critic_loss = (
            0.5 * (values(pair, obs, actions.tanh()) - (rewards + discounts * worth)).square().mean(1).sum()
        )
        step(optimizers[1], critic_loss, critics)
        actor_loss = (alpha * logprobs - values(pair, obs, new_actions).amin(0)).mean()
        step(optimizers[0], actor_loss, [*actor, log_std])
        step(optimizers[2], -log_alpha * (logprobs.detach().mean() - 2.0), [log_alpha])
        with torch.no_grad():
            for slow, fast in zip(target, critics, strict=True):
                slow.lerp_(fast, TAU)
        rows = {
            "obs": obs, "next_obs": next_obs, "actions": actions.tanh(), "rewards": rewards, "discounts": discounts,
        }  # fmt: skip
        metrics = package.update_on_transitions(rows, noise)
        assert metrics["actor_loss"] == pytest.approx(actor_loss.item(), abs=1e-10)
        assert metrics["critic_loss"] == pytest.approx(critic_loss.item(), abs=1e-10)
        assert_same(
            package,
            {
                "actor": [*actor, log_std],
                "critics": critics,
                "target critics": target,
                "temperature": [log_alpha],
            },
        )
    assert moved(package, before)


def step(optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[Tensor]) -> None:
    gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
