from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from records import act_arrays, step_arrays

from rl_training.core.types import Array, Obs, Progress, UpdateResult
from rl_training.data import sources
from rl_training.data.replay_buffer import ReplayBuffer, Transitions
from rl_training.data.sources import ReplaySource
from rl_training.models.normalizer import RewardNormalizer

START = Progress(total_timesteps=100)


def make_source(num_envs: int = 2, *, buffer: dict[str, Any] | None = None, **settings: Any) -> ReplaySource:
    ring = ReplayBuffer(
        num_envs=num_envs,
        obs_shape=(1,),
        action_shape=(),
        action_dtype=np.int64,
        **({"capacity": 200} | (buffer or {})),
    )
    defaults: dict[str, Any] = {
        "batch_size": 4,
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_starts": 0,
        "rng": np.random.default_rng(0),
    }
    return ReplaySource(ring, **(defaults | settings))


def record(source: ReplaySource, steps: int = 1, *, first: int = 0, **outcome: Any) -> None:
    """Record vector steps whose entries tell their number; environment i is rewarded with the number + i / 10."""
    n = source.buffer.num_envs
    for number in range(first, first + steps):
        obs = np.full((n, 1), number, np.float32)
        source.record_action(obs, act_arrays(n, number))
        obs += 1
        source.record_outcome(step_arrays(obs, number + np.arange(n) / 10, **outcome), act_arrays(n))
    source.end_collect(act_arrays(n))


def batches_of(source: ReplaySource, progress: Progress = START) -> list[Transitions]:
    """Return the batches one by one: a source gives several together."""
    return [batch for rows in source.batches(progress) for batch in rows.split(source.batch_size)]


def assert_same(one: list[Transitions], other: list[Transitions]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        for name in ("obs", "actions", "rewards", "discounts", "next_obs", "indices"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name
        assert (a.weights is None) == (b.weights is None)
        assert a.weights is None or torch.equal(a.weights, b.weights)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------- updates to data


def batches_after_each_collect(source: ReplaySource, transitions: int) -> Iterator[int]:
    """Alternate as a trainer does, until so many transitions were recorded."""
    left = (transitions - source.recorded) // source.buffer.num_envs
    for done in range(0, left, source.steps_per_collect):
        record(source, min(source.steps_per_collect, left - done))
        yield len(batches_of(source))


@pytest.mark.parametrize("num_envs", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("train_freq", "gradient_steps", "learning_starts", "expected"),
    [
        (1, 1, 0, 192),
        (1, 2, 24, 336),
        (2, 1, 0, 96),
        (4, 1, 48, 36),
        (4, 3, 20, 129),
        (8, 8, 0, 192),
        (16, 1, 0, 12),
        (3, 1, 0, 64),
        (3, 5, 7, 310),
        (64, 64, 0, 192),
    ],
)
def test_updates_follow_from_transitions_whatever_the_number_of_environments(
    num_envs: int, train_freq: int, gradient_steps: int, learning_starts: int, expected: int
) -> None:
    source = make_source(
        num_envs, train_freq=train_freq, gradient_steps=gradient_steps, learning_starts=learning_starts
    )
    assert sum(batches_after_each_collect(source, 192)) == expected
    assert source.recorded == 192


@pytest.mark.parametrize("num_envs", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("learning_starts", [10, 24, 25, 50])
def test_nothing_is_given_before_learning_starts_and_no_burst_after(
    num_envs: int, learning_starts: int
) -> None:
    source = make_source(num_envs, train_freq=4, gradient_steps=2, learning_starts=learning_starts)
    most = 2 * -(-num_envs * source.steps_per_collect // 4)
    first = None
    for count in batches_after_each_collect(source, 120):
        assert count <= most
        if source.recorded <= learning_starts:
            assert (count, source.owed) == (0, 0)
        elif first is None and count:
            first = source.recorded
    assert first is not None
    assert first - learning_starts <= 4 + num_envs * source.steps_per_collect


def test_minus_one_gradient_step_means_one_per_transition() -> None:
    for num_envs in (1, 3):
        source = make_source(num_envs, train_freq=6, gradient_steps=-1)
        assert sum(batches_after_each_collect(source, 60)) == 60


def test_a_collect_takes_train_freq_transitions_and_at_least_one_step() -> None:
    steps = {(f, n): make_source(n, train_freq=f).steps_per_collect for f in (1, 4, 9) for n in (1, 2, 8)}
    assert steps == {
        (1, 1): 1, (1, 2): 1, (1, 8): 1, (4, 1): 4, (4, 2): 2, (4, 8): 1, (9, 1): 9, (9, 2): 4, (9, 8): 1,
    }  # fmt: skip


def test_dead_rows_call_for_no_updates() -> None:
    source = make_source(2)
    record(source, truncated=[True, False])
    record(source, valid=[False, True])
    assert source.recorded == 3
    assert len(batches_of(source)) == 3


def test_nothing_is_given_twice() -> None:
    source = make_source(2, train_freq=2)
    record(source, 3)
    assert source.owed == 3
    assert [len(batches_of(source)) for _ in range(3)] == [3, 0, 0]
    assert source.owed == 0


def test_waiting_n_step_rows_are_no_data_yet() -> None:
    source = make_source(1, buffer={"n_step": 3})
    record(source, 2)
    assert batches_of(source) == []
    record(source, first=2)
    assert len(batches_of(source)) == 3  # the ratio holds all the same


# ------------------------------------------------------------------------------------------------------- batches


def test_batches_are_consecutive_parts_of_one_draw() -> None:
    source = make_source(2, train_freq=2, gradient_steps=5, batch_size=3)
    record(source, 1)
    record(source, 9, first=1)
    batches = batches_of(source)
    assert len(batches) == 50
    assert all(len(batch) == 3 for batch in batches)
    whole = source.buffer.sample(150, np.random.default_rng(0))
    for name in ("obs", "actions", "rewards", "discounts", "next_obs", "indices"):
        assert torch.equal(torch.cat([getattr(batch, name) for batch in batches]), getattr(whole, name))
    assert all(batch.weights is None for batch in batches)


@pytest.mark.parametrize("limit", ["MAX_ROWS_AT_ONCE", "MAX_BYTES_AT_ONCE"])
@pytest.mark.parametrize("number", [1, 8, 11, 300, 10_000])
def test_the_batches_owed_are_all_given_however_many_are_drawn_at_once(
    limit: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, limit, number)
    source = make_source(1)
    record(source, 5)
    batches = batches_of(source)
    assert [len(batch) for batch in batches] == [4] * 5
    assert source.batches_given == 5
    for batch in batches:
        assert torch.equal(batch.obs, batch.actions.float()[:, None])  # type: ignore[arg-type]
        assert torch.equal(batch.next_obs, batch.obs + 1)  # type: ignore[arg-type, operator]


@pytest.mark.parametrize("frame_stack", [None, 4])
def test_few_images_are_drawn_at_once(frame_stack: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred updates that are owed at once must not hold a hundred batches of images in memory."""
    shape = {"obs_shape": (4, 84, 84), "obs_dtype": np.uint8, "action_shape": ()}
    buffer = ReplayBuffer(capacity=10_000, num_envs=1, frame_stack=frame_stack, **shape)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    source = ReplaySource(buffer, batch_size=8, train_freq=1, gradient_steps=1, learning_starts=0, rng=rng)
    monkeypatch.setattr(sources, "MAX_BYTES_AT_ONCE", 20 * 2 * 4 * 84 * 84 + 20 * 100)
    asked = []
    sample = buffer.sample
    monkeypatch.setattr(
        buffer, "sample", lambda count, *a, **k: asked.append(count) or sample(count, *a, **k)
    )
    for _ in range(5):
        obs = np.zeros((1, 4, 84, 84), np.uint8)
        source.record_action(obs, act_arrays(1))
        source.record_outcome(step_arrays(obs, [0.0]), act_arrays(1))
    assert len(batches_of(source)) == 5
    assert asked == [16, 16, 8]


@pytest.mark.parametrize("prioritized", [False, True])
def test_draws_advance_no_generator_but_their_own(prioritized: bool) -> None:
    source = make_source(2, buffer={"prioritized": prioritized})
    record(source, 4)
    others = np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[index, union-attr]
    before = source.rng.bit_generator.state
    batches_of(source)
    assert np.array_equal(others[0], np.random.get_state()[1])  # type: ignore[arg-type, index]
    assert torch.equal(others[1], torch.get_rng_state())
    after = source.rng.bit_generator.state
    assert after != before
    batches_of(source)  # nothing is owed, nothing is drawn
    assert source.rng.bit_generator.state == after


# ---------------------------------------------------------------------------------------------------- priorities


def prioritized_source(**settings: Any) -> ReplaySource:
    source = make_source(1, buffer={"prioritized": True, "priority_alpha": 1.0}, **settings)
    record(source, 8)
    return source


@pytest.mark.parametrize(("timesteps", "beta"), [(0, 0.4), (50, 0.7), (100, 1.0), (130, 1.0)])
def test_beta_rises_to_one_with_progress(timesteps: int, beta: float) -> None:
    source = prioritized_source(beta=0.4, batch_size=64)
    errors = torch.arange(1.0, 9.0)
    source.buffer.update_priorities(torch.arange(8), errors)
    batch = batches_of(source, Progress(timesteps=timesteps, total_timesteps=100))[0]
    raw = (8 * errors / errors.sum())[batch.indices] ** -beta
    assert batch.weights is not None
    torch.testing.assert_close(batch.weights, raw / raw.max(), rtol=1e-5, atol=0.0)


def test_feedback_shapes_the_very_next_batch() -> None:
    source = prioritized_source(batch_size=16)
    batches = source.batches(START)
    first = next(batches)
    assert len(first.indices.unique()) == 8
    errors = torch.where(first.actions == 5, 100.0, 0.0).requires_grad_()
    source.feedback(first, UpdateResult({}, priorities=errors))
    second = next(batches)
    assert second.actions.tolist() == [5] * 16
    source.feedback(second, UpdateResult({}))  # an update without priorities changes none
    assert next(batches).actions.tolist() == [5] * 16


def test_uniform_sources_ignore_feedback() -> None:
    source, plain = make_source(1), make_source(1)
    for each in (source, plain):
        record(each, 4)
    for batch in batches_of(source):
        source.feedback(batch, UpdateResult({}, priorities=torch.ones(4)))
    batches_of(plain)
    for each in (source, plain):
        record(each, 4, first=4)
    assert_same(batches_of(source), batches_of(plain))


# --------------------------------------------------------------------------------------------------------- hooks


@dataclass
class Doubler:
    """A scaler that notes what it is told."""

    told: list[tuple[Any, ...]] = field(default_factory=list)

    def update(
        self, rewards: torch.Tensor, dones: torch.Tensor, valid: torch.Tensor, carry: torch.Tensor
    ) -> None:
        self.told.append((rewards.tolist(), dones.tolist(), valid.tolist()))
        carry += rewards[0]

    def __call__(self, rewards: torch.Tensor) -> torch.Tensor:
        return 2 * rewards


def test_the_scaler_sees_every_step_once_and_scales_what_is_given_only() -> None:
    scaler = Doubler()
    source = make_source(2, reward_scaler=scaler)
    record(source, first=1)
    record(source, first=2, truncated=[True, False], valid=[True, False])
    assert scaler.told == [
        ([[1.0, 1.1]], [[False, False]], [[True, True]]),
        ([[2.0, 2.1]], [[True, False]], [[True, False]]),
    ]
    for batch in batches_of(source):
        stored = torch.from_numpy(source.buffer.rows["rewards"][batch.indices.numpy()])
        assert torch.equal(batch.rewards, 2 * stored)
    assert len(scaler.told) == 2
    assert source.buffer.rows["rewards"][:3].tolist() == pytest.approx([1.0, 1.1, 2.0])


def test_running_returns_are_those_of_the_scaler_and_end_with_the_episode() -> None:
    source = make_source(2, reward_scaler=RewardNormalizer(gamma=0.5))
    record(source, 2, first=1)
    assert source.state_dict()["running_returns"].tolist() == pytest.approx([2 + 0.5, 2.1 + 0.55])
    record(source, first=4, truncated=[True, False])
    record(source, first=8)
    assert source.state_dict()["running_returns"][0] == 8.0
    source.forget([1])
    assert source.state_dict()["running_returns"].tolist() == [8.0, 0.0]


def test_every_new_observation_is_shown_once_and_in_order() -> None:
    seen: list[Array] = []

    def observe(obs: Obs) -> None:
        assert not isinstance(obs, dict)
        seen.append(obs.numpy().copy())

    source = make_source(2, observe=observe)
    record(source, 3)
    batches_of(source)
    assert [rows.tolist() for rows in seen] == [[[1.0], [1.0]], [[2.0], [2.0]], [[3.0], [3.0]]]


def test_forgotten_environments_lose_their_waiting_rows() -> None:
    source = make_source(2, buffer={"n_step": 2})
    record(source, first=1)
    source.forget([0])
    record(source, first=2)
    assert source.buffer.rows["actions"][: len(source.buffer)].tolist() == [1]
    assert source.recorded == 4


def test_a_source_has_the_storages_and_the_size_of_its_buffer() -> None:
    source = make_source()
    assert source.storages == source.buffer.storages == {"transitions": source.buffer}
    assert source.nbytes == source.buffer.nbytes > 0


# --------------------------------------------------------------------------------------------------- checkpoints


def restored(source: ReplaySource, fresh: ReplaySource) -> ReplaySource:
    total, kept = source.buffer.total_rows, source.buffer.kept_rows
    fresh.buffer.restore_rows(total - kept, source.buffer.read_rows(total - kept, total), total)
    fresh.load_state_dict(source.state_dict())
    return fresh


@pytest.mark.parametrize(
    "buffer",
    [
        {},
        {"capacity": 17},
        {"n_step": 3},
        {"prioritized": True},
        {"prioritized": True, "n_step": 3, "capacity": 17},
    ],
)
def test_a_restored_source_gives_the_batches_the_old_one_would_have_given(buffer: dict[str, Any]) -> None:
    def fresh(seed: int) -> ReplaySource:
        return make_source(
            2,
            buffer=buffer,
            train_freq=3,
            gradient_steps=2,
            learning_starts=5,
            beta=0.4,
            reward_scaler=RewardNormalizer(0.9),
            rng=np.random.default_rng(seed),
        )

    def learn(source: ReplaySource) -> list[Transitions]:
        given = []
        for batch in source.batches(START):
            source.feedback(batch, UpdateResult({}, priorities=batch.rewards + 0.1))
            given.append(batch)
        return given

    source = fresh(7)
    for number in range(10):
        record(source, first=number, truncated=[number == 6, False])
        learn(source)
    record(source, first=10)  # what is owed now is still owed after the restart
    copy = restored(source, fresh(8))
    assert copy.reward_scaler is not None
    assert source.reward_scaler is not None
    copy.reward_scaler.load_state_dict(source.reward_scaler.state_dict())  # type: ignore[attr-defined]
    assert copy.owed == source.owed > 0
    assert_same(learn(source), learn(copy))
    for each in (source, copy):
        record(each, 6, first=11, terminated=[False, True])
    assert_same(learn(source), learn(copy))
    for key in ("recorded", "batches_given", "rng"):
        assert source.state_dict()[key] == copy.state_dict()[key]
    assert torch.equal(source.state_dict()["running_returns"], copy.state_dict()["running_returns"])


def test_a_saved_state_does_not_move_with_the_source() -> None:
    source = make_source(2, reward_scaler=RewardNormalizer(0.5))
    record(source, 3)
    state = source.state_dict()
    rng = np.random.default_rng(0).bit_generator.state
    record(source, 3)
    batches_of(source)
    assert (state["recorded"], state["batches_given"]) == (6, 0)
    assert state["rng"] == rng
    assert state["running_returns"].tolist() == pytest.approx([2 + 0.5, 2.1 + 0.55 + 0.025])


def test_another_number_of_environments_keeps_the_ratio_and_drops_what_is_per_environment() -> None:
    source = make_source(2, train_freq=4, reward_scaler=RewardNormalizer(0.5))
    record(source, 8, first=1)
    assert len(batches_of(source)) == 4
    other = restored(source, make_source(4, train_freq=4, reward_scaler=RewardNormalizer(0.5)))
    assert other.state_dict()["running_returns"].tolist() == [0.0] * 4
    assert sum(batches_after_each_collect(other, 32)) == 4
