"""Triggers count boundaries of timesteps, whatever the size of the steps between two looks."""

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.runtime.trainer import Trigger

LAW = settings(deadline=None, database=None, derandomize=True, max_examples=200)
strides = st.lists(st.integers(0, 100), min_size=1, max_size=60)


@LAW
@given(every=st.integers(1, 50), strides=strides)
def test_a_trigger_is_due_exactly_where_a_multiple_was_crossed(every: int, strides: list[int]) -> None:
    trigger, before = Trigger(every), 0
    for now in accumulate(strides):
        crossed = any(multiple % every == 0 for multiple in range(before + 1, now + 1))
        assert trigger.due(now) is crossed
        assert trigger.due(now) is False
        before = now


@LAW
@given(every=st.integers(1, 50), budget=st.integers(0, 400), data=st.data())
def test_small_steps_fire_once_per_multiple_whatever_their_size(
    every: int, budget: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, every))
    trigger = Trigger(every)
    end = budget - budget % stride
    assert sum(trigger.due(now) for now in range(0, end + 1, stride)) == end // every


@LAW
@given(every=st.integers(1, 50), strides=strides, cut=st.integers(0, 59))
def test_a_restored_trigger_fires_where_the_old_one_would_have(
    every: int, strides: list[int], cut: int
) -> None:
    moments = list(accumulate(strides))
    whole, first, second = Trigger(every), Trigger(every), Trigger(every)
    expected = [whole.due(now) for now in moments]
    fired = [first.due(now) for now in moments[:cut]]
    second.fired = first.fired
    assert fired + [second.due(now) for now in moments[cut:]] == expected
