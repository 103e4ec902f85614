import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.td3 import TD3Config, TD3Learner
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.replay_buffer import Transitions
from rl_training.experiment.building import build_parts
from rl_training.policies.noise import GaussianNoise, OrnsteinUhlenbeckNoise

ROWS = 10
DDPG = {"num_critics": 1, "policy_delay": 1, "target_policy_noise": 0.0}


def make_config(*, seed: int = 0, normalize_obs: bool = False, **settings: Any) -> TrainConfig:
    return TrainConfig(
        algo="td3",
        env_id="none",
        seed=seed,
        normalize_obs=normalize_obs,
        algorithm=TD3Config(
            **{"hidden_sizes": (8, 6), "buffer_size": 64, "learning_starts": 10, "tau": 0.1} | settings
        ),
    )


SPEC = EnvSpec(spaces.Box(-5, 5, (3,)), spaces.Box(-2, 3, (2,)), 4)


def make_learner(**settings: Any) -> TD3Learner:
    learner = build_parts(make_config(**settings), SPEC).learner
    assert isinstance(learner, TD3Learner)
    return learner


def make_explorer(**settings: Any) -> Any:
    return build_parts(make_config(**settings), SPEC).actor.explorer


def at(updates: int) -> Progress:
    return Progress(timesteps=50, updates=updates, total_timesteps=1000)


def transitions(seed: int = 0, **fields: Any) -> Transitions:
    rng = torch.Generator().manual_seed(seed)
    drawn = {
        "obs": torch.randn(ROWS, 3, generator=rng),
        "actions": 2 * torch.rand(ROWS, 2, generator=rng) - 1,
        "rewards": torch.randn(ROWS, generator=rng),
        "discounts": 0.9 * (torch.rand(ROWS, generator=rng) < 0.7),
        "next_obs": torch.randn(ROWS, 3, generator=rng),
        "indices": torch.arange(ROWS),
    }
    return Transitions(**drawn | fields)


def disturb_targets(learner: TD3Learner) -> None:
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for target in (learner.target_actor, learner.target_critics):
            for parameter in target.network.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))


def flat(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


class Reference:
    """The paper's update with torch's own optimizers, on copies of a learner's networks."""

    def __init__(self, learner: TD3Learner, learning_rate: float) -> None:
        self.config = learner.config
        self.actor = copy.deepcopy(learner.policy.network)
        self.critics = copy.deepcopy(learner.critics)
        self.target_actor = copy.deepcopy(learner.target_actor.network)
        self.target_critics = copy.deepcopy(learner.target_critics.network)
        self.rng = copy.deepcopy(learner.noise_rng)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=learning_rate)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=learning_rate)

    def update(self, batch: Transitions, *, actor: bool) -> dict[str, Tensor]:
        config, tau = self.config, self.config.tau
        noise = torch.from_numpy(self.rng.standard_normal((ROWS, 2))) * config.target_policy_noise
        noise = torch.minimum(torch.maximum(noise, -self._clip()), self._clip())
        with torch.no_grad():
            next_actions = torch.clamp(self.target_actor(batch.next_obs).tanh() + noise, -1.0, 1.0)
            values = self.target_critics(batch.next_obs, next_actions)
            targets = batch.rewards + batch.discounts * values.min(0).values
        loss = torch.zeros(())
        for values in self.critics(batch.obs, batch.actions):
            loss = loss + ((values - targets) ** 2).mean()
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()
        if actor:
            first = self.critics(batch.obs, self.actor(batch.obs).tanh())[0]
            self.actor_adam.zero_grad()
            (-first.mean()).backward()
            self.actor_adam.step()
            pairs = ((self.target_actor, self.actor), (self.target_critics, self.critics))
            with torch.no_grad():
                for target, online in pairs:
                    for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
                        mine.copy_((1 - tau) * mine + tau * theirs)
        return {"critic_loss": loss.detach()}

    def _clip(self) -> Tensor:
        return torch.tensor(self.config.target_noise_clip)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "settings",
    [{}, {"num_critics": 3, "policy_delay": 3}, {"target_policy_noise": 2.0, "target_noise_clip": 0.4}, DDPG],
)
def test_updates_are_those_of_the_paper(settings: dict[str, Any]) -> None:
    learner = make_learner(learning_rate=0.01, **settings)
    disturb_targets(learner)
    reference = Reference(learner, 0.01)
    for index in range(4):
        batch = transitions(index)
        turn = (index + 1) % learner.config.policy_delay == 0
        expected, result = reference.update(batch, actor=turn), learner.update(batch, at(index))
        torch.testing.assert_close(result.metrics["critic_loss"], expected["critic_loss"], rtol=0, atol=1e-8)
        assert ("actor_loss" in result.metrics) is turn
    for mine, other in (
        (learner.policy.network, reference.actor),
        (learner.critics, reference.critics),
        (learner.target_actor.network, reference.target_actor),
        (learner.target_critics.network, reference.target_critics),
    ):
        torch.testing.assert_close(flat(mine), flat(other), rtol=0, atol=1e-6)


def test_only_rows_whose_task_ended_ignore_what_follows() -> None:
    discounts = torch.full((ROWS,), 0.9)
    discounts[::2] = 0.0

    def loss(next_obs: Tensor) -> Tensor:
        batch = transitions(discounts=discounts, next_obs=next_obs)
        return make_learner().update(batch, at(0)).metrics["critic_loss"]

    ended, going_on = torch.zeros(ROWS, 3), torch.zeros(ROWS, 3)
    ended[::2], going_on[1::2] = 3.0, 3.0
    torch.testing.assert_close(loss(ended), loss(torch.zeros(ROWS, 3)))
    assert (loss(going_on) - loss(torch.zeros(ROWS, 3))).abs() > 1e-3


@pytest.mark.parametrize(
    ("delay", "first", "expected"),
    [(1, 0, "111111"), (2, 0, "010101"), (3, 0, "001001"), (3, 7, "010010")],
)
def test_actor_and_targets_change_at_every_so_manieth_update_of_the_run(
    delay: int, first: int, expected: str
) -> None:
    learner = make_learner(policy_delay=delay)
    networks = (learner.policy.network, learner.target_actor.network, learner.target_critics.network)
    changed: list[list[bool]] = [[] for _ in networks]
    for updates in range(first, first + 6):
        before = [flat(network) for network in (*networks, learner.critics)]
        learner.update(transitions(updates), at(updates))
        for index, network in enumerate(networks):
            changed[index].append(not torch.equal(flat(network), before[index]))
        assert not torch.equal(flat(learner.critics), before[-1])
    turns = [turn == "1" for turn in expected]
    assert changed == [turns, turns, turns]


@pytest.mark.parametrize(("sigma", "clip"), [(0.0, 0.5), (0.2, 0.5), (10.0, 0.3), (10.0, 5.0)])
def test_the_targets_actions_are_smoothed_within_the_clip_and_the_range(sigma: float, clip: float) -> None:
    learner = make_learner(target_policy_noise=sigma, target_noise_clip=clip, num_critics=1)
    seen: list[Tensor] = []

    value = learner.target_run

    def note(inputs: Any, actions: Any) -> Any:
        seen.append(torch.tensor(actions))
        return value(inputs, actions)

    learner.target_run = note
    batches = [transitions(index) for index in range(30)]
    plain = []
    for batch in batches:
        plain.append(torch.from_numpy(np.tanh(learner.target_actor_run(batch.next_obs.numpy()))))  # type: ignore[union-attr]
        learner.update(batch, at(0))
    added = torch.cat(seen) - torch.cat(plain)
    assert torch.cat(seen).abs().max() <= 1.0
    assert added.abs().max() <= clip + 1e-6
    if sigma == 0.0:
        assert not added.any()
    elif sigma == 0.2:
        assert added.std().item() == pytest.approx(0.2, rel=0.15)
        assert abs(added.mean().item()) < 0.03
    elif clip == 0.3:  # nearly always at one of its bounds
        assert (added.abs() > 0.299).float().mean() > 0.8
    else:
        assert (torch.cat(seen).abs() == 1.0).float().mean() > 0.8


def test_the_actors_step_computes_no_gradient_for_the_critics() -> None:
    learner = make_learner(policy_delay=1)
    rows = learner.prepared(transitions())
    learner.critic_optimizer.gradient.fill_(7.0)
    learner._train_actor(rows, torch.tensor(1e-2))
    assert (learner.critic_optimizer.gradient == 7.0).all()
    assert learner.actor_optimizer.gradient.any()


def test_the_actor_climbs_the_first_critic_alone() -> None:
    learners = [make_learner(policy_delay=1, learning_rate=1e-3) for _ in range(2)]
    with torch.no_grad():
        for weight in learners[1].critics.weights:
            weight[1].mul_(-1.0)
    rows = learners[0].prepared(transitions())
    losses = [learner._train_actor(rows, torch.tensor(1e-2))["actor_loss"] for learner in learners]
    assert losses[0] == losses[1]
    assert torch.equal(flat(learners[0].policy.network), flat(learners[1].policy.network))
    again = learners[0]._train_actor(rows, torch.tensor(1e-2))["actor_loss"]
    assert again < losses[0]


def test_exploration_noise_is_the_configured_one() -> None:
    gaussian = make_explorer(action_noise_sigma=0.3).noise
    assert isinstance(gaussian, GaussianNoise)
    assert (gaussian.shape, gaussian.sigma) == ((4, 2), 0.3)
    correlated = make_explorer(action_noise="ornstein_uhlenbeck", action_noise_sigma=0.3).noise
    assert isinstance(correlated, OrnsteinUhlenbeckNoise)
    assert (correlated.value.shape, correlated.sigma) == ((4, 2), 0.3)


def test_the_learning_rate_follows_its_schedule() -> None:
    learner = make_learner(learning_rate=0.4, learning_rate_schedule="linear")
    metrics = learner.update(transitions(), Progress(timesteps=500, total_timesteps=1000)).metrics
    assert metrics["learning_rate"].item() == pytest.approx(0.2)


@pytest.mark.parametrize("settings", [{"normalize_obs": True}, DDPG | {"action_noise": "ornstein_uhlenbeck"}])
def test_a_learner_goes_on_bit_for_bit_after_a_state_round_trip(settings: dict[str, Any]) -> None:
    one, other = make_learner(**settings), make_learner(seed=7, **settings)
    one.policy.observe(transitions(90).obs)
    for index in range(3):
        one.update(transitions(index), at(index))
    assert not torch.equal(flat(one.critics), flat(other.critics))
    other.load_state_dict(one.state_dict())
    for index in range(3, 8):
        for learner in (one, other):
            learner.update(transitions(index), at(index))
    for mine, theirs in (
        (one.policy, other.policy),
        (one.critics, other.critics),
        (one.target_actor.network, other.target_actor.network),
        (one.target_critics.network, other.target_critics.network),
    ):
        for name, tensor in mine.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name
    assert one.noise_rng.random() == other.noise_rng.random()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"num_critics": 0}, "num_critics is 0; use a number from 1 to 1000"),
        ({"policy_delay": 0}, "policy_delay is 0; use a number above 0"),
        ({"tau": 0.0}, "tau is 0.0; use a number above 0"),
        ({"tau": 1.1}, "tau is 1.1; use a number from 0 to 1"),
        ({"target_policy_noise": -0.1}, "target_policy_noise is -0.1; use 0 or more"),
        ({"target_noise_clip": -0.1}, "target_noise_clip is -0.1; use 0 or more"),
        ({"action_noise_sigma": -0.1}, "action_noise_sigma is -0.1; use 0 or more"),
    ],
)
def test_impossible_settings_are_named_with_a_remedy(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(**settings)
    assert caught.value.problems == [problem]


def test_an_unknown_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="action_noise is 'pink'"):
        make_config(action_noise="pink")
