"""Rows that wait: returns, transitions and scales are those of each row's own actions, found one by one."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from records import act_arrays

from rl_training.core.columns import Column
from rl_training.core.spaces.masks import MASK_KEY
from rl_training.core.types import Progress
from rl_training.data.recurrent_rollout_buffer import RecurrentRolloutBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import ReplaySource, RolloutSource
from rl_training.models.normalizer import RewardNormalizer
from support.turns import (
    IS_TRUNCATED,
    Episode,
    Moment,
    episodes_of,
    moments,
    quarters,
    scripts,
    step_of,
)

LAW = settings(deadline=None, database=None, derandomize=True, max_examples=150)
fractions = st.sampled_from([0.0, 0.5, 0.9, 1.0])
last_values = st.lists(st.none() | quarters, min_size=3, max_size=3)
Script = list[list[Moment]]


# ------------------------------------------------------------------------------------------------------- rollouts


def rollout(script: Script, *, turns: bool = True, kind: Any = RolloutBuffer, **options: Any) -> Any:
    """Return a buffer with a script; actions are the numbers of the rows in time order."""
    rows = len(script[0])
    buffer = kind(
        num_steps=len(script),
        num_envs=rows,
        obs_shape=(1,),
        action_shape=(),
        action_dtype=np.int64,
        turns=turns,
        **options,
    )
    record(buffer, script)
    return buffer


def record(buffer: Any, script: Script) -> None:
    rows = len(script[0])
    for step, row in enumerate(script):
        acted = act_arrays(
            rows,
            np.arange(rows) + step * rows,
            value=[moment.value for moment in row],
            final_value=[moment.final_value * (moment.kind == IS_TRUNCATED) for moment in row],
        )
        obs = np.full((rows, 1), step, np.float32)
        acted.extra = {"episode_starts": np.zeros(rows, np.bool_)} if getattr(buffer, "extra", None) else {}
        buffer.record_action(obs, acted)
        buffer.record_outcome(step_of(row, obs, obs), acted)


def column(script: Script, row: int) -> list[Moment]:
    return [moments[row] for moments in script]


def as_last(values: list[float | None], rows: int) -> torch.Tensor:
    return torch.tensor([np.nan if value is None else value for value in values[:rows]])


def advantage(
    story: list[Moment], episode: Episode, place: int, last: float | None, gamma: float, trace: float
) -> float | None:
    """Return the advantage of an own action by its recursion; None if nothing is known of what follows it."""
    action = episode.actions[place]
    value = story[action.step].value
    if place + 1 < len(episode.actions):
        following = story[episode.actions[place + 1].step].value
        later = advantage(story, episode, place + 1, last, gamma, trace) or 0.0
        return action.paid + gamma * following - value + gamma * trace * later
    if episode.end is not None:
        end = story[episode.end]
        return action.paid + gamma * end.final_value * (end.kind == IS_TRUNCATED) - value
    return None if last is None else action.paid + gamma * last - value


def expected_advantages(
    script: Script, last: list[float | None], gamma: float, trace: float
) -> dict[int, float]:
    """Return the advantages of all rows that are learned from, by their number in time order."""
    rows, found = len(script[0]), {}
    for row in range(rows):
        story = column(script, row)
        for episode in episodes_of(story):
            for place, action in enumerate(episode.actions):
                each = advantage(story, episode, place, last[row], gamma, trace)
                if each is not None:
                    found[action.step * rows + row] = each
    return dict(sorted(found.items()))


@LAW
@given(script=scripts(), last=last_values, gamma=fractions, trace=fractions)
def test_advantages_are_those_of_each_rows_own_actions(
    script: Script, last: list[float | None], gamma: float, trace: float
) -> None:
    buffer = rollout(script)
    buffer.compute_returns_and_advantages(as_last(last, len(script[0])), gamma, trace)
    expected = expected_advantages(script, last, gamma, trace)
    batch = buffer.flat()
    assert batch.valid is None
    assert batch.actions.tolist() == list(expected)
    np.testing.assert_allclose(batch.advantages, list(expected.values()), rtol=1e-4, atol=1e-5)
    assert torch.equal(batch.returns, batch.advantages + batch.values)
    assert torch.equal(batch.obs[:, 0], torch.tensor(list(expected), dtype=torch.int64) // len(script[0]))
    parts = list(buffer.iter_minibatches(4, rng=np.random.default_rng(0)))
    assert sorted(row for part in parts for row in part.actions.tolist()) == list(expected)


@LAW
@given(script=scripts(max_steps=12), last=last_values, length=st.sampled_from([1, 2, 3, 4]))
def test_sequences_keep_the_rows_that_wait_and_mark_those_that_are_learned_from(
    script: Script, last: list[float | None], length: int
) -> None:
    script = script[: len(script) // length * length] or script[:1] * length
    plain, sequences = (
        rollout(script),
        rollout(
            script,
            kind=RecurrentRolloutBuffer,
            sequence_length=length,
            extra=(Column("episode_starts", dtype=np.bool_),),
        ),
    )
    for buffer in (plain, sequences):
        buffer.compute_returns_and_advantages(as_last(last, len(script[0])), 0.9, 0.8)
    flat, learned = sequences.flat(), plain.flat()
    assert flat.actions.tolist() == list(range(len(script) * len(script[0])))
    parts = list(flat.minibatches(2 * length, np.random.default_rng(1)))
    rows = [(part, part.valid if part.valid is not None else part.actions >= 0) for part in parts]
    assert all(valid.any() for _, valid in rows)
    found = {
        int(action): float(each)
        for part, valid in rows
        for action, each in zip(part.actions[valid], part.advantages[valid], strict=True)
    }
    expected = zip(learned.actions.tolist(), learned.advantages.tolist(), strict=True)
    assert dict(sorted(found.items())) == dict(expected)


@LAW
@given(script=scripts(always_valid=True), last=last_values, gamma=st.floats(0, 1), trace=st.floats(0, 1))
def test_without_waiting_nothing_changes_to_the_last_bit(
    script: Script, last: list[float | None], gamma: float, trace: float
) -> None:
    rng = np.random.default_rng(len(script))
    script = [
        [replace(each, reward=float(rng.normal()), value=float(rng.normal())) for each in row]
        for row in script
    ]
    batches = []
    for turns in (False, True):
        buffer = rollout(script, turns=turns)
        known = [0.3 if value is None else value for value in last]
        buffer.compute_returns_and_advantages(as_last(known, len(script[0])), gamma, trace)
        batches.append(buffer.flat())
    for name in ("obs", "actions", "advantages", "returns", "values"):
        assert torch.equal(getattr(batches[0], name), getattr(batches[1], name)), name
    assert batches[1].valid is None


@LAW
@given(script=scripts(), data=st.data())
def test_what_follows_an_end_changes_nothing_before_it(script: Script, data: st.DataObject) -> None:
    rows = len(script[0])
    t, row = data.draw(st.integers(0, len(script) - 1)), data.draw(st.integers(0, rows - 1))
    kind = data.draw(st.sampled_from([1, 2, 3]))
    script[t][row] = replace(script[t][row], kind=kind)
    other = [list(each) for each in script]
    for later in range(t + 1, len(script)):
        other[later][row] = data.draw(moments())
    computed = []
    for each, last in ((script, 1.0), (other, data.draw(st.sampled_from([7.0, np.nan])))):
        buffer = rollout(each)
        last_value = torch.ones(rows)
        last_value[row] = last
        buffer.compute_returns_and_advantages(last_value, 0.9, 0.8)
        computed.append((buffer.advantages, buffer.returns, buffer.learned))
    for one, two in zip(*computed, strict=True):
        assert torch.equal(one[: t + 1, row], two[: t + 1, row])
        others = torch.arange(rows) != row
        assert torch.equal(one[:, others], two[:, others])


@LAW
@given(script=scripts(), last=last_values, seed=st.integers(0, 99))
def test_what_a_waiting_row_was_expected_to_do_is_of_no_meaning(
    script: Script, last: list[float | None], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    other = [
        [each if each.valid else replace(each, value=float(rng.normal())) for each in row] for row in script
    ]
    batches = []
    for each in (script, other):
        buffer = rollout(each)
        buffer.compute_returns_and_advantages(as_last(last, len(script[0])), 0.9, 0.8)
        batches.append(buffer.flat())
    assert torch.equal(batches[0].advantages, batches[1].advantages)


# --------------------------------------------------------------------------------------------------------- replay


def mask_of(moment: float) -> list[bool]:
    return [*((int(moment) >> bit) & 1 == 1 for bit in range(6)), True]


def seen(script: Script, step: int, *, final: bool = False) -> dict[str, np.ndarray]:
    """Return what the rows see before a step: numbers of their own, and masks that belong to them."""
    rows = len(script[0])
    numbers = 1 + 2 * (step * rows + np.arange(rows)) + final
    return {"": numbers.astype(np.float32)[:, None], MASK_KEY: np.array([mask_of(each) for each in numbers])}


def replay(script: Script, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(
        capacity=10 * len(script) * len(script[0]),
        num_envs=len(script[0]),
        obs_shape={"": (1,), MASK_KEY: (7,)},
        obs_dtype={MASK_KEY: np.bool_},
        action_shape=(),
        action_dtype=np.int64,
        **{"turns": True} | options,
    )


def play(recorder: Any, script: Script, start: int, stop: int) -> None:
    """Record some steps of a script in a buffer; arrays are overwritten as environments do it."""
    rows = len(script[0])
    for step in range(start, stop):
        obs = seen(script, step)
        actions = np.arange(rows) + step * rows
        recorder.record_action(obs, actions)
        for array in (*obs.values(), actions):
            array[...] = 0
        recorder.record_outcome(step_of(script[step], seen(script, step + 1), seen(script, step, final=True)))


def expected_transitions(script: Script, n: int, gamma: float) -> dict[int, tuple[float, ...]]:
    """Return (obs, reward, discount, next_obs) of each finished transition by its action."""
    rows, found = len(script[0]), {}

    def number(step: int, row: int) -> int:
        return 1 + 2 * (step * rows + row)

    for row in range(rows):
        story = column(script, row)
        for episode in episodes_of(story):
            actions = episode.actions
            for place, action in enumerate(actions):
                window = actions[place : place + n]
                reward = sum(gamma**k * each.paid for k, each in enumerate(window))
                if place + n < len(actions):
                    discount, following = gamma**n, number(actions[place + n].step, row)
                elif episode.end is None:
                    continue
                else:
                    kind = story[episode.end].kind
                    discount = gamma ** len(window) if kind == IS_TRUNCATED else 0.0
                    # a cut has no final observation: the next one is an ordinary one
                    final = kind != 3
                    following = number(episode.end, row) + 1 if final else number(episode.end + 1, row)
                found[action.step * rows + row] = (number(action.step, row), reward, discount, following)
    return found


@LAW
@given(script=scripts(max_steps=25), n=st.integers(1, 4), gamma=fractions)
def test_transitions_lead_from_one_own_action_to_the_next(script: Script, n: int, gamma: float) -> None:
    buffer = replay(script, n_step=n, gamma=gamma)
    play(buffer, script, 0, len(script))
    rows = buffer.rows[: len(buffer)]
    expected = expected_transitions(script, n, gamma)
    assert sorted(rows["actions"].tolist()) == sorted(expected)
    for row in rows:
        obs, reward, discount, following = expected[int(row["actions"])]
        assert (row["obs"].item(), row["next_obs"].item()) == (obs, following)
        assert row["rewards"] == pytest.approx(reward, abs=1e-5)
        assert row["discounts"] == pytest.approx(discount, rel=1e-6)
        assert row[f"obs/{MASK_KEY}"].tolist() == mask_of(obs)
        assert row[f"next_obs/{MASK_KEY}"].tolist() == mask_of(following)
    for row in range(len(script[0])):  # within a row they are finished in order
        own = [action for action in rows["actions"].tolist() if action % len(script[0]) == row]
        assert own == sorted(own)


@LAW
@given(script=scripts(max_steps=25, always_valid=True), n=st.integers(1, 3))
def test_without_waiting_the_transitions_are_the_usual_ones(script: Script, n: int) -> None:
    by_action = []
    for turns in (False, True):
        buffer = replay(script, n_step=n, gamma=0.9, turns=turns)
        play(buffer, script, 0, len(script))
        by_action.append({int(row["actions"]): repr(row) for row in buffer.rows[: len(buffer)]})
    # what follows the last n actions of a row is not known before it acts again
    assert by_action[1].items() <= by_action[0].items()
    last = (len(script) - 1) * len(script[0])
    assert all(
        action >= last - (n - 1) * len(script[0]) for action in by_action[0].keys() - by_action[1].keys()
    )


def content(buffer: ReplayBuffer) -> dict[str, bytes]:
    """Return every column of the finished and the open transitions."""
    window = buffer.state_dict()["window"]
    parts = {**window["columns"], "time": window["time"]}
    rows = buffer.read_rows(0, len(buffer))
    return {f"open {name}": part.numpy().tobytes() for name, part in parts.items()} | {
        name: part.numpy().tobytes() for name, part in rows.items()
    }


@LAW
@given(script=scripts(max_steps=25), n=st.integers(1, 4), data=st.data())
def test_open_transitions_are_saved_restored_and_forgotten(
    script: Script, n: int, data: st.DataObject
) -> None:
    steps, rows = len(script), len(script[0])
    middle = data.draw(st.integers(0, steps))
    lost = data.draw(st.lists(st.integers(0, rows - 1), unique=True))
    one, other = (replay(script, n_step=n, gamma=0.5) for _ in range(2))
    play(one, script, 0, middle)
    if one.total_rows:
        other.restore_rows(0, one.read_rows(0, one.total_rows), one.total_rows)
    other.load_state_dict(one.state_dict())
    if middle < steps:  # nothing of it is shared, and what is not complete is not saved
        one.record_action(seen(script, 0), np.zeros(rows, np.int64))
    for buffer in (one, other):
        buffer.forget(lost)
        play(buffer, script, middle, steps)
    assert content(one) == content(other)
    # as if the lost rows had begun another episode
    found = sorted(one.rows[: len(one)]["actions"].tolist())
    expected = []
    for row in range(rows):
        story = column(script, row)
        parts = [story[:middle], story[middle:]] if row in lost else [story]
        for start, part in zip((0, middle), parts, strict=False):
            alone = [[moment] for moment in part]
            if alone:
                expected += [(start + step) * rows + row for step in expected_transitions(alone, n, 0.5)]
    assert found == sorted(expected)


# ---------------------------------------------------------------------------------------------------- reward scale


def complete_returns(script: Script, gamma: float) -> list[float]:
    """Return the discounted return after each own action that was followed by another one, or by an end."""
    found = []
    for row in range(len(script[0])):
        for episode in episodes_of([replace(m, kind=m.kind % 3) for m in column(script, row)]):
            running = 0.0
            for place, action in enumerate(episode.actions):
                running = gamma * running + action.paid
                if place + 1 < len(episode.actions) or episode.end is not None:
                    found.append(running)
    return found


@LAW
@given(script=scripts(max_steps=24), gamma=st.sampled_from([0.0, 0.5, 0.9]), parts=st.integers(1, 4))
def test_rewards_are_scaled_by_the_returns_of_own_actions(script: Script, gamma: float, parts: int) -> None:
    script = script * parts  # as many rollouts
    rows, steps = len(script[0]), len(script) // parts
    by_rollout, by_step = RewardNormalizer(gamma), RewardNormalizer(gamma)
    buffer = rollout(script[:steps])
    buffer.reset()
    rollouts = RolloutSource(buffer, gamma=gamma, gae_lambda=0.5, reward_scaler=by_rollout)
    ring = ReplayBuffer(
        capacity=500, num_envs=rows, obs_shape=(1,), action_shape=(), action_dtype=np.int64, turns=True
    )
    replays = ReplaySource(
        ring,
        batch_size=1,
        train_freq=1,
        gradient_steps=1,
        learning_starts=0,
        rng=np.random.default_rng(0),
        reward_scaler=by_step,
    )
    for part in range(parts):
        for source in (rollouts, replays):
            record(source, script[part * steps : (part + 1) * steps])
            source.end_collect(act_arrays(rows))
        list(rollouts.batches(Progress()))
    expected = complete_returns(script, gamma)
    for scaler in (by_rollout, by_step):
        moments = scaler.moments
        assert int(moments.count) == len(expected)
        if expected:
            assert float(moments.mean) == pytest.approx(np.mean(expected), abs=1e-9)
            assert float(moments.var) == pytest.approx(np.var(expected), abs=1e-9)


@LAW
@given(script=scripts(), last=last_values)
def test_scaled_rewards_of_own_actions_replace_all_others(script: Script, last: list[float | None]) -> None:
    """What an own action was paid is clipped as one number, not in parts."""
    buffer = rollout(script)
    buffer.compute_returns_and_advantages(
        as_last(last, len(script[0])), 0.9, 0.8, rewards=buffer.own_rewards().clamp(-1, 1)
    )
    folded = [[replace(each, reward=0.0) for each in row] for row in script]
    for row, episode in itertools.chain.from_iterable(
        ((row, episode) for episode in episodes_of(column(script, row))) for row in range(len(script[0]))
    ):
        for action in episode.actions:
            paid = max(-1.0, min(1.0, action.paid))
            folded[action.step][row] = replace(folded[action.step][row], reward=paid)
    expected = expected_advantages(folded, last, 0.9, 0.8)
    np.testing.assert_allclose(buffer.flat().advantages, list(expected.values()), rtol=1e-4, atol=1e-5)
