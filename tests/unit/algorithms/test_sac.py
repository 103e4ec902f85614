import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.sac import SACConfig, SACLearner
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.replay_buffer import Transitions
from rl_training.experiment.building import build_parts

ROWS = 10
START = Progress(timesteps=50, total_timesteps=1000)
REDQ = {"num_critics": 5, "critic_subset": 2}


def make_config(*, seed: int = 0, normalize_obs: bool = False, **settings: Any) -> TrainConfig:
    return TrainConfig(
        algo="sac",
        env_id="none",
        seed=seed,
        normalize_obs=normalize_obs,
        algorithm=SACConfig(
            **{"hidden_sizes": (8, 6), "buffer_size": 64, "learning_starts": 10, "tau": 0.1} | settings
        ),
    )


def make_learner(action_size: int = 2, **settings: Any) -> SACLearner:
    spec = EnvSpec(spaces.Box(-5, 5, (3,)), spaces.Box(-2, 3, (action_size,)), 2)
    learner = build_parts(make_config(**settings), spec).learner
    assert isinstance(learner, SACLearner)
    return learner


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


def disturb_target(learner: SACLearner) -> None:
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in learner.target_critics.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))


def flat(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def sampled(actor: nn.Module, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Action and log-probability by way of the action itself: no trick with logarithms."""
    mean, log_std = actor(obs).chunk(2, dim=-1)
    raw = mean + log_std.exp() * noise
    normal = torch.distributions.Normal(mean, log_std.exp())
    action = raw.tanh()
    return action, (normal.log_prob(raw) - torch.log(1 - action**2)).sum(-1)


class Reference:
    """The paper's update with torch's own optimizers, on copies of a learner's networks."""

    def __init__(self, learner: SACLearner, learning_rate: float) -> None:
        self.config = learner.config
        self.actor = copy.deepcopy(learner.policy.network)
        self.critics = copy.deepcopy(learner.critics)
        self.target = copy.deepcopy(learner.target_critics.network)
        self.log_alpha = learner.temperature.log_alpha.detach().clone().requires_grad_()
        self.rng = copy.deepcopy(learner.noise_rng)
        self.target_entropy = learner.temperature.target_entropy
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), lr=learning_rate),
            "critics": torch.optim.Adam(self.critics.parameters(), lr=learning_rate),
            "alpha": torch.optim.Adam([self.log_alpha], lr=learning_rate),
        }

    def _step(self, name: str, loss: Tensor) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        self.optimizers[name].step()

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        noise = torch.from_numpy(self.rng.standard_normal((2, ROWS, 2)))
        subset = list(range(self.config.num_critics))
        if self.config.critic_subset is not None:
            subset = self.rng.permutation(self.config.num_critics)[: self.config.critic_subset].tolist()
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            next_actions, next_logprobs = sampled(self.actor, batch.next_obs, noise[1])
            values = self.target(batch.next_obs, next_actions)
            lowest = torch.stack([values[member] for member in subset]).min(0).values
            targets = batch.rewards + batch.discounts * (lowest - alpha * next_logprobs)
        critic_loss = torch.zeros(())
        for values in self.critics(batch.obs, batch.actions):
            critic_loss = critic_loss + 0.5 * ((values - targets) ** 2).mean()
        self._step("critics", critic_loss)
        actions, logprobs = sampled(self.actor, batch.obs, noise[0])
        values = self.critics(batch.obs, actions)
        value = values.min(0).values if self.config.critic_subset is None else values.mean(0)
        actor_loss = (alpha * logprobs - value).mean()
        self._step("actor", actor_loss)
        if self.config.ent_coef is None:
            self._step("alpha", -(self.log_alpha * (logprobs.detach() + self.target_entropy)).mean())
        with torch.no_grad():
            for mine, online in zip(self.target.parameters(), self.critics.parameters(), strict=True):
                mine.copy_((1 - self.config.tau) * mine + self.config.tau * online)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "settings",
    [{}, {"ent_coef": 0.3}, {"ent_coef": 0.0}, {"ent_coef_init": 0.2, "target_entropy": 1.5}, REDQ],
)
def test_updates_are_those_of_the_paper(settings: dict[str, Any]) -> None:
    learner = make_learner(learning_rate=0.01, **settings)
    disturb_target(learner)
    reference = Reference(learner, 0.01)
    for index in range(3):
        batch = transitions(index)
        expected, result = reference.update(batch), learner.update(batch, START)
        for name in ("critic_loss", "actor_loss"):
            torch.testing.assert_close(result.metrics[name], expected[name].detach(), rtol=0, atol=1e-8)
    for mine, other in (
        (learner.policy.network, reference.actor),
        (learner.critics, reference.critics),
        (learner.target_critics.network, reference.target),
    ):
        torch.testing.assert_close(flat(mine), flat(other), rtol=0, atol=1e-6)
    torch.testing.assert_close(learner.temperature.log_alpha, reference.log_alpha, rtol=0, atol=1e-8)


def test_only_rows_whose_task_ended_ignore_what_follows() -> None:
    discounts = torch.full((ROWS,), 0.9)
    discounts[::2] = 0.0

    def loss(next_obs: Tensor) -> Tensor:
        batch = transitions(discounts=discounts, next_obs=next_obs)
        return make_learner().update(batch, START).metrics["critic_loss"]

    ended, going_on = torch.zeros(ROWS, 3), torch.zeros(ROWS, 3)
    ended[::2], going_on[1::2] = 3.0, 3.0
    torch.testing.assert_close(loss(ended), loss(torch.zeros(ROWS, 3)))
    assert (loss(going_on) - loss(torch.zeros(ROWS, 3))).abs() > 1e-3


def test_the_actors_step_computes_no_gradient_for_the_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner()
    seen: list[Tensor] = []
    descend = {name: getattr(learner, name).descend for name in ("critic_optimizer", "actor_optimizer")}

    def noting(name: str) -> Callable[[Tensor], Any]:
        def note(learning_rate: Tensor) -> Any:
            seen.append(learner.critic_optimizer.gradient.clone())
            return descend[name](learning_rate)

        return note

    for name in descend:
        monkeypatch.setattr(getattr(learner, name), "descend", noting(name))
    learner.update(transitions(), START)
    assert seen[0].any(), "their own loss reaches them"
    assert torch.equal(seen[0], seen[1])


def test_the_actors_step_leaves_the_critics_where_their_own_step_put_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, critics_only = make_learner(), make_learner()
    monkeypatch.setattr(critics_only.actor_optimizer, "descend", lambda *_: 0.0)
    actor = flat(critics_only.policy.network)
    for learner in (whole, critics_only):
        learner.update(transitions(), START)
    assert torch.equal(flat(whole.critics), flat(critics_only.critics))
    assert torch.equal(flat(critics_only.policy.network), actor)
    assert not torch.equal(flat(whole.policy.network), actor)


@pytest.mark.parametrize("action_size", [1, 2, 5])
def test_the_target_entropy_is_minus_the_number_of_action_components(action_size: int) -> None:
    assert make_learner(action_size).temperature.target_entropy == -float(action_size)
    assert make_learner(action_size, target_entropy=0.5).temperature.target_entropy == 0.5


@pytest.mark.parametrize(("target_entropy", "direction"), [(100.0, 1), (-100.0, -1)])
def test_the_weight_rises_while_there_is_too_little_entropy_and_falls_while_too_much(
    target_entropy: float, direction: int
) -> None:
    learner = make_learner(target_entropy=target_entropy, ent_coef_init=0.3, learning_rate=0.01)
    used = [learner.update(transitions(i), START).metrics["ent_coef"].item() for i in range(4)]
    assert used[0] == pytest.approx(0.3)
    # the logarithm moves, by the learning rate at first: so the weight changes by a factor and stays positive
    assert np.diff(np.log(used)) == pytest.approx(3 * [0.01 * direction], rel=0.05)


def test_the_weight_has_a_logarithm_of_its_own_gradient() -> None:
    """The step must not depend on how large the weight is, as one of the weight itself would."""
    moved = []
    for initial in (1e-3, 1.0, 50.0):
        learner = make_learner(ent_coef_init=initial, learning_rate=0.01)
        before = learner.temperature.log_alpha.item()
        assert before == pytest.approx(math.log(initial), abs=1e-6)
        loss = learner.update(transitions(), START).metrics["ent_coef_loss"].item()
        gradient = learner.temperature.optimizer.exp_avg.item() / 0.1
        assert loss == pytest.approx(before * gradient, rel=1e-4, abs=1e-6)
        moved.append(gradient)
    assert moved == pytest.approx(3 * moved[:1], rel=1e-4)  # the same policy each time, the same gradient


def test_the_learned_weight_does_not_pull_at_the_actor() -> None:
    learned, fixed = make_learner(ent_coef_init=0.3), make_learner(ent_coef=0.3)
    for learner in (learned, fixed):
        learner.update(transitions(), START)
    assert torch.equal(flat(learned.policy.network), flat(fixed.policy.network))
    assert torch.equal(flat(learned.critics), flat(fixed.critics))


@pytest.mark.parametrize("ent_coef", [0.0, 0.3])
def test_a_fixed_weight_stays(ent_coef: float) -> None:
    learner = make_learner(ent_coef=ent_coef)
    for index in range(3):
        metrics = learner.update(transitions(index), START).metrics
        assert metrics["ent_coef"].item() == pytest.approx(ent_coef)
        assert "ent_coef_loss" not in metrics
        assert metrics["actor_loss"].isfinite()


def test_the_subset_of_critics_is_drawn_anew_for_every_update() -> None:
    learner, drawn = make_learner(**REDQ), []
    draw = learner._draw_subset

    def note(size: int) -> Any:
        subset = draw(size)
        drawn.append(tuple(subset.tolist()))
        return subset

    learner._draw_subset = note  # type: ignore[method-assign]
    for index in range(40):
        learner.update(transitions(index), START)
    assert all(len(set(subset)) == 2 for subset in drawn)
    assert {member for subset in drawn for member in subset} == set(range(5))
    assert len(set(drawn)) > 8


def test_the_target_critics_follow_after_every_update() -> None:
    learner = make_learner(tau=0.25)
    before = flat(learner.target_critics.network)
    learner.update(transitions(), START)
    expected = 0.75 * before + 0.25 * flat(learner.critics)
    torch.testing.assert_close(flat(learner.target_critics.network), expected)


def test_the_learning_rate_follows_its_schedule() -> None:
    learner = make_learner(learning_rate=0.4, learning_rate_schedule="linear")
    metrics = learner.update(transitions(), Progress(timesteps=500, total_timesteps=1000)).metrics
    assert metrics["learning_rate"].item() == pytest.approx(0.2)


@pytest.mark.parametrize("settings", [{"normalize_obs": True}, REDQ, {"ent_coef": 0.0}])
def test_a_learner_goes_on_bit_for_bit_after_a_state_round_trip(settings: dict[str, Any]) -> None:
    one, other = make_learner(**settings), make_learner(seed=7, **settings)
    one.policy.observe(transitions(90).obs)
    for index in range(3):
        one.update(transitions(index), START)
    assert not torch.equal(flat(one.critics), flat(other.critics))
    other.load_state_dict(one.state_dict())
    for index in range(3, 7):
        for learner in (one, other):
            learner.update(transitions(index), START)
    for mine, theirs in (
        (one.policy, other.policy),
        (one.critics, other.critics),
        (one.target_critics.network, other.target_critics.network),
    ):
        for name, tensor in mine.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name
    assert torch.equal(one.temperature.log_alpha, other.temperature.log_alpha)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"num_critics": 1}, "num_critics is 1; use a number from 2 to 1000"),
        ({"critic_subset": 3}, "critic_subset is 3; use 1 to num_critics (2), or none"),
        ({"critic_subset": 0}, "critic_subset is 0; use 1 to num_critics (2), or none"),
        ({"ent_coef": -0.1}, "ent_coef is -0.1; use 0 or more"),
        ({"ent_coef_init": 0.0}, "ent_coef_init is 0.0; use a number above 0"),
        ({"tau": 0.0}, "tau is 0.0; use a number above 0"),
        ({"tau": 1.1}, "tau is 1.1; use a number from 0 to 1"),
    ],
)
def test_impossible_settings_are_named_with_a_remedy(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(**settings)
    assert caught.value.problems == [problem]
