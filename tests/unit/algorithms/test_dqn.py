import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.dqn import DQNConfig, DQNLearner
from rl_training.algorithms.q_objective import categorical_losses, chosen, quantile_losses
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.state import Counter
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.replay_buffer import ReplayBuffer, Transitions
from rl_training.data.sources import ReplaySource
from rl_training.experiment.building import build_parts

ROWS = 12
START = Progress(timesteps=50, total_timesteps=1000)
RAINBOW = {"double": True, "dueling": True, "noisy": True, "distribution": "c51", "prioritized": True}


def make_config(*, seed: int = 0, normalize_obs: bool = False, **settings: Any) -> TrainConfig:
    small = {"hidden_sizes": (8, 6), "buffer_size": 64, "learning_starts": 10, "num_atoms": 7, "v_max": 2.0}
    return TrainConfig(
        algo="dqn",
        env_id="none",
        seed=seed,
        normalize_obs=normalize_obs,
        algorithm=DQNConfig(**small | {"v_min": -2.0, "num_quantiles": 5} | settings),
    )


def make_learner(**settings: Any) -> DQNLearner:
    spec = EnvSpec(spaces.Box(-5, 5, (3,)), spaces.Discrete(4), 2)
    learner = build_parts(make_config(**settings), spec).learner
    assert isinstance(learner, DQNLearner)
    return learner


def transitions(seed: int = 0, *, weights: Tensor | None = None, **fields: Any) -> Transitions:
    rng = torch.Generator().manual_seed(seed)
    drawn = {
        "obs": torch.randn(ROWS, 3, generator=rng),
        "actions": torch.randint(0, 4, (ROWS,), generator=rng),
        "rewards": 2 * torch.randn(ROWS, generator=rng),
        "discounts": 0.9 * (torch.rand(ROWS, generator=rng) < 0.7),
        "next_obs": torch.randn(ROWS, 3, generator=rng),
        "indices": torch.arange(ROWS),
    }
    return Transitions(**drawn | fields, weights=weights)


def disturb_target(learner: DQNLearner, scale: float = 1.0) -> None:
    """Make the target another network than the online one."""
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in learner.target.network.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=rng))


def flat(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def reference_losses(learner: DQNLearner, network: nn.Module, batch: Transitions) -> tuple[Tensor, Tensor]:
    """Row by row, with the networks as they are."""
    policy, config = learner.policy, learner.config
    losses, errors = [], []
    for row in range(ROWS):
        said = network(batch.obs[row : row + 1])[0, batch.actions[row]]
        with torch.no_grad():
            of_target = learner.target.network(batch.next_obs[row : row + 1])
            of_online = network(batch.next_obs[row : row + 1])
            best = policy.action_values(of_online if config.double else of_target)[0].argmax()
            following = of_target[0, best]
        reward, discount = batch.rewards[row], batch.discounts[row]
        if config.distribution == "none":
            target = reward + discount * following[0]
            error = target - said[0]
            huber = 0.5 * error**2 if error.abs() <= 1 else error.abs() - 0.5
            losses.append(huber if config.td_loss == "huber" else error**2)
            errors.append(error.abs().detach())
            continue
        rows = (said[None], following[None], reward[None], discount[None])
        if config.distribution == "c51":
            loss, error = categorical_losses(*rows, torch.linspace(-2.0, 2.0, 7))
        else:
            loss, error = quantile_losses(*rows)
        losses.append(loss[0])
        errors.append(error[0])
    return torch.stack(losses), torch.stack(errors)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"td_loss": "mse"},
        {"double": True},
        {"dueling": True, "double": True},
        {"distribution": "c51"},
        {"distribution": "c51", "double": True, "dueling": True},
        {"distribution": "quantile", "double": True},
        {"max_grad_norm": 0.05, "td_loss": "mse"},
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_an_update_is_one_step_of_torchs_adam_down_the_textbook_loss(
    settings: dict[str, Any], weighted: bool
) -> None:
    learner = make_learner(learning_rate=0.01, **settings)
    disturb_target(learner)
    weights = torch.linspace(0.1, 1.0, ROWS) if weighted else None
    batch, network = transitions(weights=weights), copy.deepcopy(learner.policy.network)
    losses, errors = reference_losses(learner, network, batch)
    loss = losses.mean() if weights is None else (weights * losses).sum() / ROWS
    adam = torch.optim.Adam(network.parameters(), lr=0.01)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(network.parameters(), learner.config.max_grad_norm)
    adam.step()
    result = learner.update(batch, START)
    torch.testing.assert_close(result.metrics["loss"], loss.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(result.metrics["grad_norm"], norm, rtol=1e-8, atol=0)
    torch.testing.assert_close(result.priorities, errors, rtol=0, atol=1e-9)
    torch.testing.assert_close(flat(learner.policy.network), flat(network), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("double", "expected"), [(False, 7.0), (True, 2.0)])
def test_double_learning_chooses_with_the_online_network_and_values_with_the_target(
    double: bool, expected: float
) -> None:
    learner = make_learner(double=double, td_loss="mse")
    for network, values in (
        (learner.policy.network, [1.0, 9.0, 0.0, 0.0]),
        (learner.target.network, [7.0, 2.0, 0.0, 0.0]),
    ):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
            network.advantage.layers[-1].bias.copy_(torch.tensor(values))
    batch = transitions(actions=torch.full((ROWS,), 2), rewards=torch.zeros(ROWS), discounts=torch.ones(ROWS))
    result = learner.update(batch, START)
    assert result.priorities is not None
    torch.testing.assert_close(result.priorities, torch.full((ROWS,), expected))


@pytest.mark.parametrize("distribution", ["none", "c51", "quantile"])
def test_only_rows_whose_task_ended_ignore_what_follows(distribution: str) -> None:
    discounts = torch.full((ROWS,), 0.9)
    discounts[::2] = 0.0

    def priorities(next_obs: Tensor) -> Tensor:
        learner = make_learner(distribution=distribution)
        disturb_target(learner)
        found = learner.update(transitions(discounts=discounts, next_obs=next_obs), START).priorities
        assert found is not None
        return found

    one, other = priorities(torch.zeros(ROWS, 3)), priorities(torch.full((ROWS, 3), 3.0))
    torch.testing.assert_close(one[::2], other[::2])
    assert ((one[1::2] - other[1::2]).abs() > 1e-6).all()


@pytest.mark.parametrize("distribution", ["none", "c51", "quantile"])
def test_repeated_updates_reach_a_fixed_target(distribution: str) -> None:
    learner = make_learner(distribution=distribution, learning_rate=0.01, target_update_every_timesteps=10**6)
    batch = transitions(discounts=torch.zeros(ROWS))
    batch = transitions(rewards=batch.rewards.clamp(-1.9, 1.9), discounts=torch.zeros(ROWS))
    for _ in range(400):
        learner.update(batch, START)
    with torch.no_grad():
        values = learner.policy.action_values(learner.policy.network(batch.obs))
    reached = values.gather(1, batch.actions[:, None])[:, 0]
    assert (reached - batch.rewards).abs().mean() < 0.15


def count_follows(learner: DQNLearner, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    calls: list[float] = []
    follow = learner.target.follow
    monkeypatch.setattr(learner.target, "follow", lambda tau=1.0: (calls.append(tau), follow(tau)))
    return calls


def test_a_target_update_by_updates_counts_those_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(target_update_every_updates=3, target_update_every_timesteps=None, tau=0.5)
    calls = count_follows(learner, monkeypatch)
    counted = []
    for updates in range(7, 16):
        learner.update(transitions(updates), Progress(timesteps=50, updates=updates, total_timesteps=1000))
        counted.append(len(calls))
    assert counted == [0, 1, 1, 1, 2, 2, 2, 3, 3]  # after the 9th, 12th and 15th update
    assert set(calls) == {0.5}


def test_a_target_update_by_updates_copies_what_was_just_learned() -> None:
    learner = make_learner(target_update_every_updates=2, target_update_every_timesteps=None)
    learner.update(transitions(), Progress(updates=0, total_timesteps=1000))
    assert not torch.equal(flat(learner.target.network), flat(learner.policy.network))
    learner.update(transitions(), Progress(updates=1, total_timesteps=1000))
    assert torch.equal(flat(learner.target.network), flat(learner.policy.network))


def test_a_target_update_by_timesteps_happens_once_per_crossed_multiple(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = make_learner(target_update_every_timesteps=10)
    calls = count_follows(learner, monkeypatch)
    counted = []
    for updates, timesteps in enumerate([4, 8, 12, 12, 18, 20, 20, 24, 31]):
        progress = Progress(timesteps=timesteps, updates=updates, total_timesteps=1000)
        learner.update(transitions(updates), progress)
        counted.append(len(calls))
    assert counted == [0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_a_target_update_by_timesteps_comes_before_the_step() -> None:
    learner = make_learner(target_update_every_timesteps=10)
    learner.update(transitions(), Progress(timesteps=9, total_timesteps=1000))
    online = flat(learner.policy.network)
    assert not torch.equal(flat(learner.target.network), online)
    learner.update(transitions(), Progress(timesteps=10, total_timesteps=1000))
    assert torch.equal(flat(learner.target.network), online)


def test_a_partial_target_update_averages() -> None:
    learner = make_learner(target_update_every_updates=1, target_update_every_timesteps=None, tau=0.25)
    before = flat(learner.target.network)
    learner.update(transitions(), START)
    expected = 0.75 * before + 0.25 * flat(learner.policy.network)
    torch.testing.assert_close(flat(learner.target.network), expected)


@pytest.mark.parametrize(("double", "online_passes"), [(False, 1), (True, 2)])
def test_every_pass_through_a_noisy_network_has_noise_of_its_own(double: bool, online_passes: int) -> None:
    learner = make_learner(noisy=True, double=double)
    seen: list[Tensor] = []

    def note(module: nn.Module, arguments: Sequence[Any]) -> None:
        seen.append(arguments[1][0][0].clone())

    learner.policy.network.register_forward_pre_hook(note)
    learner.target.network.register_forward_pre_hook(note)
    for _ in range(2):
        learner.update(transitions(), START)
    assert len(seen) == 2 * (1 + online_passes)
    assert len({tuple(noise.reshape(-1).tolist()) for noise in seen}) == len(seen)
    assert all(noise.shape[0] == 1 for noise in seen)  # one draw for the whole batch


def test_a_noisy_network_learns_its_deviations_and_needs_no_epsilon() -> None:
    learner = make_learner(noisy=True)
    layer = learner.policy.network.advantage.layers[0]
    before = layer.weight_sigma.detach().clone()
    metrics = learner.update(transitions(), START).metrics
    assert not torch.equal(layer.weight_sigma, before)
    assert metrics["exploration_rate"] == 0.0
    assert learner.explorer.epsilon(Progress(timesteps=9, total_timesteps=1000)) == 1.0


def test_schedules_reach_the_learner() -> None:
    learner = make_learner(
        learning_rate=0.4,
        learning_rate_schedule="linear",
        exploration_initial_eps=0.9,
        exploration_final_eps=0.1,
        exploration_fraction=1.0,
    )
    metrics = learner.update(transitions(), Progress(timesteps=500, total_timesteps=1000)).metrics
    assert metrics["learning_rate"].item() == pytest.approx(0.2)
    assert metrics["exploration_rate"].item() == pytest.approx(0.5)


def test_the_chosen_actions_outputs_are_picked_row_by_row() -> None:
    outputs = torch.arange(24.0).view(2, 4, 3)
    assert chosen(outputs, torch.tensor([2, 0])).tolist() == [[6.0, 7.0, 8.0], [12.0, 13.0, 14.0]]


def test_an_update_leaves_its_batch_alone() -> None:
    learner, batch = make_learner(**RAINBOW), transitions(weights=torch.rand(ROWS))
    copied = batch.map(torch.clone)
    learner.update(batch, START)
    for name in ("obs", "actions", "rewards", "discounts", "next_obs", "weights"):
        assert torch.equal(getattr(batch, name), getattr(copied, name)), name


@pytest.mark.parametrize("settings", [{"double": True, "normalize_obs": True}, RAINBOW])
def test_a_learner_goes_on_bit_for_bit_after_a_state_round_trip(settings: dict[str, Any]) -> None:
    shared = {"target_update_every_timesteps": 10, "tau": 0.7} | settings
    one, other = make_learner(**shared), make_learner(seed=7, **shared)
    one.policy.observe(transitions(90).obs)

    def train(learner: DQNLearner, first: int, last: int) -> None:
        for index in range(first, last):
            weights = torch.rand(ROWS, generator=torch.Generator().manual_seed(index))
            progress = Progress(timesteps=50 + 4 * index, updates=index, total_timesteps=1000)
            learner.update(transitions(index, weights=weights), progress)

    train(one, 0, 4)
    assert not torch.equal(flat(one.policy.network), flat(other.policy.network))
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        train(learner, 4, 9)
    assert torch.equal(flat(one.policy.network), flat(other.policy.network))
    assert torch.equal(flat(one.target.network), flat(other.target.network))
    assert torch.equal(one.policy.prepare(transitions().obs), other.policy.prepare(transitions().obs))
    assert one.target_updates == other.target_updates == Counter(8)
    assert one.noise_rng.random() == other.noise_rng.random()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"target_update_every_updates": 5, "target_update_every_timesteps": 5},
            "target_update_every_timesteps and target_update_every_updates are both given; give one of them",
        ),
        ({"target_update_every_timesteps": 0}, "target_update_every_timesteps is 0; use a number above 0"),
        ({"distribution": "c51", "v_min": 2.0}, "v_min is 2.0 and v_max 2.0; use v_min < v_max"),
        ({"num_atoms": 1}, "num_atoms is 1; use a number from 2 to 10000"),
        ({"num_quantiles": 0}, "num_quantiles is 0; use a number from 1 to 10000"),
        ({"tau": 0.0}, "tau is 0.0; use a number above 0"),
        ({"tau": 1.5}, "tau is 1.5; use a number from 0 to 1"),
        ({"exploration_initial_eps": 1.1}, "exploration_initial_eps is 1.1; use a number from 0 to 1"),
        ({"exploration_final_eps": -0.1}, "exploration_final_eps is -0.1; use a number from 0 to 1"),
        ({"exploration_fraction": 0.0}, "exploration_fraction is 0.0; use a number above 0"),
        ({"priority_alpha": 2.0}, "priority_alpha is 2.0; use a number from 0 to 1"),
        ({"priority_beta": -1.0}, "priority_beta is -1.0; use a number from 0 to 1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0; use a number above 0"),
        ({"gradient_steps": 0}, "gradient_steps is 0; use 1 or more, or -1 for train_freq"),
        ({"n_step": 0}, "n_step is 0; use a number from 1 to 10000"),
        ({"buffer_size": 0}, "buffer_size is 0; use a number from 1 to 1099511627776"),
        ({"learning_starts": -1}, "learning_starts is -1; use 0 or more"),
    ],
)
def test_impossible_settings_are_named_with_a_remedy(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(**settings)
    assert caught.value.problems == [problem]


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(batch_size=0, gamma=2.0, max_grad_norm=0.0)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("prioritized", [False, True])
def test_the_source_remembers_as_the_settings_say(prioritized: bool) -> None:
    config = make_config(prioritized=prioritized, n_step=3, gamma=0.9, priority_alpha=0.3)
    source = build_parts(config, EnvSpec(spaces.Box(-5, 5, (3,)), spaces.Discrete(4), 2)).source
    assert isinstance(source, ReplaySource)
    assert isinstance(source.buffer, ReplayBuffer)
    assert (source.buffer.capacity, source.buffer.num_envs) == (64, 2)
    assert (source.buffer.window.n, source.buffer.window.gamma) == (3, 0.9)
    assert source.buffer.prioritized is prioritized


def test_several_crossed_multiples_are_followed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(target_update_every_timesteps=10, tau=0.5)
    calls = count_follows(learner, monkeypatch)
    learner.update(transitions(), Progress(timesteps=35, total_timesteps=1000))
    assert calls == [0.5, 0.5, 0.5]


def test_the_unit_defaults_to_timesteps_and_either_may_be_given_alone() -> None:
    assert DQNConfig().target_timesteps == 10_000
    assert DQNConfig(target_update_every_timesteps=50).target_timesteps == 50
    assert DQNConfig(target_update_every_updates=50).target_timesteps is None
