from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from records import step_arrays

from rl_training.core.types import Array
from rl_training.data.frame_storage import FrameStore
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


def make_store(usual: int = 50, num_envs: int = 1, channels: int = 1) -> FrameStore:
    return FrameStore(
        usual, num_envs=num_envs, stack_size=3, stack_shape=(3 * channels, 1), dtype=np.dtype(np.uint8)
    )


def stacks(*frames: list[int]) -> Array:
    return np.array(frames, np.uint8)[:, :, None]


def shown(store: FrameStore, *frames: list[int]) -> list[list[int]]:
    """Numbers of what the environments show before an action."""
    found: list[list[int]] = store.numbers_of(stacks(*frames), moved_on=False).tolist()
    return found


def followed(store: FrameStore, *frames: list[int]) -> list[list[int]]:
    """Numbers of what came of a step."""
    found: list[list[int]] = store.numbers_of(stacks(*frames), moved_on=True).tolist()
    return found


def frames_of(buffer: ReplayBuffer) -> FrameStore:
    assert buffer.frames is not None
    return buffer.frames


# --------------------------------------------------------------------------------------------- the frame store


def test_a_continued_stack_costs_one_frame_and_one_that_is_shown_again_none() -> None:
    store = make_store()
    assert shown(store, [5, 6, 7]) == [[0, 1, 2]]
    assert followed(store, [6, 7, 8]) == [[1, 2, 3]]
    assert shown(store, [6, 7, 8]) == [[1, 2, 3]]
    assert store.total_rows == 4


def test_a_picture_that_stands_still_gets_new_numbers_with_every_step() -> None:
    store = make_store()
    shown(store, [5, 5, 5])
    assert followed(store, [5, 5, 5]) == [[0, 0, 1]]
    assert followed(store, [5, 5, 5]) == [[0, 1, 2]]


def test_a_colour_frame_has_several_channels_of_the_first_axis() -> None:
    store = make_store(channels=2)
    first, second = [1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8]
    assert shown(store, first) == [[0, 1, 2]]
    assert followed(store, second) == [[1, 2, 3]]
    assert store.stacks(np.array([[0, 1, 2], [1, 2, 3]])).tolist() == stacks(first, second).tolist()
    # one channel further is not one frame further
    assert followed(store, [4, 5, 6, 7, 8, 9]) == [[4, 5, 6]]


def test_frames_that_differ_in_the_sign_of_zero_are_not_the_same() -> None:
    store = FrameStore(9, num_envs=1, stack_size=2, stack_shape=(2, 1), dtype=np.dtype(np.float32))
    numbers = store.numbers_of(np.array([[[0.0], [-0.0]]], np.float32), moved_on=False)
    assert np.signbit(store.stacks(numbers)).ravel().tolist() == [False, True]


@pytest.mark.parametrize(("first", "cost"), [([9, 9, 9], 1), ([0, 0, 9], 2), ([7, 8, 9], 3)])
def test_padding_after_a_reset_is_stored_once(first: list[int], cost: int) -> None:
    store = make_store()
    numbers = np.array(shown(store, first))
    assert store.total_rows == cost
    assert store.stacks(numbers).tolist() == stacks(first).tolist()


def test_a_stack_that_does_not_continue_the_last_one_is_stored_whole() -> None:
    store = make_store()
    shown(store, [1, 2, 3])
    assert followed(store, [3, 4, 5]) == [[3, 4, 5]]


def test_environments_share_no_frames() -> None:
    store = make_store(num_envs=2)
    assert shown(store, [1, 1, 1], [1, 1, 1]) == [[0, 0, 0], [1, 1, 1]]
    assert followed(store, [1, 1, 2], [1, 1, 3]) == [[0, 0, 2], [1, 1, 3]]
    assert store.stacks(np.array([[0, 0, 2], [1, 1, 3]])).tolist() == stacks([1, 1, 2], [1, 1, 3]).tolist()


def filled(usual: int, frames: int, num_envs: int = 1) -> FrameStore:
    """A store of frames that show their numbers, all of which the rows 0, 1, ... need."""
    store = make_store(usual, num_envs)
    for number in range(0, frames, num_envs):
        followed(store, *([number + env] * 3 for env in range(num_envs)))
        store.rows_need(store.numbers[:, 0], number)
    return store


def drop(store: FrameStore, oldest_row: int, *waiting: int) -> int:
    store.drop_unneeded(oldest_row, np.array(waiting, np.int64))
    return store.first_alive


def test_chunks_are_dropped_when_neither_rows_nor_waiting_frames_nor_stacks_shown_need_them() -> None:
    store = filled(usual=100, frames=40)
    assert store.chunk == 4
    assert drop(store, 3, 39) == 0, "row 3 needs frame 3, in the first chunk"
    assert drop(store, 4, 39) == 4
    assert drop(store, 30, 13, 39) == 12, "frame 13 waits"
    assert drop(store, 40) == 36, "frame 39 is shown"
    assert (store.kept_rows, store.total_rows) == (4, 40)


def test_places_of_dropped_chunks_are_used_again_lowest_first() -> None:
    store = filled(usual=100, frames=20)
    drop(store, 12)
    for number in range(20, 100):
        followed(store, [number] * 3)
        store.rows_need(store.numbers[:, 0], number)
        drop(store, number - 7)
    # 8 rows of one frame each lie in 3 chunks at most, and one is begun
    assert max(store._places) < 5
    assert store._frames(np.arange(92, 100)).ravel().tolist() == list(range(92, 100))


def test_there_is_room_for_more_frames_than_expected() -> None:
    store = filled(usual=20, frames=200)
    assert len(store._slabs) == 10
    assert store._frames(np.arange(200)).ravel().tolist() == list(range(200))
    assert store.read_rows(15, 45)["frames"].ravel().tolist() == list(range(15, 45))
    drop(store, 190)
    for number in range(200, 256):
        followed(store, [number] * 3)
    assert store._frames(np.arange(190, 256)).ravel().tolist() == list(range(190, 256))
    assert len(store._slabs) == 10


def test_a_restored_store_continues_the_stacks_it_knew() -> None:
    store, copy = make_store(8, num_envs=2), make_store(8, num_envs=2)
    for frame in range(0, 12, 2):
        followed(store, [frame, frame + 2, frame + 4], [frame + 1, frame + 3, frame + 5])
        store.rows_need(store.numbers[:, 0], frame)
    drop(store, 6)
    assert store.first_alive == 6
    for start, stop in ((6, 9), (9, 16)):
        copy.restore_rows(start, store.read_rows(start, stop), stop)
    copy.load_state_dict(store.state_dict())
    assert (copy.first_alive, copy.total_rows) == (6, 16)
    following = [12, 14, 16], [13, 15, 17]
    assert followed(copy, *following) == followed(store, *following)
    assert copy.total_rows == store.total_rows == 18
    assert torch.equal(copy.read_rows(6, 18)["frames"], store.read_rows(6, 18)["frames"])


def test_stacks_whose_frames_were_not_put_back_are_refused() -> None:
    store = filled(usual=20, frames=12)
    for start, stop in ((0, 11), (12, 12)):
        copy = make_store(20)
        copy.restore_rows(start, store.read_rows(start, stop), stop)
        with pytest.raises(ValueError, match="frames 9 to 11 are needed, "):
            copy.load_state_dict({"numbers": torch.tensor([[9, 10, 11]]), "known": torch.tensor([True])})


def test_stacks_of_another_number_of_environments_are_dropped() -> None:
    store, other = make_store(num_envs=2), make_store(num_envs=1)
    shown(store, [1, 2, 3], [4, 5, 6])
    other.restore_rows(0, store.read_rows(0, 6), 6)
    other.load_state_dict(store.state_dict())
    assert followed(other, [2, 3, 4]) == [[6, 7, 8]]


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
    plain = ReplayBuffer(capacity=1_000_000, num_envs=8, **shape)  # type: ignore[arg-type]
    stacked = ReplayBuffer(capacity=1_000_000, num_envs=8, frame_stack=K, prioritized=True, **shape)  # type: ignore[arg-type]
    assert plain.nbytes > 1_000_000 * 2 * K * 84 * 84
    assert 1_000_000 * 84 * 84 < stacked.nbytes < 7.4e9


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 4])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("lengths", [(1,), (2, 1, 3), (1, 1, 1, 6), (50,)])
def test_no_row_is_lost_and_no_frame_is_kept_for_nothing(
    lengths: tuple[int, ...], num_envs: int, n_step: int, prioritized: bool
) -> None:
    buffer = make_buffer(60, num_envs, n_step=n_step, prioritized=prioritized)
    frames = frames_of(buffer)
    projector = Projector(buffer, lengths, padding="repeated")
    rng = np.random.default_rng(0)
    for _ in range(480 // num_envs):
        projector.play(1)
        if len(buffer):
            projector.check(buffer.sample(100, rng))
        # an episode of L steps has L + 1 frames
        steps = -(-len(buffer) // num_envs) + n_step + K
        assert frames.kept_rows <= num_envs * (steps + steps // min(lengths) + 1) + frames.chunk
    assert len(buffer) == 60
    assert set(buffer.sample(3000, rng).indices.tolist()) == set(range(60))
    assert frames.total_rows > 480


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_restored_buffer_keeps_the_same_frames(prioritized: bool) -> None:
    buffer, copy = (make_buffer(60, 2, n_step=3, prioritized=prioritized) for _ in range(2))
    projector = Projector(buffer, (1, 9), padding="repeated")
    projector.play(100)
    for kind, storage in buffer.storages.items():
        # segments may begin before what is needed
        start, total = max(storage.total_rows - storage.kept_rows, 0), storage.total_rows
        copy.storages[kind].restore_rows(start, storage.read_rows(start, total), total)
    copy.load_state_dict(buffer.state_dict())
    assert len(copy) == len(buffer) == 60
    assert frames_of(copy).first_alive == frames_of(buffer).first_alive > 0
    rows, same = (each.sample(500, np.random.default_rng(0)) for each in (buffer, copy))
    assert torch.equal(rows.indices, same.indices)
    projector.check(same)
    for each in (deepcopy(projector, {id(buffer): copy}), projector):
        each.play(50)
        each.check(each.buffer.sample(500, np.random.default_rng(0)))
    assert frames_of(copy).first_alive == frames_of(buffer).first_alive
    assert frames_of(copy).total_rows == frames_of(buffer).total_rows


def test_a_buffer_whose_rows_need_frames_that_are_not_there_is_refused() -> None:
    buffer, copy = make_buffer(60), make_buffer(60)
    Projector(buffer, (5,), padding="repeated").play(40)
    copy.restore_rows(0, buffer.read_rows(0, 40), 40)
    frames_of(copy).restore_rows(9, frames_of(buffer).read_rows(9, 48), 48)
    with pytest.raises(ValueError, match=r"frames 0 to .* are needed, 9 to 47 are there"):
        copy.load_state_dict(buffer.state_dict())


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


@pytest.mark.parametrize("shape", [(6, 2), (4,), {"image": (4, 2)}])
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


def test_steps_that_finish_nothing_take_no_frames_from_rows() -> None:
    # dead rows of next-step autoreset: frames are appended, and no row is added
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


def test_an_environment_that_stands_still_does_not_keep_all_frames_since() -> None:
    seen: dict[int, list[int]] = {}
    buffer = stacked(20, 2)
    for step in range(100):
        obs = np.array([[7, 7, 7, 7], [step, step + 1, step + 2, step + 3]])
        seen |= {2 * step: obs[0].tolist(), 2 * step + 1: obs[1].tolist()}
        buffer.record_action(obs[:, :, None], np.array([2 * step, 2 * step + 1]))
        obs[1] += 1
        buffer.record_outcome(step_arrays(obs[:, :, None].copy(), np.ones(2)))
        assert rows_drawn_are_whole(buffer, seen), step
    frames = frames_of(buffer)
    # 10 steps of both, the stacks before them, and a chunk that is not quite done with
    assert frames.kept_rows <= 2 * (10 + 4) + frames.chunk


def test_final_stacks_are_stored_once_in_next_step_mode() -> None:
    buffer = stacked(100, 1)
    stack = np.array([[1, 2, 3, 4]])[:, :, None]
    buffer.record_action(stack, np.array([0]))
    final = np.array([[2, 3, 4, 5]])[:, :, None]
    buffer.record_outcome(step_arrays(final, [1.0], terminated=True))
    buffer.record_action(final, np.array([1]))  # ignored by the environment
    assert frames_of(buffer).total_rows == 5
