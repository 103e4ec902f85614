from typing import Any

import pytest
import torch
from gymnasium import Space, spaces
from torch import nn

from rl_training.algorithms.a2c import A2CConfig, A2CLearner, a2c_loss
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.experiment.building import build_parts

ROWS = 20
START = Progress(total_timesteps=1000)


def make_learner(
    action_space: Space[Any] | None = None, *, seed: int = 0, normalize_obs: bool = False, **settings: Any
) -> A2CLearner:
    config = TrainConfig(
        algo="a2c",
        env_id="none",
        seed=seed,
        normalize_obs=normalize_obs,
        algorithm=A2CConfig(**{"hidden_sizes": (8,)} | settings),
    )
    spec = EnvSpec(spaces.Box(-5, 5, (3,)), action_space or spaces.Discrete(3), 4)
    learner = build_parts(config, spec).learner
    assert isinstance(learner, A2CLearner)
    return learner


def rollout(seed: int = 0, *, continuous: bool = False, valid: torch.Tensor | None = None) -> RolloutBatch:
    rng = torch.Generator().manual_seed(seed)
    return RolloutBatch(
        obs=torch.randn(ROWS, 3, generator=rng),
        actions=torch.randn(ROWS, 2, generator=rng)
        if continuous
        else torch.randint(0, 3, (ROWS,), generator=rng),
        logprobs=torch.zeros(ROWS),
        values=torch.randn(ROWS, generator=rng),
        advantages=2 + 3 * torch.randn(ROWS, generator=rng),
        returns=torch.randn(ROWS, generator=rng),
        valid=valid,
    )


def test_the_loss_by_hand() -> None:
    fields = {
        "logprobs": torch.tensor([-1.0, -2.0]),
        "advantages": torch.tensor([3.0, -1.0]),
        "returns": torch.tensor([1.0, 5.0]),
        "new_values": torch.tensor([0.0, 2.0]),
        "entropy": torch.tensor([0.5, 1.5]),
    }
    losses = a2c_loss(fields, ent_coef=0.1, vf_coef=0.5)
    # policy -((3 * -1) + (-1 * -2)) / 2; value (1 + 9) / 2; entropy -(0.5 + 1.5) / 2
    expected = {"policy_loss": 0.5, "value_loss": 5.0, "entropy_loss": -1.0, "loss": 0.5 + 2.5 - 0.1}
    assert {name: value.item() for name, value in losses.items()} == pytest.approx(expected)


def test_rows_that_do_not_count_do_not_count() -> None:
    fields = {
        name: torch.tensor(numbers)
        for name, numbers in {
            "logprobs": [-1.0, -2.0],
            "advantages": [3.0, -1.0],
            "returns": [1.0, 5.0],
            "new_values": [0.0, 2.0],
            "entropy": [0.5, 1.5],
        }.items()
    }
    masked = a2c_loss(fields | {"valid": torch.tensor([True, False])}, ent_coef=0.1, vf_coef=0.5)
    alone = a2c_loss({name: field[:1] for name, field in fields.items()}, ent_coef=0.1, vf_coef=0.5)
    torch.testing.assert_close(masked, alone)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_an_update_is_one_step_of_torchs_rmsprop_down_the_textbook_loss(
    continuous: bool, normalize: bool
) -> None:
    space = spaces.Box(-1, 1, (2,)) if continuous else spaces.Discrete(3)
    settings = {"ent_coef": 0.05, "vf_coef": 0.7, "max_grad_norm": 0.3, "normalize_advantage": normalize}
    ours, theirs = make_learner(space, **settings), make_learner(space, **settings)
    batch, parameters = rollout(continuous=continuous), list(theirs.policy.parameters())
    optimizer = torch.optim.RMSprop(parameters, lr=7e-4, alpha=0.99, eps=1e-5)
    for _ in range(3):
        ours.update(batch, START)
        logprobs, entropy, values = theirs.policy.evaluate_actions(batch)
        advantages = batch.advantages
        if normalize:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        loss = -(logprobs * advantages).mean() + 0.7 * (values - batch.returns).square().mean()
        loss = loss - 0.05 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.3)
        optimizer.step()
        for mine, other in zip(ours.policy.parameters(), parameters, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_invalid_rows_change_nothing() -> None:
    valid = torch.arange(ROWS) % 3 != 0
    one, other = make_learner(normalize_obs=True), make_learner(normalize_obs=True)
    batch = rollout(valid=valid)
    one.update(batch, START)
    for field in (batch.obs, batch.advantages, batch.returns):
        assert isinstance(field, torch.Tensor)
        field[~valid] = 1e3
    other.update(batch, START)
    for name, mine in one.policy.state_dict().items():
        torch.testing.assert_close(mine, other.policy.state_dict()[name], msg=name)


def test_statistics_change_after_the_step_that_used_them() -> None:
    learner, reference = make_learner(normalize_obs=True), make_learner(normalize_obs=False)
    batch = rollout()
    features = learner.policy.prepare(batch.obs)
    learner.update(batch, START)
    assert not torch.allclose(learner.policy.prepare(batch.obs), features)
    before = reference.optimizer.flat.clone()
    reference.update(
        RolloutBatch(features, batch.actions, batch.logprobs, batch.values, batch.advantages, batch.returns),
        START,
    )
    assert not torch.equal(reference.optimizer.flat, before)
    torch.testing.assert_close(learner.optimizer.flat, reference.optimizer.flat)


@pytest.mark.parametrize(("schedule", "expected"), [("constant", 0.4), ("linear", 0.2)])
def test_the_learning_rate_follows_its_schedule(schedule: str, expected: float) -> None:
    learner = make_learner(learning_rate=0.4, learning_rate_schedule=schedule)
    metrics = learner.update(rollout(), Progress(timesteps=500, total_timesteps=1000)).metrics
    assert metrics["learning_rate"].item() == pytest.approx(expected)


def test_a_learner_goes_on_bit_for_bit_after_a_state_round_trip() -> None:
    space = spaces.Box(-1, 1, (2,))
    one = make_learner(space, normalize_obs=True)
    other = make_learner(space, seed=7, normalize_obs=True)
    for seed in range(3):
        one.update(rollout(seed, continuous=True), START)
    assert not torch.equal(one.optimizer.flat, other.optimizer.flat)
    other.load_state_dict(one.state_dict())
    for seed in range(3, 6):
        for learner in (one, other):
            learner.update(rollout(seed, continuous=True), START)
    for name, mine in one.policy.state_dict().items():
        assert torch.equal(mine, other.policy.state_dict()[name]), name


def test_impossible_settings_are_named_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_learner(rms_prop_eps=0.0, num_steps=0, gamma=1.5)
    assert caught.value.problems == [
        "num_steps is 0; use a number above 0",
        "gamma is 1.5; use a number from 0 to 1",
        "rms_prop_eps is 0.0; use a number above 0",
    ]
