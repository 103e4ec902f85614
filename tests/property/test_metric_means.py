import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.runtime.metrics import MetricMeans

NUMBERS = st.floats(-1e6, 1e6, width=32)
UPDATES = st.lists(st.dictionaries(st.sampled_from("abc"), NUMBERS), max_size=30)


def tensors(update: dict[str, float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(number) for name, number in update.items()}


@given(UPDATES)
def test_each_name_has_the_mean_of_its_own_numbers(updates: list[dict[str, float]]) -> None:
    means = MetricMeans(name_in_log=str)
    for update in updates:
        means.add(tensors(update))
    said = {name: [update[name] for update in updates if name in update] for name in "abc"}
    found = means.drain()
    assert set(found) == {name for name, numbers in said.items() if numbers}
    for name, mean in found.items():
        assert math.isclose(mean, sum(said[name]) / len(said[name]), rel_tol=1e-9, abs_tol=1e-6)


@given(UPDATES, st.integers(0, 30))
def test_a_resume_at_any_update_gives_the_same_bits(updates: list[dict[str, float]], at: int) -> None:
    left_alone, resumed = MetricMeans(), MetricMeans()
    for number, update in enumerate(updates):
        if number == at:
            state, resumed = resumed.state_dict(), MetricMeans()
            resumed.load_state_dict(state)
        left_alone.add(tensors(update))
        resumed.add(tensors(update))
    assert list(resumed.drain().items()) == list(left_alone.drain().items())
