"""Encoders of the user's own in every algorithm: they learn, what acts is what learns, and a round trip is exact."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_encoders
import torch
from gymnasium import Space, spaces
from records import SeenAndDone
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.components import BuildContext, Parts
from rl_training.core.errors import RunFault, UserError
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.replay_buffer import Transitions
from rl_training.data.rollout_buffer import RolloutBatch

ROWS = 16
VECTOR = spaces.Box(-5, 5, (4,), np.float32)
DICT = spaces.Dict({"image": spaces.Box(-1, 1, (2, 3), np.float32), "kind": spaces.Discrete(3)})
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "features_dim": 6, "learning_rate": 1e-2}
ON_POLICY = SMALL | {"num_steps": 4, "normalize_advantage": True}
OFF_POLICY = SMALL | {"buffer_size": 32, "batch_size": ROWS}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": ON_POLICY | {"batch_size": 8, "update_epochs": 2},
    "a2c": ON_POLICY,
    "dqn": OFF_POLICY | {"target_update_every_updates": 2},
    "sac": OFF_POLICY,
    "td3": OFF_POLICY | {"policy_delay": 1, "tau": 0.1},
    "iql": OFF_POLICY,
    "awac": OFF_POLICY,
}
CONTINUOUS = ("sac", "td3", "iql", "awac")
SHARING = [("ppo", True), ("ppo", False), ("a2c", True), ("a2c", False), ("dqn", None), ("sac", True), ("sac", False),
           ("td3", True), ("td3", False), ("iql", True), ("iql", False), ("awac", True), ("awac", False)]  # fmt: skip


def build(algo: str, encoder: Any, space: Space[Any] = VECTOR, *, seed: int = 0, **settings: Any) -> Parts:
    continuous = algo in CONTINUOUS
    actions = spaces.Box(-2, 1, (2,), np.float32) if continuous else spaces.Discrete(3)
    given = {name: value for name, value in settings.items() if value is not None}
    config = ALGORITHMS[algo].config_class(**SETTINGS[algo] | given)
    context = BuildContext(EnvSpec(space, actions, 4), seed, encoder=encoder)
    return ALGORITHMS[algo].build(config, context)


def observations(space: Space[Any], rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if space is VECTOR:
        return torch.from_numpy(rng.normal(size=(rows, 4)).astype(np.float32))
    return {
        "image": torch.from_numpy(rng.normal(size=(rows, 2, 3)).astype(np.float32)),
        "kind": torch.from_numpy(rng.integers(0, 3, rows)),
    }


def batch(algo: str, parts: Parts, space: Space[Any] = VECTOR, seed: int = 0) -> Any:
    rng = torch.Generator().manual_seed(seed)
    obs = observations(space, ROWS, seed)
    if algo in ("ppo", "a2c"):
        actions = torch.randint(0, 3, (ROWS,), generator=rng)
        with torch.no_grad():
            logprobs, _, values = parts.actor.policy.evaluate_actions(
                SeenAndDone(parts.actor.policy.prepare(obs), actions)
            )
        returns = torch.randn(ROWS, generator=rng)
        return RolloutBatch(obs, actions, logprobs, values, returns - values, returns)
    continuous = algo in CONTINUOUS
    drawn = 2 * torch.rand(ROWS, 2, generator=rng) - 1
    actions = drawn if continuous else torch.randint(0, 3, (ROWS,), generator=rng)
    return Transitions(
        obs=obs,
        actions=actions,
        rewards=torch.randn(ROWS, generator=rng),
        discounts=torch.full((ROWS,), 0.9),
        next_obs=observations(space, ROWS, seed + 100),
        indices=torch.arange(ROWS),
    )


def train(algo: str, parts: Parts, updates: range, space: Space[Any] = VECTOR) -> None:
    for number in updates:
        progress = Progress(100 + number, number, 1000)
        parts.learner.update(batch(algo, parts, space, number), progress)


def encoders_of(parts: Parts) -> Iterator[tuple[str, nn.Module]]:
    """Yield every encoder of actor, critics and targets once."""
    roots = {"policy": parts.actor.policy, "critics": getattr(parts.learner, "critics", None)}
    roots["value"] = getattr(parts.learner, "value", None)
    for name in ("target", "target_actor", "target_critics"):
        roots[name] = getattr(getattr(parts.learner, name, None), "network", None)
    seen: set[int] = set()
    for name, root in roots.items():
        for path, module in root.named_modules() if root is not None else ():
            if isinstance(module, tiny_encoders.Plain) and id(module) not in seen:
                seen.add(id(module))
                yield f"{name}.{path}", module


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1).clone() for parameter in module.parameters()])


@pytest.mark.parametrize("space", [VECTOR, DICT], ids=["vector", "dict"])
@pytest.mark.parametrize(("algo", "shared"), SHARING)
def test_every_encoder_learns_and_what_acts_is_its_forward(
    algo: str, shared: bool | None, space: Space[Any]
) -> None:
    parts = build(algo, tiny_encoders.Plain, space, share_encoder=shared)
    before = {name: flat(encoder) for name, encoder in encoders_of(parts)}
    expected = {"ppo": 1, "a2c": 1, "dqn": 2, "sac": 3, "td3": 4, "iql": 4, "awac": 3}[algo]
    if shared is False and algo in ("ppo", "a2c"):
        expected = 2
    if shared and algo in CONTINUOUS:
        expected = 2  # one, and its target
    assert len(before) == expected, list(before)
    train(algo, parts, range(4), space)
    for name, encoder in encoders_of(parts):
        assert not torch.equal(flat(encoder), before[name]), f"{name} did not learn"
    assert_acts_as_it_learns(parts, space)


def assert_acts_as_it_learns(parts: Parts, space: Space[Any]) -> None:
    policy, obs = parts.actor.policy, observations(space, 5, 7)
    arrays = {key: part.numpy() for key, part in obs.items()} if isinstance(obs, dict) else obs.numpy()
    with torch.no_grad():
        expected = policy.network(policy.prepare(obs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = policy.outputs(arrays)
    for ours, theirs in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6, atol=1e-7)
    actions = [policy.act(arrays, (), deterministic=True, rng=np.random.default_rng(0))[0] for _ in range(2)]
    np.testing.assert_array_equal(*actions)


@pytest.mark.parametrize("algo", SETTINGS)
@pytest.mark.parametrize("encoder", ["Dropping", "Spare", "Batched", "Frozen"])
def test_layers_of_all_kinds_learn_and_go_on_exactly_after_a_round_trip(algo: str, encoder: str) -> None:
    """Dropout draws from torch's global generator, whose state a checkpoint has as well."""
    kind = getattr(tiny_encoders, encoder)
    one, other = build(algo, kind), build(algo, kind, seed=9)
    torch.manual_seed(3)
    train(algo, one, range(3))
    assert_acts_as_it_learns(one, VECTOR)
    other.learner.load_state_dict(copy.deepcopy(one.learner.state_dict()))
    generator = torch.get_rng_state()
    train(algo, one, range(3, 6))
    torch.set_rng_state(generator)
    train(algo, other, range(3, 6))
    states = [flattened(parts.learner.state_dict()) for parts in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def flattened(state: Any, name: str = "") -> dict[str, Tensor]:
    if isinstance(state, Tensor):
        return {name: state}
    parts = state.items() if isinstance(state, dict) else ()
    return {path: tensor for key, part in parts for path, tensor in flattened(part, f"{name}/{key}").items()}


@pytest.mark.parametrize("algo", SETTINGS)
def test_dropout_is_on_while_learning_and_off_while_acting(algo: str) -> None:
    parts, modes = build(algo, tiny_encoders.Dropping), []
    next(module for _, module in encoders_of(parts)).register_forward_hook(
        lambda module, *_: modes.append(module.training)
    )
    learning = batch(algo, parts)
    modes.clear()
    parts.learner.update(learning, Progress(100, 1, 1000))
    assert modes
    assert all(modes)
    modes.clear()
    parts.actor.policy.act(
        np.zeros((2, 4), np.float32), (), deterministic=False, rng=np.random.default_rng(0)
    )
    assert modes == [False]


@pytest.mark.parametrize("algo", SETTINGS)
def test_a_frozen_part_stays_and_an_unused_one_does_no_harm(algo: str) -> None:
    parts = build(algo, tiny_encoders.Frozen)
    train(algo, parts, range(3))
    for name, encoder in encoders_of(parts):
        assert isinstance(encoder, tiny_encoders.Frozen)
        assert (flat(encoder.layers) == 0.25).all(), name
    spare = build(algo, tiny_encoders.Spare)
    before = [flat(module.unused) for _, module in encoders_of(spare)]  # type: ignore[arg-type]
    train(algo, spare, range(3))
    for was, (name, module) in zip(before, encoders_of(spare), strict=True):
        assert torch.equal(flat(module.unused), was), name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("algo", "shared"), [(algo, shared) for algo in CONTINUOUS for shared in (True, False)]
)
def test_a_shared_encoder_learns_from_the_critics_alone(algo: str, shared: bool) -> None:
    parts = build(algo, tiny_encoders.Plain, share_encoder=shared)
    actor: Any = parts.learner.actor_optimizer  # type: ignore[attr-defined]
    critic: Any = parts.learner.critic_optimizer  # type: ignore[attr-defined]
    encoder = {id(parameter) for parameter in parts.actor.policy.network.encoder.parameters()}
    assert encoder.isdisjoint(map(id, actor.parameters)) is shared
    assert encoder.isdisjoint(map(id, critic.parameters)) is not shared


def test_the_critic_may_have_widths_of_its_own() -> None:
    policy = build("ppo", None, hidden_sizes=(8, 8), critic_hidden_sizes=(5, 3, 2)).actor.policy
    shapes = {name: list(parameter.shape) for name, parameter in policy.network.named_parameters()}
    assert shapes["actor_body.0.weight"] == [8, 4]
    assert [shapes[f"critic_body.{layer}.weight"] for layer in (0, 2, 4)] == [[5, 4], [3, 5], [2, 3]]
    learner: Any = build("sac", None, hidden_sizes=(8,), critic_hidden_sizes=(5, 3)).learner
    assert [list(weight.shape) for weight in learner.critics.weights] == [[2, 6, 5], [2, 5, 3], [2, 3, 1]]


def test_normalised_inputs_keep_their_shape() -> None:
    context = BuildContext(
        EnvSpec(DICT, spaces.Discrete(2), 4), 0, normalize_obs=True, encoder=tiny_encoders.Plain
    )
    policy = ALGORITHMS["ppo"].build_actor(ALGORITHMS["ppo"].config_class(**SETTINGS["ppo"]), context).policy
    seen = observations(DICT, 50, 1)
    seen["image"] = 3 * seen["image"] + 7
    policy.observe(seen)
    inputs = policy.prepare(seen)
    assert {key: tuple(part.shape) for key, part in inputs.items()} == {"image": (50, 2, 3), "kind": (50, 3)}
    assert inputs["image"].mean().abs() < 0.1
    assert 0.5 < inputs["image"].std() < 2
    assert set(inputs["kind"].unique().tolist()) == {0.0, 1.0}


def test_equal_seeds_give_equal_encoders_and_the_callers_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(())
    torch.manual_seed(5)
    one, same, other = (build("ppo", tiny_encoders.Dropping, seed=seed) for seed in (1, 1, 2))
    assert torch.rand(()) == expected
    first, second, third = (flat(next(iter(encoders_of(parts)))[1]) for parts in (one, same, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


@pytest.mark.parametrize("algo", SETTINGS)
def test_the_statistics_of_a_frozen_encoder_are_frozen_too(algo: str) -> None:
    parts = build(algo, tiny_encoders.Pretrained)
    train(algo, parts, range(3))
    for name, encoder in encoders_of(parts):
        assert isinstance(encoder, tiny_encoders.Pretrained)
        assert encoder.norm.num_batches_tracked == 0, name
        assert not encoder.norm.running_mean.any(), name


@pytest.mark.parametrize("algo", ["dqn", *CONTINUOUS])
def test_targets_follow_buffers_that_were_replaced(algo: str) -> None:
    parts = build(algo, tiny_encoders.Rebinding)
    train(algo, parts, range(4))
    means = {name: encoder.mean for name, encoder in encoders_of(parts)}
    assert all(mean.any() for mean in means.values()), means


@pytest.mark.parametrize(
    ("algo", "settings", "remedy"),
    [
        ("ppo", {"num_steps": 4, "batch_size": 5}, "use a batch_size of 2 or more that divides"),
        ("dqn", {"batch_size": 1}, "use a larger batch_size"),
        ("sac", {"batch_size": 1}, "use a larger batch_size"),
    ],
)
def test_batch_statistics_of_a_single_row_are_refused(
    algo: str, settings: dict[str, int], remedy: str
) -> None:
    with pytest.raises(UserError, match=f"tiny_encoders:Batched cannot learn from a single row.*{remedy}"):
        build(algo, tiny_encoders.Batched, **settings)
    build(algo, tiny_encoders.Plain, **settings)


@pytest.mark.parametrize("algo", SETTINGS)
def test_an_encoder_that_fails_later_is_named(algo: str) -> None:
    parts = build(algo, tiny_encoders.NanLater)
    obs, rng = np.zeros((2, 4), np.float32), np.random.default_rng(0)
    encoder = next(module for _, module in encoders_of(parts))
    encoder.calls = 100  # type: ignore[assignment]
    with pytest.raises(
        RunFault, match="encoder tiny_encoders:NanLater returned values that are not finite while acting"
    ):
        parts.actor.policy.act(obs, (), deterministic=True, rng=rng)
    with pytest.raises(RunFault, match="encoder tiny_encoders:Plain failed: RuntimeError"):
        build(algo, tiny_encoders.Plain).actor.policy.network(torch.zeros(2, 99))


@pytest.mark.parametrize("algo", SETTINGS)
def test_a_mask_of_infinities_may_be_saved(algo: str) -> None:
    learner = build(algo, tiny_encoders.Pretrained).learner
    assert learner.not_finite(learner.state_dict()) is None
