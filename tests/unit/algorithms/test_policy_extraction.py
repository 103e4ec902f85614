"""BC, IQL, AWAC and CQL for discrete actions: one update against a few lines of their formulas, in float64.

Each formula reads a copy of the networks as they were before the update; the gradients are those that autograd finds.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_encoders
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Categorical, Normal

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.components import BuildContext
from rl_training.algorithms.iql import expectile_gradient, expectile_loss
from rl_training.config import UpdatePath
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.replay_buffer import Transitions
from rl_training.models.fast.backend import NUMPY

ROWS, GAMMA = 32, 0.9
SEEN = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "unbounded": spaces.Box(-math.inf, math.inf, (2,), np.float32),
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
}
NETWORKS: dict[str, Any] = {"hidden_sizes": (8, 8), "batch_size": ROWS}


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def learner_of(
    algo: str, actions: str = "box", path: UpdatePath = "auto", encoder: Any = None, **settings: Any
) -> Any:
    face = ALGORITHMS[algo]
    config = face.config_class(**NETWORKS | settings)
    context = BuildContext(EnvSpec(SEEN, ACTIONS[actions], 1), seed=3, update_path=path, encoder=encoder)
    learner: Any = face.build_learner(config, context, face.build_actor(config, context))
    return away_from_the_start(learner)


def away_from_the_start(learner: Any) -> Any:
    """Move all parameters, so that targets differ from what they follow, and the deviation from 1."""
    generator = torch.Generator().manual_seed(5)
    for value in learner.owners.values():
        if hasattr(value, "flat") and not hasattr(value, "betas"):
            value.flat += 0.1 * torch.randn(value.flat.shape, generator=generator)
    for parameter in learner.policy.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return learner


def batch_for(actions: str) -> Transitions:
    rng = np.random.default_rng(1)
    drawn = {
        "box": rng.choice([-1.0, 0.3, 1.0], (ROWS, 2)),  # recorded actions at the bounds, too
        "unbounded": rng.normal(size=(ROWS, 2)),
        "discrete": rng.integers(0, 4, ROWS),
        "multi-discrete": rng.integers(0, [2, 3], (ROWS, 2)),
        "multi-binary": rng.integers(0, 2, (ROWS, 3)),
    }[actions]
    return Transitions(
        obs=torch.from_numpy(rng.normal(size=(ROWS, 3))),
        actions=torch.from_numpy(drawn),
        rewards=torch.from_numpy(rng.normal(size=ROWS)),
        discounts=torch.from_numpy(np.where(rng.random(ROWS) < 0.3, 0.0, GAMMA)),
        next_obs=torch.from_numpy(rng.normal(size=(ROWS, 3))),
        indices=torch.arange(ROWS),
    )


def updated(learner: Any, batch: Transitions) -> dict[str, Tensor]:
    return learner.update(batch, Progress(total_timesteps=100)).metrics


def gradient(optimizer: Any) -> Tensor:
    """Return the gradient of the only update so far: of these Adam's mean holds a tenth."""
    return optimizer.exp_avg / (1 - optimizer.betas[0])


def assert_step(optimizer: Any, network: Any, loss: Tensor, told: Tensor) -> None:
    """The loss is the one that the learner tells, and the gradient of its parameters the one that it took."""
    parameters = list(network) if isinstance(network, list) else list(network.parameters())
    found = torch.autograd.grad(
        loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    torch.testing.assert_close(told, loss.detach(), rtol=1e-9, atol=1e-9, check_dtype=False)
    flat = torch.cat([part.reshape(-1) for part in found])
    assert flat.abs().max() > 1e-3
    torch.testing.assert_close(gradient(optimizer), flat, rtol=1e-9, atol=1e-9)


def actor_parameters(policy: Any) -> list[Tensor]:
    return [*policy.network.parameters(), policy.head.log_std]


def normal_of(policy: Any, obs: Tensor) -> Normal:
    means = policy.network(obs)
    return Normal(means.tanh() if policy.bounded else means, policy.head.log_std.exp())


def recorded_log_prob(policy: Any, obs: Tensor, actions: Tensor) -> Tensor:
    return normal_of(policy, obs).log_prob(actions).sum(-1)


PATHS: tuple[UpdatePath, ...] = ("explicit", "autograd")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("actions", "imitation"),
    [("box", "mean"), ("unbounded", "mean"), *((name, "distribution") for name in ACTIONS)],
)
def test_bc_is_maximum_likelihood_or_least_squares(actions: str, imitation: str, path: UpdatePath) -> None:
    learner, batch = learner_of("bc", actions, path, imitation=imitation), batch_for(actions)
    policy = copy.deepcopy(learner.policy)
    told = updated(learner, batch)
    outputs = policy.network(batch.obs)
    if imitation == "mean":
        means = outputs.tanh() if actions == "box" else outputs
        loss = (means - batch.actions).square().mean()
    elif actions in ("box", "unbounded"):
        loss = -recorded_log_prob(policy, batch.obs, batch.actions).mean()
    elif actions == "discrete":
        loss = torch.nn.functional.cross_entropy(outputs, batch.actions)
    elif actions == "multi-discrete":
        parts = zip(outputs.split([2, 3], 1), batch.actions.T, strict=True)
        loss = -sum(Categorical(logits=logits).log_prob(chosen) for logits, chosen in parts).mean()
    else:
        target = batch.actions.double()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, target) * 3
    assert learner.update_path == path
    assert_step(learner.optimizer, policy, loss, told["loss"])


@pytest.mark.parametrize("path", PATHS)
def test_iql_is_expectile_regression_its_targets_and_a_weighted_likelihood(path: UpdatePath) -> None:
    learner = learner_of("iql", path=path, expectile=0.8, inverse_temperature=2.0, max_weight=0.8)
    batch = batch_for("box")
    policy, value, critics = (
        copy.deepcopy(part) for part in (learner.policy, learner.value, learner.critics)
    )
    targets = copy.deepcopy(learner.target_critics.network)
    told = updated(learner, batch)

    recorded = targets(batch.obs, batch.actions).amin(0)
    values, next_values = value(batch.obs)[:, 0], value(batch.next_obs)[:, 0].detach()
    differences = recorded - values
    value_loss = (torch.where(differences > 0, 0.8, 0.2) * differences.square()).mean()
    assert_step(learner.value_optimizer, value, value_loss, told["value_loss"])

    goal = batch.rewards + batch.discounts * next_values
    critic_loss = sum((own - goal).square().mean() for own in critics(batch.obs, batch.actions))
    assert_step(learner.critic_optimizer, critics, critic_loss, told["critic_loss"])

    weights = (2.0 * differences.detach()).exp().clamp(max=0.8)
    assert 0 < (weights == 0.8).sum() < ROWS
    actor_loss = -(weights * recorded_log_prob(policy, batch.obs, batch.actions)).mean()
    assert_step(learner.actor_optimizer, actor_parameters(policy), actor_loss, told["actor_loss"])
    assert learner.update_path == path


@pytest.mark.parametrize("path", PATHS)
def test_awac_asks_its_critics_for_sampled_actions(path: UpdatePath) -> None:
    learner, batch = learner_of("awac", path=path, temperature=0.5, max_weight=1.05), batch_for("box")
    policy, critics = copy.deepcopy(learner.policy), copy.deepcopy(learner.critics)
    targets = copy.deepcopy(learner.target_critics.network)
    noise = torch.from_numpy(copy.deepcopy(learner.noise_rng).standard_normal((2, ROWS, 2)))
    told = updated(learner, batch)

    now, later = normal_of(policy, batch.obs), normal_of(policy, batch.next_obs)
    sampled = (now.mean + now.stddev * noise[0]).clamp(-1, 1).detach()
    next_sampled = (later.mean + later.stddev * noise[1]).clamp(-1, 1).detach()
    assert (sampled.abs() == 1).any()
    goal = batch.rewards + batch.discounts * targets(batch.next_obs, next_sampled).amin(0)
    values = critics(batch.obs, batch.actions)
    critic_loss = sum((own - goal).square().mean() for own in values)
    assert_step(learner.critic_optimizer, critics, critic_loss, told["critic_loss"])

    advantages = (values.amin(0) - critics(batch.obs, sampled).amin(0)).detach()
    weights = (advantages / 0.5).exp().clamp(max=1.05)
    assert 0 < (weights == 1.05).sum() < ROWS
    actor_loss = -(weights * now.log_prob(batch.actions).sum(-1)).mean()
    assert_step(learner.actor_optimizer, actor_parameters(policy), actor_loss, told["actor_loss"])
    assert learner.update_path == path


@pytest.mark.parametrize("path", PATHS)
def test_discrete_cql_is_double_dqn_and_the_gap_to_all_actions(path: UpdatePath) -> None:
    learner, batch = learner_of("cql", "discrete", path, cql_alpha=0.7), batch_for("discrete")
    network, target = copy.deepcopy(learner.policy.network), copy.deepcopy(learner.target.network)
    told = updated(learner, batch)
    rows, values = torch.arange(ROWS), network(batch.obs)[..., 0]
    next_values, best = target(batch.next_obs)[..., 0], network(batch.next_obs)[..., 0].argmax(1)
    assert (best != next_values.argmax(1)).any()
    goal = batch.rewards + batch.discounts * next_values[rows, best].detach()
    chosen = values[rows, batch.actions]
    errors = (chosen - goal).abs()
    assert (errors.min() < 1) & (errors.max() > 1)
    loss = (
        torch.where(errors < 1, 0.5 * errors.square(), errors - 0.5).mean()
        + 0.7 * (values.logsumexp(1) - chosen).mean()
    )
    assert_step(learner.optimizer, network, loss, told["critic_loss"])
    assert learner.update_path == path


LEARNERS = {
    "bc": lambda path: (learner_of("bc", "multi-discrete", path), "multi-discrete"),
    "bc, continuous": lambda path: (learner_of("bc", "box", path, imitation="distribution"), "box"),
    "iql": lambda path: (learner_of("iql", path=path), "box"),
    "awac": lambda path: (learner_of("awac", path=path), "box"),
    "discrete cql": lambda path: (learner_of("cql", "discrete", path), "discrete"),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_the_paths_agree_over_many_updates(name: str) -> None:
    ends = []
    for path in PATHS:
        learner, actions = LEARNERS[name](path)
        batch = batch_for(actions)
        for _ in range(10):
            updated(learner, batch)
        ends.append(learner.learned_state())
    for file, state in ends[0].items():
        for key, tensor in state.items():
            torch.testing.assert_close(tensor, ends[1][file][key], rtol=1e-8, atol=1e-9, msg=f"{file} {key}")


def best_constant(expectile: float, targets: np.ndarray) -> float:
    """Return the one number with the smallest expectile loss, by gradient descent."""
    value = np.zeros(1)
    for _ in range(2000):
        columns = {"values": np.broadcast_to(value, targets.shape), "targets": targets}
        value = value - 0.5 * expectile_gradient(columns, expectile=expectile, backend=NUMPY)[1].sum()
    return float(value[0])


def test_expectiles_rise_from_the_mean_towards_the_maximum() -> None:
    targets = np.random.default_rng(2).normal(size=50)
    found = [best_constant(expectile, targets) for expectile in (0.1, 0.5, 0.7, 0.9, 0.99)]
    assert found == sorted(found)
    assert found[1] == pytest.approx(targets.mean(), abs=1e-9)
    assert targets.mean() < found[-1] < targets.max()
    columns = {"values": torch.zeros(50), "targets": torch.from_numpy(targets)}
    half_of_squares = 0.5 * np.square(targets).mean()
    assert float(expectile_loss(columns, expectile=0.5)) == pytest.approx(half_of_squares)


def test_recorded_actions_at_the_bounds_have_a_finite_likelihood() -> None:
    policy, batch = learner_of("iql").policy, batch_for("box")
    assert (batch.actions.abs() == 1).all(1).any()
    assert policy.log_prob(batch.obs, batch.actions).isfinite().all()


def test_sampled_actions_are_inside_the_bounds() -> None:
    policy = learner_of("awac").policy
    policy.head.log_std.data.fill_(2.0)
    drawn, _ = policy.act(np.zeros((100, 3)), (), deterministic=False, rng=np.random.default_rng(0))
    assert drawn.min() == -1
    assert drawn.max() == 1


def test_large_advantages_do_not_overflow() -> None:
    learner, batch = learner_of("iql", inverse_temperature=1e300), batch_for("box")
    assert all(value.isfinite() for value in updated(learner, batch).values())


def test_only_the_actor_follows_the_schedule_of_the_actor() -> None:
    ends = {}
    for schedule in ("constant", "linear"):
        learner = learner_of("iql", actor_learning_rate_schedule=schedule)
        before = {name: part.flat.clone() for name, part in optimizers(learner).items()}
        learner.update(batch_for("box"), Progress(total_timesteps=100, timesteps=75))
        ends[schedule] = {name: part.flat - before[name] for name, part in optimizers(learner).items()}
    torch.testing.assert_close(ends["linear"]["actor"], 0.25 * ends["constant"]["actor"])
    for name in ("value", "critics"):
        assert torch.equal(ends["linear"][name], ends["constant"][name])


def optimizers(learner: Any) -> dict[str, Any]:
    return {
        name.removeprefix("optimizer/"): part
        for name, part in learner.owners.items()
        if name.startswith("optimizer/")
    }


def test_autograd_runs_nothing_that_is_hand_written() -> None:
    for make in LEARNERS.values():
        learner, _ = make("autograd")
        parts = [*vars(learner).values(), *vars(getattr(learner, "objective", learner)).values()]
        assert not [part for part in parts if type(part).__module__ == "rl_training.models.fast.networks"]


def test_explicit_is_refused_for_an_encoder_without_a_backward_pass() -> None:
    with pytest.raises(UserError, match=r"update_path is 'explicit'.*use update_path 'auto'"):
        learner_of("bc", "discrete", "explicit", tiny_encoders.Plain)
    assert learner_of("bc", "discrete", "auto", tiny_encoders.Plain).update_path == "autograd"
