from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from records import act_arrays, step_arrays

from rl_training.data.rollout_buffer import RolloutBatch, RolloutBuffer

TENSORS = (
    "actions",
    "logprobs",
    "rewards",
    "dones",
    "values",
    "final_values",
    "valid",
    "advantages",
    "returns",
)


def make_buffer(num_steps: int = 4, num_envs: int = 2) -> RolloutBuffer:
    return RolloutBuffer(
        num_steps=num_steps, num_envs=num_envs, obs_shape=(3,), action_shape=(), action_dtype=np.int64
    )


def record_row(buffer: RolloutBuffer, number: int, **outcome: Any) -> None:
    """Record a step all of whose entries tell its number."""
    n = buffer.num_envs
    obs = np.full((n, 3), number, np.float32)
    acted = act_arrays(
        n, number, logprob=-number, value=10 * number, final_value=outcome.pop("final_value", 0.0)
    )
    buffer.record_action(obs, acted)
    obs[:] = -1.0  # the environments overwrite what was seen
    acted.action[:] = -1
    buffer.record_outcome(step_arrays(obs, np.full(n, 100 * number), **outcome), acted)


def numbered(buffer: RolloutBuffer) -> RolloutBuffer:
    """Fill the public tensors so that every field of a row tells its flat index."""
    index = torch.arange(buffer.num_steps * buffer.num_envs).reshape(buffer.num_steps, buffer.num_envs)
    assert isinstance(buffer.obs, torch.Tensor)
    buffer.obs.copy_(index.unsqueeze(-1).expand_as(buffer.obs))
    for tensor in (buffer.actions, buffer.logprobs, buffer.values, buffer.advantages, buffer.returns):
        tensor.copy_(index)
    return buffer


def test_a_row_holds_what_was_seen_done_and_got() -> None:
    buffer = make_buffer(2)
    record_row(buffer, 1)
    record_row(buffer, 2, truncated=[False, True], final_value=[0.0, 7.0])
    assert isinstance(buffer.obs, torch.Tensor)
    assert buffer.obs[:, :, 0].tolist() == [[1, 1], [2, 2]]
    assert buffer.actions.tolist() == [[1, 1], [2, 2]]
    assert buffer.logprobs.tolist() == [[-1, -1], [-2, -2]]
    assert buffer.values.tolist() == [[10, 10], [20, 20]]
    assert buffer.rewards.tolist() == [[100, 100], [200, 200]]
    assert buffer.dones.tolist() == [[False, False], [False, True]]
    assert buffer.final_values.tolist() == [[0, 0], [0, 7]]


def test_rollouts_are_written_in_place() -> None:
    buffer = make_buffer()
    assert isinstance(buffer.obs, torch.Tensor)
    before = {name: getattr(buffer, name).data_ptr() for name in ("obs", *TENSORS)}
    for rollout in range(3):
        for number in range(buffer.num_steps):
            record_row(buffer, number + rollout, terminated=[True, False], valid=[True, rollout != 1])
        buffer.compute_returns_and_advantages(torch.ones(2), 0.9, 0.9)
        buffer.reset()
    assert {name: getattr(buffer, name).data_ptr() for name in ("obs", *TENSORS)} == before
    assert buffer.actions[:, 0].tolist() == [2, 3, 4, 5]


def test_dict_observations_are_written_leaf_by_leaf() -> None:
    space = spaces.Dict({"a": spaces.Dict({"b": spaces.Box(-1, 1, (2,))}), "c": spaces.Discrete(4)})
    buffer = RolloutBuffer.for_spaces(space, spaces.Discrete(2), num_steps=2, num_envs=2)
    obs = {"a/b": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), "c": np.array([1, 3])}
    buffer.record_action(obs, act_arrays(2))
    assert isinstance(buffer.obs, dict)
    assert buffer.obs["a/b"][0].tolist() == [[1, 2], [3, 4]]
    assert buffer.obs["c"][0].tolist() == [1, 3]


def test_a_full_buffer_refuses_the_next_row_until_it_is_reset() -> None:
    buffer = make_buffer(2)
    record_row(buffer, 0)
    assert not buffer.full
    record_row(buffer, 1)
    assert buffer.full
    with pytest.raises(IndexError, match=r"2 steps is full.*reset"):
        record_row(buffer, 2)
    buffer.reset()
    record_row(buffer, 5)
    assert buffer.actions[:, 0].tolist() == [5, 1]


def test_valid_is_none_exactly_while_every_row_is_valid() -> None:
    buffer = make_buffer(2)
    record_row(buffer, 0)
    record_row(buffer, 1)
    assert buffer.flat().valid is None
    buffer.reset()
    record_row(buffer, 0, valid=[True, False])
    record_row(buffer, 1)
    valid = buffer.flat().valid
    assert valid is not None
    assert valid.tolist() == [True, False, True, True]
    assert all(part.valid is not None for part in buffer.iter_minibatches(3))
    buffer.reset()
    record_row(buffer, 0)
    record_row(buffer, 1)
    assert buffer.flat().valid is None
    assert buffer.valid.all()


@pytest.mark.parametrize(
    ("space", "shapes", "dtypes"),
    [
        (spaces.Discrete(5), (), torch.int64),
        (spaces.MultiDiscrete([2, 3]), (2,), torch.int64),
        (spaces.MultiBinary(4), (4,), torch.int8),
        (spaces.Box(0, 255, (6,), np.uint8), (6,), torch.uint8),
        (spaces.Box(-1, 1, (2, 2), np.float64), (2, 2), torch.float32),
        (spaces.Box(-1, 1, (), np.float32), (), torch.float32),
        (
            spaces.Dict({"a": spaces.Dict({"b": spaces.Box(-1, 1, (3,))}), "c": spaces.Discrete(2)}),
            {"a/b": (3,), "c": ()},
            {"a/b": torch.float32, "c": torch.int64},
        ),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 9, (2,), np.uint8)]),
            {"0": (), "1": (2,)},
            {"0": torch.int64, "1": torch.uint8},
        ),
    ],
)
def test_observations_take_the_shapes_and_types_of_their_space(
    space: Space[Any], shapes: Any, dtypes: Any
) -> None:
    buffer = RolloutBuffer.for_spaces(space, spaces.Discrete(2), num_steps=5, num_envs=3)
    if isinstance(shapes, dict):
        assert isinstance(buffer.obs, dict)
        assert {key: leaf.dtype for key, leaf in buffer.obs.items()} == dtypes
        assert {key: leaf.shape for key, leaf in buffer.obs.items()} == {
            key: (5, 3, *shape) for key, shape in shapes.items()
        }
    else:
        assert isinstance(buffer.obs, torch.Tensor)
        assert (buffer.obs.shape, buffer.obs.dtype) == ((5, 3, *shapes), dtypes)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.uint32, np.int64])
def test_whole_number_vectors_can_be_shuffled(dtype: Any) -> None:
    space = spaces.Box(0, 200, (2,), dtype)
    buffer = RolloutBuffer.for_spaces(space, spaces.Discrete(2), num_steps=4, num_envs=2)
    for number in range(4):
        buffer.record_action(np.full((2, 2), number, dtype), act_arrays(2))
        buffer.record_outcome(step_arrays(np.zeros((2, 2)), [0.0, 0.0]), act_arrays(2))
    parts = list(buffer.iter_minibatches(3, rng=np.random.default_rng(0)))
    seen = sorted(int(row[0]) for part in parts for row in part.obs)  # type: ignore[union-attr]
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Discrete(3), (), torch.int64),
        (spaces.MultiDiscrete([2, 3]), (2,), torch.int64),
        (spaces.MultiBinary(3), (3,), torch.int64),
        (spaces.Box(-1, 1, (2, 2), np.float64), (4,), torch.float32),
    ],
)
def test_actions_take_the_shape_and_type_of_their_space(
    space: Space[Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    buffer = RolloutBuffer.for_spaces(spaces.Discrete(2), space, num_steps=5, num_envs=3)
    assert (buffer.actions.shape, buffer.actions.dtype) == ((5, 3, *shape), dtype)


def test_public_tensors_may_be_filled_by_hand() -> None:
    buffer = RolloutBuffer(num_steps=3, num_envs=2, obs_shape=(4,), action_shape=())
    assert isinstance(buffer.obs, torch.Tensor)
    buffer.obs.fill_(0.5)
    buffer.rewards[:] = torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    buffer.values[:] = torch.tensor([[0.5, 0.0], [0.25, 0.0], [1.0, 4.0]])
    buffer.dones[1, 0] = True
    buffer.compute_returns_and_advantages(last_value=torch.tensor([2.0, 1.0]), gamma=0.5, gae_lambda=1.0)
    expected = torch.tensor([[1.5, 1 + 1 + 0.75 + 0.125], [1.0, 2 + 1.5 + 0.25], [2.0, 3.5]])
    torch.testing.assert_close(buffer.returns, expected)
    torch.testing.assert_close(buffer.advantages, expected - buffer.values)
    assert sum(len(part) for part in buffer.iter_minibatches(4)) == 6


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_dones_may_be_numbers(kind: torch.dtype) -> None:
    buffer = make_buffer(2, 1)
    buffer.dones = torch.tensor([[1], [0]], dtype=kind)
    buffer.compute_returns_and_advantages(torch.tensor([4.0]), 0.5, 1.0)
    assert buffer.returns.tolist() == [[0.0], [2.0]]


def test_a_termination_ignores_every_value_after_it() -> None:
    buffer = make_buffer(2, 1)
    buffer.rewards[:], buffer.dones[0] = 3.0, True
    buffer.values[:] = torch.tensor([[1.0], [1e6]])
    buffer.compute_returns_and_advantages(torch.tensor([1e6]), 0.9, 0.9)
    assert buffer.advantages[0, 0] == 2.0


def test_a_truncation_uses_the_value_of_the_final_observation_alone() -> None:
    buffer = make_buffer(2, 1)
    buffer.rewards[:], buffer.dones[0], buffer.final_values[0] = 3.0, True, 8.0
    buffer.values[:] = torch.tensor([[1.0], [1e6]])
    buffer.compute_returns_and_advantages(torch.tensor([1e6]), 0.5, 0.9)
    assert buffer.advantages[0, 0] == 3.0 + 0.5 * 8.0 - 1.0


def test_an_end_in_the_last_row_ignores_the_value_that_follows() -> None:
    buffer = make_buffer(1, 2)
    buffer.dones[0, 0] = True
    buffer.compute_returns_and_advantages(torch.tensor([5.0, 5.0]), 1.0, 1.0)
    assert buffer.returns.tolist() == [[0.0, 5.0]]


def test_scaled_rewards_stand_in_for_the_recorded_ones() -> None:
    buffer = make_buffer(1, 2)
    buffer.rewards[:] = 4.0
    buffer.compute_returns_and_advantages(torch.zeros(2), 0.9, 0.9, rewards=torch.tensor([[1.0, 2.0]]))
    assert buffer.returns.tolist() == [[1.0, 2.0]]
    assert buffer.rewards.tolist() == [[4.0, 4.0]]


def test_computing_twice_gives_the_same() -> None:
    buffer = numbered(make_buffer())
    buffer.dones[1] = True
    buffer.compute_returns_and_advantages(torch.ones(2), 0.9, 0.8)
    once = buffer.advantages.clone()
    buffer.compute_returns_and_advantages(torch.ones(2), 0.9, 0.8)
    assert torch.equal(buffer.advantages, once)


def test_flat_rows_run_in_the_order_of_time_and_share_memory() -> None:
    buffer = numbered(make_buffer(3, 2))
    flat = buffer.flat()
    assert flat.actions.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(flat) == 6
    assert flat.actions.data_ptr() == buffer.actions.data_ptr()


def test_minibatches_without_a_generator_keep_the_order() -> None:
    parts = list(numbered(make_buffer(3, 2)).iter_minibatches(4))
    assert [part.actions.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5]]


def test_shuffling_repeats_by_seed_and_differs_between_epochs() -> None:
    buffer, orders = numbered(make_buffer(8, 4)), []
    for seed in (0, 0, 1):
        rng = np.random.default_rng(seed)
        orders.append([[p.actions.tolist() for p in buffer.iter_minibatches(8, rng=rng)] for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0][0] != orders[0][1]


def test_shuffled_minibatches_alias_neither_the_buffer_nor_each_other() -> None:
    buffer = numbered(make_buffer(4, 2))
    parts: list[RolloutBatch] = list(buffer.iter_minibatches(3, rng=np.random.default_rng(0)))
    handed_out = [part.actions.clone() for part in parts]
    buffer.actions.fill_(-1)  # the next rollout
    parts[0].actions.fill_(-2)
    assert [part.actions.tolist() for part in parts[1:]] == [rows.tolist() for rows in handed_out[1:]]
    assert (buffer.actions == -1).all()


@pytest.mark.parametrize(("num_steps", "num_envs"), [(0, 1), (1, 0), (-2, 3)])
def test_senseless_sizes_fail_fast(num_steps: int, num_envs: int) -> None:
    with pytest.raises(ValueError, match=f"{num_steps} and {num_envs}"):
        make_buffer(num_steps, num_envs)


def test_an_empty_minibatch_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be positive, got 0"):
        list(make_buffer().iter_minibatches(0))
