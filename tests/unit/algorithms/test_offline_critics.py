"""TD3+BC, ReBRAC and CQL against their formulas in a few lines of torch, in float64, and at limits that are known."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.components import BuildContext
from rl_training.algorithms.cql import CQL_LOSSES
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.rebrac import REBRAC_LOSSES
from rl_training.algorithms.td3_bc import TD3_BC_LOSSES
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.dataset_source import HAS_NEXT_ACTION, NEXT_ACTIONS
from rl_training.data.replay_buffer import Transitions
from rl_training.models.fast.backend import NUMPY, TorchBackend
from rl_training.models.heads import squashed_gaussian_sample

pytestmark = pytest.mark.usefixtures("float64")
ROWS, OBS, SIZE = 12, 3, 2
SPEC = EnvSpec(spaces.Box(-5, 5, (OBS,)), spaces.Box(-2, 3, (SIZE,)), 1)
SMALL: dict[str, Any] = {"hidden_sizes": (8, 6), "batch_size": ROWS, "learning_rate": 0.01, "tau": 0.1}
PATHS = ["explicit", "autograd"]


def built(algo: str, path: Any = "explicit", **settings: Any) -> Any:
    """Return a learner whose target networks differ from what they follow."""
    face = ALGORITHMS[algo]
    config = face.config_class(**SMALL | settings)
    context = BuildContext(SPEC, 3, update_path=path)
    learner: Any = face.build_learner(config, context, face.build_actor(config, context))
    assert learner.update_path == path
    generator = torch.Generator().manual_seed(5)
    moved = [learner.critics, learner.target_critics.network]
    moved += [learner.target_actor.network] if hasattr(learner, "target_actor") else []
    for network in moved:
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return learner


def transitions(seed: int = 0) -> Transitions:
    rng = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng)

    return Transitions(
        obs=torch.randn(ROWS, OBS, generator=rng),
        actions=2 * uniform(ROWS, SIZE) - 1,
        rewards=torch.randn(ROWS, generator=rng),
        discounts=0.9 * (uniform(ROWS) < 0.7),
        next_obs=torch.randn(ROWS, OBS, generator=rng),
        indices=torch.arange(ROWS),
        extra={NEXT_ACTIONS: 2 * uniform(ROWS, SIZE) - 1, HAS_NEXT_ACTION: uniform(ROWS) < 0.6},
    )


def by_parameters(loss: Tensor, network: nn.Module) -> Tensor:
    """Return the gradient of all parameters, one after the other."""
    return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(network.parameters()))])


def assert_equal(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(torch.as_tensor(found).detach(), expected.detach(), rtol=0, atol=1e-9)


def updated(learner: Any, batch: Transitions, updates: int = 1) -> dict[str, Any]:
    """Update once; return the metrics. After an odd number of updates, it is the delayed actor's turn."""
    return learner.update(batch, Progress(updates=updates, total_timesteps=100)).metrics


def smoothed(learner: Any, networks: Any, batch: Transitions) -> tuple[Tensor, Tensor]:
    """Return the next actions of TD3's target, and the smallest of their values."""
    config = learner.config
    noise = torch.from_numpy(copy.deepcopy(learner.noise_rng).standard_normal((ROWS, SIZE)))
    noise = (noise * config.target_policy_noise).clamp(-config.target_noise_clip, config.target_noise_clip)
    actions = (networks["target_actor"](batch.next_obs).tanh() + noise).clamp(-1, 1)
    return actions, networks["target_critics"](batch.next_obs, actions).min(0).values


def copies(learner: Any) -> dict[str, nn.Module]:
    """Return the networks as they are before an update."""
    found = {"actor": learner.policy.network, "critics": learner.critics}
    found |= {"target_critics": learner.target_critics.network}
    if hasattr(learner, "target_actor"):
        found["target_actor"] = learner.target_actor.network
    return copy.deepcopy(found)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("algo", ["td3_bc", "rebrac"])
def test_td3_bc_and_rebrac_are_their_formulas(algo: str, path: str) -> None:
    weights = {"td3_bc": {"alpha": 1.7}, "rebrac": {"actor_penalty": 0.4, "critic_penalty": 0.3}}[algo]
    learner, batch = built(algo, path, **weights), transitions()
    networks = copies(learner)
    next_actions, next_values = smoothed(learner, networks, batch)
    if algo == "rebrac":
        distances = ((next_actions - batch.extra[NEXT_ACTIONS]) ** 2).sum(1)
        next_values = next_values - 0.3 * torch.where(batch.extra[HAS_NEXT_ACTION], distances, 0.0)
    targets = (batch.rewards + batch.discounts * next_values).detach()
    critics = networks["critics"]
    critic_loss = ((critics(batch.obs, batch.actions) - targets) ** 2).mean(1).sum()
    by_critics = by_parameters(critic_loss, critics)
    metrics = updated(learner, batch)
    assert_equal(metrics["critic_loss"], critic_loss)
    assert_equal(learner.critic_optimizer.gradient, by_critics)

    # the actor's loss is that of the critics after their step
    new_actions = networks["actor"](batch.obs).tanh()
    values = learner.critics(batch.obs, new_actions)[0]
    squares = (new_actions - batch.actions) ** 2
    scaled = values.mean() / values.abs().mean().detach()
    loss = squares.mean() - 1.7 * scaled if algo == "td3_bc" else 0.4 * squares.sum(1).mean() - scaled
    assert_equal(metrics["actor_loss"], loss)
    assert_equal(learner.actor_optimizer.gradient, by_parameters(loss, networks["actor"]))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_cql_is_its_formula(path: str, layer_norm: bool) -> None:
    each, weight = 4, 1.3
    settings = {"num_sampled_actions": each, "cql_alpha": weight, "critic_layer_norm": layer_norm}
    learner, batch = built("cql", path, **settings), transitions()
    networks, rng = copies(learner), copy.deepcopy(learner.noise_rng)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    actor, critics, alpha = networks["actor"], networks["critics"], learner.temperature.alpha()
    noise, next_noise = normal(2, ROWS, SIZE)
    draws = [(2 * torch.from_numpy(rng.random((each * ROWS, SIZE))) - 1, torch.tensor(-SIZE * math.log(2)))]
    for obs in (batch.obs, batch.next_obs):
        draws.append(squashed_gaussian_sample(actor(obs.repeat(each, 1)), normal(each * ROWS, SIZE)))
    next_actions, next_logprobs = squashed_gaussian_sample(actor(batch.next_obs), next_noise)
    next_values = networks["target_critics"](batch.next_obs, next_actions).min(0).values
    targets = batch.rewards + batch.discounts * (next_values - alpha * next_logprobs)
    values = critics(batch.obs, batch.actions)
    critic_loss = 0.5 * ((values - targets.detach()) ** 2).mean(1).sum()
    # the integral over actions is the mean of exp(value) / density, at the recorded observations
    ratios = [
        (critics(batch.obs.repeat(each, 1), actions.detach()).exp() / logprobs.detach().exp()).reshape(
            2, each, ROWS
        )
        for actions, logprobs in draws
    ]
    gap = torch.cat(ratios, 1).mean(1).log() - values
    expected = critic_loss + weight * gap.mean(1).sum()
    by_critics = by_parameters(expected, critics)
    metrics = updated(learner, batch)
    assert_equal(metrics["critic_loss"], expected)
    assert_equal(metrics["conservative_gap"], gap.mean())
    assert_equal(learner.critic_optimizer.gradient, by_critics)

    new_actions, logprobs = squashed_gaussian_sample(actor(batch.obs), noise)
    loss = (alpha * logprobs - learner.critics(batch.obs, new_actions).min(0).values).mean()
    assert_equal(metrics["actor_loss"], loss)
    assert_equal(learner.actor_optimizer.gradient, by_parameters(loss, actor))


def test_without_its_term_cql_has_the_losses_of_sac() -> None:
    batch, sac = transitions(), built("sac")
    expected = updated(sac, batch)
    cql = built("cql", cql_alpha=0.0, num_sampled_actions=2)
    found = updated(cql, batch)
    for name in ("critic_loss", "critic_grad_norm", "actor_loss", "actor_grad_norm", "ent_coef_loss"):
        assert_equal(found[name], torch.as_tensor(expected[name]))
    assert_equal(cql.critic_optimizer.flat, sac.critic_optimizer.flat)
    assert_equal(cql.actor_optimizer.flat, sac.actor_optimizer.flat)


def test_without_penalties_rebrac_is_td3_with_layer_norm_up_to_the_scale_of_values() -> None:
    batch, td3 = transitions(), built("td3", critic_layer_norm=True)
    expected = updated(td3, batch)
    rebrac = built("rebrac", actor_penalty=0.0, critic_penalty=0.0)
    found = updated(rebrac, batch)
    assert_equal(found["critic_loss"], expected["critic_loss"])
    assert_equal(rebrac.critic_optimizer.flat, td3.critic_optimizer.flat)
    actor = built("td3", critic_layer_norm=True).policy.network  # before the update
    scale = td3.critics(batch.obs, actor(batch.obs).tanh())[0].abs().mean()
    assert_equal(rebrac.actor_optimizer.gradient * scale, td3.actor_optimizer.gradient)


def test_with_a_small_alpha_td3_bc_imitates_and_with_a_large_one_it_is_td3() -> None:
    batch = transitions()
    imitating = built("td3_bc", alpha=0.0)
    actor = copy.deepcopy(imitating.policy.network)
    updated(imitating, batch)
    loss = (actor(batch.obs).tanh() - batch.actions).square().mean()
    assert_equal(imitating.actor_optimizer.gradient, by_parameters(loss, actor))

    greedy, td3 = built("td3_bc", alpha=1e9), built("td3")
    updated(greedy, batch)
    updated(td3, batch)
    directions = [
        learner.actor_optimizer.gradient / learner.actor_optimizer.gradient.norm()
        for learner in (greedy, td3)
    ]
    np.testing.assert_allclose(*directions, rtol=0, atol=1e-7)


def test_the_value_of_actions_that_the_data_lacks_falls_with_the_conservative_term() -> None:
    """Of two critics that are trained alike, CQL's values random actions less, relative to recorded ones."""
    gaps = {}
    for weight in (0.0, 5.0):
        learner = built("cql", cql_alpha=weight, ent_coef=0.0)
        for index in range(200):
            updated(learner, transitions(index % 3), index)
        rng = torch.Generator().manual_seed(1)
        batch, others = transitions(), 2 * torch.rand(ROWS, SIZE, generator=rng) - 1
        values, recorded = (learner.critics(batch.obs, actions) for actions in (others, batch.actions))
        gaps[weight] = float((values - recorded).detach().mean())
    assert gaps[5.0] < gaps[0.0] - 0.3


LOSSES = {"td3_bc": TD3_BC_LOSSES, "rebrac": REBRAC_LOSSES, "cql": CQL_LOSSES}
CASES: dict[str, Any] = {
    "td3_bc": ("actor_loss", ("values", "new_actions"), {"alpha": 2.5}),
    "rebrac": ("actor_loss", ("values", "new_actions"), {"penalty": 0.7}),
    "cql": ("critic_loss", ("values", "others"), {"cql_alpha": 5.0, "huber": False}),
    "cql, huber": ("critic_loss", ("values", "others"), {"cql_alpha": 5.0, "huber": True}),
}


@pytest.mark.parametrize("backend", [NUMPY, TorchBackend()])
@pytest.mark.parametrize("algo", CASES)
def test_the_gradient_by_hand_is_that_of_the_loss(algo: str, backend: Any) -> None:
    name, by, settings = CASES[algo]
    algo = algo.partition(",")[0]
    rng = torch.Generator().manual_seed(0)
    shapes = {"values": (1, ROWS), "new_actions": (ROWS, SIZE), "actions": (ROWS, SIZE)}
    if algo == "cql":
        shapes = {"values": (2, ROWS), "targets": (ROWS,), "others": (2, ROWS, 5)}
    columns = {column: torch.randn(shape, generator=rng) for column, shape in shapes.items()}
    loss = LOSSES[algo][name]
    assert loss.gradient is not None
    assert not loss.is_edited
    expected, gradients = Loss(loss.function).differentiate(columns, by, TorchBackend(), **settings)
    given = {column: backend.view(part) for column, part in columns.items()}
    found, by_hand = loss.differentiate(given, by, backend, **settings)
    assert found.keys() == expected.keys()
    for part, number in expected.items():
        assert_equal(found[part], number)
    for derivative, gradient in zip(by_hand, gradients, strict=True):
        assert derivative.shape == gradient.shape
        assert_equal(derivative, gradient)


@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        ("td3_bc", {"alpha": -1.0}, "alpha"),
        ("td3_bc", {"gamma": 1.5}, "gamma"),
        ("rebrac", {"actor_penalty": -0.1}, "actor_penalty"),
        ("rebrac", {"critic_penalty": -0.1}, "critic_penalty"),
        ("cql", {"cql_alpha": -1.0}, "cql_alpha"),
        ("cql", {"num_sampled_actions": 0}, "num_sampled_actions"),
    ],
)
def test_settings_that_make_no_sense_are_refused(algo: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(algo=algo, dataset="data", algorithm=ALGORITHMS[algo].config_class(**settings))
