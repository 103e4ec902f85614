from typing import Any

import numpy as np
import pytest
import torch
from records import step_arrays

from rl_training.core.types import Array
from rl_training.data.frames import FrameStore
from rl_training.data.replay_buffer import ReplayBuffer, Transitions

K = 4


class Projector:
    """Plays episodes of `lengths` steps whose frames all differ, stacked, into a buffer, with same-step resets.

    What really happened is kept: `seen[a]` is the stack before action `a`, `after[a]` the one n steps later.
    """

    def __init__(
        self, buffer: ReplayBuffer, lengths: tuple[int, ...], *, padding: str, terminates: bool = True
    ) -> None:
        self.buffer, self.padding, self.terminates = buffer, padding, terminates
        self.lengths = lengths
        self.frames = self.actions = self.resets = 0
        self.seen: dict[int, list[int]] = {}
        self.after: dict[int, list[int]] = {}
        self.waiting: list[list[int]] = [[] for _ in range(buffer.num_envs)]
        self.stacks = [self._reset() for _ in range(buffer.num_envs)]
        self.left = [lengths[env % len(lengths)] for env in range(buffer.num_envs)]

    def _frame(self) -> int:
        self.frames += 1
        return self.frames

    def _reset(self) -> list[int]:
        self.resets += 1
        frame = self._frame()
        return [frame if self.padding == "repeated" else 0] * (K - 1) + [frame]

    def _pictures(self, stacks: list[list[int]]) -> Array:
        """Frames of two pixels that tell their number."""
        numbers = np.array(stacks)
        return np.stack([numbers // 256, numbers % 256], axis=-1).astype(np.uint8)

    def play(self, steps: int) -> None:
        n = self.buffer.num_envs
        for _ in range(steps):
            actions = np.arange(self.actions, self.actions + n)
            self.actions += n
            obs = self._pictures(self.stacks)
            self.buffer.record_action(obs, actions)
            obs[:] = 255  # the environments overwrite what was seen
            ended, final = np.zeros(n, np.bool_), []
            for env, action in enumerate(actions.tolist()):
                self.seen[action] = self.stacks[env]
                self.stacks[env] = [*self.stacks[env][1:], self._frame()]
                final.append(self.stacks[env])
                waiting = self.waiting[env]
                waiting.append(action)
                self.left[env] -= 1
                ended[env] = self.left[env] == 0
                while waiting and (ended[env] or len(waiting) == self.buffer.window.n):
                    self.after[waiting.pop(0)] = self.stacks[env]
                if ended[env]:
                    self.stacks[env] = self._reset()
                    self.left[env] = self.lengths[self.resets % len(self.lengths)]
            flag = "terminated" if self.terminates else "truncated"
            self.buffer.record_outcome(
                step_arrays(
                    self._pictures(self.stacks),
                    np.ones(n),
                    final_obs=self._pictures(final),
                    **{flag: ended},
                )
            )

    def check(self, rows: Transitions) -> None:
        """Assert that rows show what was seen."""
        assert isinstance(rows.obs, torch.Tensor)
        assert isinstance(rows.next_obs, torch.Tensor)
        assert rows.obs.dtype == torch.uint8
        actions = rows.actions.tolist()
        assert np.array_equal(rows.obs, self._pictures([self.seen[action] for action in actions]))
        assert np.array_equal(rows.next_obs, self._pictures([self.after[action] for action in actions]))


def make_buffer(capacity: int = 1000, num_envs: int = 1, **settings: Any) -> ReplayBuffer:
    return ReplayBuffer(
        capacity=capacity,
        num_envs=num_envs,
        obs_shape=(K, 2),
        obs_dtype=np.uint8,
        action_shape=(),
        action_dtype=np.int64,
        frame_stack=K,
        **settings,
    )


def make_store(capacity: int = 50, num_envs: int = 1) -> FrameStore:
    return FrameStore(capacity, num_envs=num_envs, stack_shape=(3, 1), dtype=np.dtype(np.uint8))


def stacks(*frames: list[int]) -> Array:
    return np.array(frames, np.uint8)[:, :, None]


def frames_of(buffer: ReplayBuffer) -> FrameStore:
    assert buffer.frames is not None
    return buffer.frames


# --------------------------------------------------------------------------------------------- the frame store


def test_a_continued_stack_costs_one_frame_and_an_unchanged_one_none() -> None:
    store = make_store()
    assert store.numbers_of(stacks([5, 6, 7])).tolist() == [[0, 1, 2]]
    assert store.numbers_of(stacks([6, 7, 8])).tolist() == [[1, 2, 3]]
    assert store.numbers_of(stacks([6, 7, 8])).tolist() == [[1, 2, 3]]
    assert store.total_rows == 4


@pytest.mark.parametrize(("first", "cost"), [([9, 9, 9], 1), ([0, 0, 9], 2), ([7, 8, 9], 3)])
def test_padding_after_a_reset_is_stored_once(first: list[int], cost: int) -> None:
    store = make_store()
    numbers = store.numbers_of(stacks(first))
    assert store.total_rows == cost
    assert store.stacks(numbers).tolist() == stacks(first).tolist()


def test_a_stack_that_does_not_continue_the_last_one_is_stored_whole() -> None:
    store = make_store()
    store.numbers_of(stacks([1, 2, 3]))
    assert store.numbers_of(stacks([3, 4, 5])).tolist() == [[3, 4, 5]]


def test_environments_share_no_frames() -> None:
    store = make_store(num_envs=2)
    assert store.numbers_of(stacks([1, 1, 1], [1, 1, 1])).tolist() == [[0, 0, 0], [1, 1, 1]]
    assert store.numbers_of(stacks([1, 1, 2], [1, 1, 3])).tolist() == [[0, 0, 2], [1, 1, 3]]
    assert store.stacks(np.array([[0, 0, 2], [1, 1, 3]])).tolist() == stacks([1, 1, 2], [1, 1, 3]).tolist()


def test_an_unknown_stack_is_stored_even_if_it_looks_like_a_continuation() -> None:
    store = make_store()
    store.numbers_of(stacks([1, 2, 3]))
    store.known[0] = False
    assert store.numbers_of(stacks([2, 3, 4])).tolist() == [[3, 4, 5]]


def test_the_ring_keeps_the_newest_frames_under_their_numbers() -> None:
    store = make_store(capacity=5)
    for frame in range(10):
        store.numbers_of(stacks([frame, frame + 1, frame + 2]))
    assert (store.total_rows, store.kept_rows, store.first_alive) == (12, 5, 7)
    assert store.stacks(np.array([[7, 8, 9], [9, 10, 11]]))[:, :, 0].tolist() == [[7, 8, 9], [9, 10, 11]]
    assert store.read_rows(7, 12)["frames"][:, 0].tolist() == [7, 8, 9, 10, 11]


def test_a_restored_store_continues_the_stacks_it_knew() -> None:
    store, copy = make_store(8, num_envs=2), make_store(8, num_envs=2)
    for frame in range(0, 12, 2):
        store.numbers_of(stacks([frame, frame + 2, frame + 4], [frame + 1, frame + 3, frame + 5]))
    copy.restore_rows(store.first_alive, store.read_rows(store.first_alive, store.total_rows), 16)
    copy.load_state_dict(store.state_dict())
    following = stacks([12, 14, 16], [13, 15, 17])
    assert copy.numbers_of(following).tolist() == store.numbers_of(following).tolist()
    assert copy.total_rows == store.total_rows == 18
    assert np.array_equal(copy.frames, store.frames)


def test_stacks_of_another_number_of_environments_are_dropped() -> None:
    store, other = make_store(num_envs=2), make_store(num_envs=1)
    store.numbers_of(stacks([1, 2, 3], [4, 5, 6]))
    other.restore_rows(0, store.read_rows(0, 6), 6)
    other.load_state_dict(store.state_dict())
    assert other.numbers_of(stacks([2, 3, 4])).tolist() == [[6, 7, 8]]


def test_frames_of_another_type_or_shape_are_refused() -> None:
    for wrong in (torch.zeros(3, 1), torch.zeros(3, 2, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="'frames' has another shape or type"):
            make_store().restore_rows(0, {"frames": wrong}, 3)


# ------------------------------------------------------------------------------------- frames of a replay buffer


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("padding", ["repeated", "zeros"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_sampled_stacks_are_those_that_were_seen(
    num_envs: int, padding: str, n_step: int, prioritized: bool
) -> None:
    buffer = make_buffer(num_envs=num_envs, n_step=n_step, prioritized=prioritized)
    projector = Projector(buffer, (1, 7, 2, 12), padding=padding, terminates=prioritized)
    projector.play(60)
    rows = buffer.sample(2000, np.random.default_rng(0))
    projector.check(rows)
    assert len(rows.actions.unique()) == len(buffer) == len(projector.after)


@pytest.mark.parametrize("padding", ["repeated", "zeros"])
def test_each_frame_is_stored_once(padding: str) -> None:
    buffer = make_buffer(num_envs=3)
    projector = Projector(buffer, (5, 9, 11), padding=padding)
    projector.play(100)
    shown = [*projector.seen.values(), *projector.after.values()]
    frames = {frame for stack in shown for frame in stack if frame}
    zeros = sum(stack[:-1] == [0, 0, 0] for stack in projector.seen.values())  # one per episode
    assert frames_of(buffer).total_rows == len(frames) + zeros
    assert len(frames) > 300


def test_stacks_take_a_fraction_of_the_memory() -> None:
    shape = {"obs_shape": (K, 84, 84), "obs_dtype": np.uint8, "action_shape": ()}
    plain = ReplayBuffer(capacity=100_000, num_envs=8, **shape)  # type: ignore[arg-type]
    stacked = ReplayBuffer(capacity=100_000, num_envs=8, frame_stack=K, **shape)  # type: ignore[arg-type]
    assert plain.nbytes > 100_000 * 2 * K * 84 * 84
    assert stacked.nbytes < 1.25 * 100_000 * 84 * 84


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("lengths", [(1,), (2, 1, 3), (1, 1, 1, 6)])
def test_rows_whose_frames_were_overwritten_are_never_drawn(
    lengths: tuple[int, ...], num_envs: int, prioritized: bool
) -> None:
    buffer = make_buffer(60, num_envs, prioritized=prioritized)
    projector = Projector(buffer, lengths, padding="repeated")
    rng = np.random.default_rng(0)
    for _ in range(240 // num_envs):
        projector.play(1)
        rows = buffer.sample(200, rng)
        projector.check(rows)
        if prioritized:
            buffer.update_priorities(
                rows.indices, torch.rand(200, generator=torch.Generator().manual_seed(0))
            )
    assert frames_of(buffer).first_alive > 0
    kept = np.arange(buffer.total_rows - len(buffer), buffer.total_rows) % buffer.capacity
    alive = kept[buffer.rows["obs"][kept].min(axis=1) >= frames_of(buffer).first_alive]
    assert 60 // 4 < len(alive) <= 60  # very short episodes leave fewer rows, but not none
    assert len(alive) < 60 or max(lengths) > 1
    assert set(buffer.sample(3000, rng).indices.tolist()) == set(alive.tolist())


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_restored_buffer_knows_which_rows_have_lost_their_frames(prioritized: bool) -> None:
    buffer, copy = (make_buffer(60, 2, prioritized=prioritized) for _ in range(2))
    projector = Projector(buffer, (1,), padding="repeated")
    projector.play(100)
    for kind, storage in buffer.storages.items():
        start, total = storage.total_rows - storage.kept_rows, storage.total_rows
        copy.storages[kind].restore_rows(start, storage.read_rows(start, total), total)
    copy.load_state_dict(buffer.state_dict())
    assert len(copy) == len(buffer)
    rows, same = (each.sample(500, np.random.default_rng(0)) for each in (buffer, copy))
    assert torch.equal(rows.indices, same.indices)
    projector.check(same)


def test_long_episodes_fill_the_whole_buffer() -> None:
    buffer = make_buffer(60, 2)
    Projector(buffer, (50,), padding="repeated").play(200)
    assert len(buffer) == 60


def test_a_reset_that_looks_like_a_continuation_shares_frames_and_nothing_else() -> None:
    buffer = make_buffer()
    first, final, reset = (
        np.repeat(np.array(frames, np.uint8), 2).reshape(1, K, 2)
        for frames in ([1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 3])
    )
    buffer.record_action(first, np.array([0]))
    buffer.record_outcome(step_arrays(reset, [1.0], truncated=True, final_obs=final))
    before = frames_of(buffer).total_rows
    buffer.record_action(reset, np.array([1]))
    assert frames_of(buffer).total_rows == before + 1
    rows = buffer.sample(1, np.random.default_rng(0))
    assert np.array_equal(rows.next_obs, final)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 2), (4,), {"image": (4, 2)}])
def test_a_stack_must_be_the_first_axis_of_a_plain_observation(shape: Any) -> None:
    with pytest.raises(ValueError, match="frame_stack is 4, but observations have shape"):
        ReplayBuffer(capacity=5, num_envs=1, obs_shape=shape, action_shape=(), frame_stack=4)


def rows_drawn_are_whole(buffer: ReplayBuffer, seen: dict[int, list[int]]) -> bool:
    rows = buffer.sample(256, np.random.default_rng(0))
    assert isinstance(rows.obs, torch.Tensor)
    return rows.obs[:, :, 0].tolist() == [seen[int(action)] for action in rows.actions]


def stacked(capacity: int, num_envs: int, n_step: int = 1) -> ReplayBuffer:
    return ReplayBuffer(
        capacity=capacity,
        num_envs=num_envs,
        obs_shape=(4, 1),
        obs_dtype=np.int64,
        action_shape=(),
        action_dtype=np.int64,
        n_step=n_step,
        frame_stack=4,
    )


def test_steps_that_finish_nothing_still_drop_rows_whose_frames_they_overwrite() -> None:
    # dead rows of next-step autoreset: frames are appended, no row is added, so nothing is dropped
    seen: dict[int, list[int]] = {}
    buffer = stacked(100, 1)
    for action in range(200):
        obs = np.array([[10 * action + k for k in range(4)]])[:, :, None]
        dead = action % 2 == 1
        seen[action] = obs[0, :, 0].tolist()
        buffer.record_action(obs, np.array([action]))
        after = np.concatenate([obs[:, 1:], obs[:, -1:] + 1], axis=1)
        buffer.record_outcome(step_arrays(after, [1.0], terminated=not dead, valid=not dead))
        assert len(buffer) == 0 or rows_drawn_are_whole(buffer, seen), action


def test_costly_resets_of_one_environment_do_not_take_frames_from_rows_of_another() -> None:
    # environment 0 plays on, the others end at every step and start with zeros before the first frame
    num_envs, n_step = 8, 5
    seen: dict[int, list[int]] = {}
    buffer = stacked(100, num_envs, n_step)
    clock = iter(range(1, 10**6))
    stacks = [[0, 0, 0, next(clock)] for _ in range(num_envs)]
    for step in range(100):
        actions = np.arange(num_envs) + num_envs * step
        seen |= {int(a): stack for a, stack in zip(actions, stacks, strict=True)}
        buffer.record_action(np.array(stacks)[:, :, None], actions)
        final = [[*stack[1:], next(clock)] for stack in stacks]
        stacks = [final[0], *([0, 0, 0, next(clock)] for _ in range(num_envs - 1))]
        buffer.record_outcome(
            step_arrays(
                np.array(stacks)[:, :, None],
                np.ones(num_envs),
                terminated=np.arange(num_envs) > 0,
                final_obs=np.array(final)[:, :, None],
            )
        )
        assert len(buffer) == 0 or rows_drawn_are_whole(buffer, seen), step


def test_an_environment_that_stands_still_does_not_keep_rows_of_lost_frames() -> None:
    seen: dict[int, list[int]] = {}
    buffer = stacked(20, 2)
    for step in range(100):
        obs = np.array([[7, 7, 7, 7], [step, step + 1, step + 2, step + 3]])
        seen |= {2 * step: obs[0].tolist(), 2 * step + 1: obs[1].tolist()}
        buffer.record_action(obs[:, :, None], np.array([2 * step, 2 * step + 1]))
        obs[1] += 1
        buffer.record_outcome(step_arrays(obs[:, :, None].copy(), np.ones(2)))
        assert len(buffer) == 0 or rows_drawn_are_whole(buffer, seen), step


def test_final_stacks_are_stored_once_in_next_step_mode() -> None:
    buffer = stacked(100, 1)
    stack = np.array([[1, 2, 3, 4]])[:, :, None]
    buffer.record_action(stack, np.array([0]))
    final = np.array([[2, 3, 4, 5]])[:, :, None]
    buffer.record_outcome(step_arrays(final, [1.0], terminated=True))
    buffer.record_action(final, np.array([1]))  # ignored by the environment
    assert buffer.frames.total_rows == 5


def test_frames_that_were_never_put_back_are_not_alive_in_a_larger_store() -> None:
    """More environments have more room: what lay before the first restored frame must not be drawn as zeros."""

    def store(capacity: int) -> FrameStore:
        return FrameStore(capacity, num_envs=1, stack_shape=(2, 1), dtype=np.dtype(np.int32))

    old, new = store(6), store(10)
    for number in range(12):
        old.numbers_of(np.array([[[number + 1], [number + 2]]], np.int32))
    first = old.first_alive
    assert first == old.total_rows - 6
    middle = first + 2
    new.restore_rows(first, old.read_rows(first, middle), middle)
    new.restore_rows(middle, old.read_rows(middle, old.total_rows), old.total_rows)
    assert (new.first_alive, new.kept_rows) == (first, 6)
    new.load_state_dict(old.state_dict())
    for number in range(12, 20):
        new.numbers_of(np.array([[[number + 1], [number + 2]]], np.int32))
    assert new.first_alive == new.total_rows - 10
