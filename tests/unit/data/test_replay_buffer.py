from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from records import step_arrays

from rl_training.core.spaces.layout import zeros_for
from rl_training.core.types import Array, leaves
from rl_training.data.replay_buffer import ReplayBuffer, Transitions


def make_buffer(capacity: int = 10, num_envs: int = 2, **settings: Any) -> ReplayBuffer:
    return ReplayBuffer(
        capacity=capacity,
        num_envs=num_envs,
        obs_shape=(3,),
        action_shape=(),
        action_dtype=np.int64,
        **settings,
    )


def record(buffer: ReplayBuffer, number: int, **outcome: Any) -> None:
    """Record a step all of whose entries tell its number; env i does 10 * number + i and then sees number + 1."""
    n = buffer.num_envs
    obs, actions = np.full((n, 3), number, np.float32), 10 * number + np.arange(n)
    buffer.record_action(obs, actions)
    obs[:], actions[:] = number + 1, -1  # the environments overwrite what was seen
    step = step_arrays(obs, np.full(n, 100.0 * number), **outcome)
    buffer.record_outcome(step)
    obs[:], step.reward[:] = -1.0, -1.0


def record_many(buffer: ReplayBuffer, numbers: range) -> None:
    for number in numbers:
        record(buffer, number)


def actions_in_order(buffer: ReplayBuffer) -> list[int]:
    """Return the actions of the kept rows, oldest first."""
    rows = np.arange(buffer.total_rows - len(buffer), buffer.total_rows) % buffer.capacity
    return [int(action) for action in buffer.rows["actions"][rows]]


def structured(buffer: ReplayBuffer, actions: range) -> Array:
    rows = np.zeros(len(actions), buffer.dtype)
    rows["actions"] = actions
    return rows


def sample_all(buffer: ReplayBuffer, count: int = 1000) -> Transitions:
    return buffer.sample(count, np.random.default_rng(0))


class World:
    """Random steps with random ends and dead rows; stacks continue by one frame."""

    def __init__(self, stacked: bool) -> None:
        self.rng, self.shape = np.random.default_rng(1), (3, 2, 3) if stacked else (3, 3)
        self.obs = self.rng.random(self.shape, np.float32)

    def play(self, buffer: ReplayBuffer, steps: int) -> None:
        rng = self.rng
        for _ in range(steps):
            buffer.record_action(self.obs, rng.integers(0, 1000, 3))
            fresh = rng.random(self.shape, np.float32)
            after = np.concatenate([self.obs[:, 1:], fresh[:, :1]], axis=1)
            valid = rng.random(3) < 0.95
            terminated, truncated = (rng.random(3) < 0.05) & valid, (rng.random(3) < 0.05) & valid
            ended = (terminated | truncated).reshape(3, *[1] * (len(self.shape) - 1))
            self.obs = np.where(ended, fresh, after)
            buffer.record_outcome(
                step_arrays(
                    self.obs,
                    rng.random(3),
                    terminated=terminated,
                    truncated=truncated,
                    valid=valid,
                    final_obs=after,
                )
            )


def restored(buffer: ReplayBuffer, fresh: ReplayBuffer) -> ReplayBuffer:
    """Bring `fresh` to the state of `buffer`, by way of what a checkpoint holds."""
    for kind, storage in buffer.storages.items():
        start, stop = storage.total_rows - storage.kept_rows, storage.total_rows
        fresh.storages[kind].restore_rows(start, storage.read_rows(start, stop), stop)
    fresh.load_state_dict(buffer.state_dict())
    return fresh


def assert_same_rows(one: Transitions, other: Transitions) -> None:
    for name in ("obs", "actions", "rewards", "discounts", "next_obs", "indices", "weights"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None and b is None) or torch.equal(a, b), name


# ----------------------------------------------------------------------------------------------------- recording


def test_a_row_holds_what_was_seen_done_and_got() -> None:
    buffer = make_buffer(num_envs=1, gamma=0.9)
    record(buffer, 3)
    rows = buffer.sample(1, np.random.default_rng(0))
    assert len(rows) == 1
    assert rows.obs.tolist() == [[3.0] * 3]  # type: ignore[union-attr]
    assert rows.next_obs.tolist() == [[4.0] * 3]  # type: ignore[union-attr]
    assert rows.actions.tolist() == [30]
    assert rows.rewards.tolist() == [300.0]
    assert rows.discounts.tolist() == pytest.approx([0.9])
    assert rows.weights is None


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_the_successor_at_an_end_is_the_final_observation_and_not_the_reset(flag: str, n_step: int) -> None:
    buffer = make_buffer(n_step=n_step)
    record(buffer, 1)
    final = np.full((2, 3), 77.0, np.float32)
    record(buffer, 2, **{flag: [True, False]}, final_obs=final)
    record(buffer, 3)
    record(buffer, 4)
    rows = {int(row["actions"]): row for row in buffer.rows[: len(buffer)]}
    assert rows[20]["next_obs"].tolist() == [77.0] * 3
    assert rows[10]["next_obs"].tolist() == ([2.0] * 3 if n_step == 1 else [77.0] * 3)
    assert rows[11]["next_obs"].tolist() == [1.0 + n_step] * 3
    assert rows[21]["next_obs"].tolist() == [2.0 + n_step] * 3
    assert float(rows[20]["discounts"]) == pytest.approx(0.0 if flag == "terminated" else 0.99)


def test_dead_rows_are_neither_stored_nor_counted() -> None:
    for n_step in (1, 2):
        buffer = make_buffer(n_step=n_step)
        record(buffer, 1, truncated=[True, False])
        record(buffer, 2, valid=[False, True])
        record(buffer, 3, truncated=True)
        assert sorted(actions_in_order(buffer)) == [10, 11, 21, 30, 31]
        assert buffer.total_rows == len(buffer) == 5


def test_a_step_without_a_single_valid_row_adds_nothing() -> None:
    buffer = make_buffer()
    record(buffer, 1, valid=False)
    assert buffer.total_rows == 0
    with pytest.raises(IndexError, match="replay buffer is empty"):
        sample_all(buffer)


def test_transitions_of_an_environment_stay_in_their_order() -> None:
    buffer = make_buffer(100, n_step=3)
    for number in range(20):
        record(buffer, number, truncated=[number % 7 == 6, number % 4 == 3])
    for env in (0, 1):
        own = [action // 10 for action in actions_in_order(buffer) if action % 10 == env]
        assert own == list(range(len(own)))
    assert len(buffer) > 35


def test_n_step_rows_enter_when_their_rewards_are_complete() -> None:
    buffer = make_buffer(n_step=3, gamma=0.5)
    sizes = []
    for number in range(5):
        record(buffer, number)
        sizes.append(len(buffer))
    assert sizes == [0, 0, 2, 4, 6]
    assert buffer.rows["rewards"][2] == 100 + 0.5 * 200 + 0.25 * 300
    assert buffer.rows["discounts"][2] == 0.125


def test_forgotten_environments_lose_what_waited() -> None:
    buffer = make_buffer(n_step=3)
    record_many(buffer, range(1, 3))
    buffer.forget([0])
    record_many(buffer, range(3, 6))
    assert sorted(actions_in_order(buffer)) == [11, 21, 30, 31]


# ------------------------------------------------------------------------------------------------------ the ring


def test_the_ring_overwrites_the_oldest_rows() -> None:
    buffer = make_buffer(capacity=5)
    for number in range(1, 10):
        record(buffer, number)
        assert len(buffer) == min(2 * number, 5)
    assert actions_in_order(buffer) == [71, 80, 81, 90, 91]
    assert set(sample_all(buffer).actions.tolist()) == {71, 80, 81, 90, 91}
    assert buffer.total_rows == 18


@pytest.mark.parametrize("sizes", [(3, 4, 6, 1), (7, 7, 7), (5, 1, 1, 7), (1, 20, 3), (30,)])
@pytest.mark.parametrize("prioritized", [False, True])
def test_blocks_of_any_size_wrap_around(sizes: tuple[int, ...], prioritized: bool) -> None:
    buffer, given = make_buffer(capacity=7, prioritized=prioritized), 0
    for size in sizes:
        buffer.add(structured(buffer, range(given, given + size)))
        given += size
        expected = list(range(max(given - 7, 0), given))
        assert actions_in_order(buffer) == expected
        assert set(sample_all(buffer).actions.tolist()) == set(expected)


def test_a_buffer_of_one_row_keeps_the_newest() -> None:
    buffer = make_buffer(capacity=1, prioritized=True)
    record_many(buffer, range(3))
    assert set(sample_all(buffer, 20).actions.tolist()) == {21}


def test_only_written_rows_are_drawn() -> None:
    for prioritized in (False, True):
        buffer = make_buffer(capacity=100, prioritized=prioritized)
        record_many(buffer, range(1, 4))
        rows = sample_all(buffer)
        assert set(rows.indices.tolist()) == set(range(6))
        assert set(rows.actions.tolist()) == {10, 11, 20, 21, 30, 31}


def test_every_field_of_a_sample_comes_from_the_same_row() -> None:
    buffer = make_buffer(capacity=15)
    record_many(buffer, range(1, 20))
    rows = sample_all(buffer)
    assert torch.equal(rows.obs, (rows.actions // 10).float()[:, None].expand(-1, 3))  # type: ignore[arg-type]
    assert torch.equal(rows.next_obs, rows.obs + 1)  # type: ignore[arg-type, operator]
    assert torch.equal(rows.rewards, (rows.actions // 10 * 100).float())
    assert np.array_equal(buffer.rows["actions"][rows.indices], rows.actions)


def test_a_sample_is_a_copy() -> None:
    buffer = make_buffer(capacity=4)
    record_many(buffer, range(1, 3))
    rows = sample_all(buffer)
    before = rows.map(torch.clone)
    record_many(buffer, range(3, 9))
    assert_same_rows(rows, before)


def test_sizes_must_be_positive() -> None:
    for capacity, num_envs in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="capacity and num_envs must be positive"):
            make_buffer(capacity, num_envs)


def test_memory_is_foretold_and_not_taken_before_it_is_needed() -> None:
    buffer = make_buffer(capacity=10**12)
    assert buffer.nbytes >= 10**12 * (3 * 4 + 3 * 4 + 8 + 4 + 4)
    small = make_buffer(capacity=50)
    assert small.nbytes == small.rows.nbytes


# ---------------------------------------------------------------------------------------------------- priorities


def test_new_rows_are_drawn_with_the_largest_priority_and_overwritten_ones_lose_theirs() -> None:
    buffer = make_buffer(capacity=4, prioritized=True, priority_alpha=1.0)
    record_many(buffer, range(1, 3))
    buffer.update_priorities(torch.arange(4), torch.tensor([0.0, 3.0, 0.0, 0.0]))
    record(buffer, 3)  # over rows 0 and 1
    priorities = np.array([3.0, 3.0, 0.0, 0.0])
    rows = buffer.sample(60, np.random.default_rng(0), beta=0.0)
    counts = np.bincount(rows.indices, minlength=4)
    assert np.abs(counts - 60 * priorities / priorities.sum()).max() <= 1
    assert set(rows.actions.tolist()) <= {30, 31, 20, 21}


def test_weights_count_the_kept_rows_and_have_the_default_type(float64: None) -> None:
    buffer = make_buffer(capacity=100, prioritized=True, priority_alpha=1.0)
    record_many(buffer, range(2))
    buffer.update_priorities(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    rows = buffer.sample(40, np.random.default_rng(0), beta=0.5)
    raw = (4 * torch.tensor([0.1, 0.2, 0.3, 0.4])[rows.indices]) ** -0.5
    assert rows.weights is not None
    assert rows.weights.dtype == torch.float64
    torch.testing.assert_close(rows.weights, raw / raw.max(), rtol=1e-5, atol=0.0)


def test_uniform_buffers_ignore_errors() -> None:
    buffer = make_buffer()
    record_many(buffer, range(2))
    before = sample_all(buffer)
    buffer.update_priorities(before.indices, before.rewards)
    assert_same_rows(sample_all(buffer), before)


# -------------------------------------------------------------------------------------------------------- spaces

SPACES: list[tuple[Space[Any], dict[str, torch.dtype]]] = [
    (spaces.Box(-1, 1, (2, 3), np.float64), {"": torch.float32}),
    (spaces.Box(0, 255, (5,), np.uint8), {"": torch.uint8}),
    (spaces.Discrete(4), {"": torch.int64}),
    (spaces.MultiBinary(3), {"": torch.int8}),
    (
        spaces.Dict(
            {
                "a": spaces.Dict(
                    {"b": spaces.Box(-1, 1, (3,), np.float32), "c": spaces.MultiDiscrete([3, 4])}
                ),
                "t": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
            }
        ),
        {"a/b": torch.float32, "a/c": torch.int64, "t/0": torch.int64, "t/1": torch.int8},
    ),
]


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize(("space", "types"), SPACES)
def test_observations_are_kept_in_the_types_of_their_space(
    space: Space[Any], types: dict[str, torch.dtype], n_step: int
) -> None:
    buffer = ReplayBuffer.for_spaces(space, spaces.Discrete(3), capacity=30, num_envs=2, n_step=n_step)
    obs, final = zeros_for(space, 2), zeros_for(space, 2)
    for number in range(8):
        for place, (_, leaf) in enumerate(leaves(obs)):
            leaf[...] = number + 10 * place
        buffer.record_action(obs, np.full(2, number))
        for place, ((_, leaf), (_, last)) in enumerate(zip(leaves(obs), leaves(final), strict=True)):
            leaf[...], last[...] = number + 1 + 10 * place, number + 50 + 10 * place
        buffer.record_outcome(step_arrays(obs, np.ones(2), truncated=[number == 4, False], final_obs=final))
    rows = sample_all(buffer, 200)
    assert rows.actions.dtype == torch.int64
    for kind in (rows.obs, rows.next_obs):
        found = kind if isinstance(kind, dict) else {"": kind}
        assert {key: leaf.dtype for key, leaf in found.items()} == types
    seen, after = (kind if isinstance(kind, dict) else {"": kind} for kind in (rows.obs, rows.next_obs))
    finals = 0
    for place, key in enumerate(types):
        assert torch.equal(seen[key].reshape(200, -1)[:, 0].long(), rows.actions + 10 * place)
        steps = after[key].reshape(200, -1)[:, 0].long() - 10 * place - rows.actions
        # the ended environment's last rows point to its final observation, all the others n steps ahead
        assert set(steps.tolist()) == ({n_step, 50} if n_step == 1 else {n_step, 50, 51})
        finals = int((steps >= 50).sum())
    assert 0 < finals < 100


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Discrete(3), (), torch.int64),
        (spaces.MultiDiscrete([2, 3]), (2,), torch.int64),
        (spaces.Box(-1, 1, (2, 2), np.float64), (4,), torch.float32),
    ],
)
def test_actions_have_the_layout_of_their_space(
    space: Space[Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    buffer = ReplayBuffer.for_spaces(spaces.Discrete(3), space, capacity=5, num_envs=1)
    actions = np.arange(1, 1 + int(np.prod(shape))).reshape(1, *shape)
    buffer.record_action(np.zeros(1), actions)
    buffer.record_outcome(step_arrays(np.zeros(1), [1.0]))
    rows = sample_all(buffer, 1)
    assert rows.actions.dtype == dtype
    assert rows.actions.tolist() == actions.tolist()


def test_numbers_are_kept_in_torchs_default_type(float64: None) -> None:
    buffer = ReplayBuffer.for_spaces(
        spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)), capacity=5, num_envs=1, n_step=2, gamma=0.9
    )
    for number in (0.1, 0.2):
        buffer.record_action(np.full((1, 1), number), np.full((1, 1), number))
        buffer.record_outcome(step_arrays(np.full((1, 1), number), [number]))
    rows = sample_all(buffer, 1)
    assert rows.rewards.tolist() == [0.1 + 0.9 * 0.2]
    assert rows.discounts.tolist() == [0.9**2]
    assert rows.obs.tolist() == [[0.1]]  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------- checkpoints


def variant(name: str) -> ReplayBuffer:
    frames = "frames" in name
    return ReplayBuffer(
        capacity=40,
        num_envs=3,
        obs_shape=(2, 3) if frames else (3,),
        action_shape=(),
        action_dtype=np.int64,
        n_step=3 if "n-step" in name else 1,
        frame_stack=2 if frames else None,
        prioritized="prioritized" in name,
    )


@pytest.mark.parametrize("steps", [1, 5, 60])
@pytest.mark.parametrize(
    "name",
    [
        "uniform",
        "prioritized",
        "uniform n-step",
        "prioritized n-step",
        "uniform frames",
        "prioritized n-step frames",
    ],
)
def test_a_restored_buffer_goes_on_as_the_old_one(name: str, steps: int) -> None:
    buffer, world = variant(name), World("frames" in name)
    world.play(buffer, steps)
    if len(buffer):
        drawn = buffer.sample(30, np.random.default_rng(2))
        buffer.update_priorities(drawn.indices, drawn.rewards)
    copy = restored(buffer, variant(name))
    lives = [(buffer, world, np.random.default_rng(4)), (copy, deepcopy(world), np.random.default_rng(4))]
    for _ in range(30):
        rows = []
        for each, around, rng in lives:
            around.play(each, 1)
            if len(each):
                rows.append(each.sample(16, rng, beta=0.5))
                each.update_priorities(rows[-1].indices, rows[-1].rewards - 0.5)
        if rows:
            assert_same_rows(*rows)
    assert len(copy) == len(buffer) > 20
    assert copy.total_rows == buffer.total_rows
    if buffer.frames is not None:
        assert copy.frames is not None
        assert copy.frames.total_rows == buffer.frames.total_rows


def test_a_state_does_not_move_with_the_buffer() -> None:
    space = spaces.Dict({"a": spaces.Dict({"b": spaces.Box(-1, 1, (2,))})})
    buffer, copy = (
        ReplayBuffer.for_spaces(space, spaces.Discrete(2), capacity=9, num_envs=1, n_step=3) for _ in range(2)
    )

    def act(target: ReplayBuffer, number: float) -> None:
        obs = {"a/b": np.full((1, 2), number, np.float32)}
        target.record_action(obs, np.zeros(1, np.int64))
        target.record_outcome(step_arrays({"a/b": obs["a/b"] + 1}, [number]))

    act(buffer, 1.0)
    state = buffer.state_dict()
    for number in range(50, 60):
        act(buffer, number)
    copy.load_state_dict(state)
    act(copy, 2.0)
    act(copy, 3.0)
    rows = sample_all(copy, 1)
    assert rows.obs["a/b"].tolist() == [[1.0, 1.0]]  # type: ignore[call-overload]
    assert rows.rewards.tolist() == pytest.approx([1 + 0.99 * 2 + 0.99**2 * 3])


def test_another_number_of_environments_keeps_the_rows_and_drops_the_windows() -> None:
    buffer, other = make_buffer(20, 2, n_step=3), make_buffer(20, 3, n_step=3)
    record_many(buffer, range(1, 6))
    kept = actions_in_order(buffer)
    restored(buffer, other)
    assert actions_in_order(other) == kept == [10, 11, 20, 21, 30, 31]
    record_many(other, range(6, 9))
    assert actions_in_order(other) == [*kept, 60, 61, 62]


def test_rows_are_read_and_restored_under_their_absolute_numbers() -> None:
    buffer, copy = make_buffer(capacity=7), make_buffer(capacity=7)
    buffer.add(structured(buffer, range(12)))
    buffer.add(structured(buffer, range(12, 17)))
    total = buffer.total_rows
    rows = buffer.read_rows(total - 3, total)
    assert rows["actions"].tolist() == [14, 15, 16]
    older = {name: torch.cat([torch.zeros_like(column), column]) for name, column in rows.items()}
    copy.restore_rows(total - 6, older, total)
    assert actions_in_order(copy)[-6:] == [0, 0, 0, 14, 15, 16]
    buffer.rows["actions"] = -1
    assert rows["actions"].tolist() == [14, 15, 16]


def test_rows_that_no_longer_fit_are_left_out() -> None:
    buffer, small = make_buffer(capacity=20), make_buffer(capacity=6)
    buffer.add(structured(buffer, range(20)))
    small.restore_rows(0, buffer.read_rows(0, 20), 20)
    assert actions_in_order(small) == [14, 15, 16, 17, 18, 19]


def test_rows_of_another_kind_and_missing_rows_are_refused() -> None:
    buffer, copy = make_buffer(), make_buffer()
    record_many(buffer, range(3))
    rows = buffer.read_rows(0, 6)
    with pytest.raises(ValueError, match="column 'actions' has another shape or type"):
        copy.restore_rows(0, rows | {"actions": rows["actions"].float()}, 6)
    with pytest.raises(ValueError, match="column 'obs' has another shape or type"):
        copy.restore_rows(0, rows | {"obs": torch.zeros(6, 4)}, 6)
    with pytest.raises(ValueError, match="6 rows were saved, 0 were read back"):
        make_buffer().load_state_dict(buffer.state_dict())


def test_windows_keep_entries_whose_keys_differ_by_a_dot_only() -> None:
    space = spaces.Dict({"a.b": spaces.Box(-9, 9, (1,)), "a": spaces.Dict({"b": spaces.Box(-9, 9, (1,))})})
    one, other = (
        ReplayBuffer.for_spaces(space, spaces.Discrete(2), capacity=4, num_envs=1, n_step=2) for _ in range(2)
    )
    obs = {"a.b": np.full((1, 1), 1.0, np.float32), "a/b": np.full((1, 1), 2.0, np.float32)}
    one.record_action(obs, np.zeros(1))
    one.record_outcome(step_arrays(obs, [1.0]))
    other.load_state_dict(one.state_dict())
    other.record_action(obs, np.zeros(1))
    other.record_outcome(step_arrays(obs, [1.0]))
    rows = other.sample(1, np.random.default_rng(0))
    assert (rows.obs["a.b"].item(), rows.obs["a/b"].item()) == (1.0, 2.0)
