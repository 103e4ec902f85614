"""State taken apart and put together, and the numbers in it that must be finite."""

import pytest
import torch

from rl_training.core.errors import RunFault, UserError
from rl_training.experiment.state_tree import join_state, refuse_non_finite, split_state

NAN, INFINITE = torch.tensor([0.0, float("nan")]), torch.tensor(float("-inf"))


def test_apart_and_together_is_the_same_and_nothing_is_copied():
    weight = torch.arange(3.0)
    state = {"a": {"weight": weight, "count": 3, "inner": {"b": torch.ones(())}}, "empty": {}, "text": "x"}
    tensors, plain = split_state(state)
    assert set(tensors) == {"a/weight", "a/inner/b"}
    assert tensors["a/weight"] is weight
    assert plain == {"a": {"count": 3, "inner": {}}, "empty": {}, "text": "x"}
    again = join_state(tensors, plain)
    assert again["a"]["weight"] is weight
    assert split_state(again)[1] == plain


@pytest.mark.parametrize("group", ["model", "optimizer", "learner", "a group that nobody has heard of"])
@pytest.mark.parametrize("bad", [NAN, INFINITE])
def test_every_group_of_a_learner_must_be_finite(group, bad):
    refuse_non_finite({group: {"deep": {"weight": torch.ones(2)}}}, "not written")
    with pytest.raises(
        RunFault, match=f"not written: '{group}/deep/weight' holds a number that is not finite"
    ):
        refuse_non_finite({group: {"deep": {"weight": bad}}}, "not written")
    with pytest.raises(UserError):
        refuse_non_finite({group: {"weight": bad}}, "cannot be used", UserError)


def test_a_temperature_of_zero_and_what_was_only_seen_may_be_infinite():
    refuse_non_finite({"learner": {"log_alpha": INFINITE}}, "not written")
    refuse_non_finite(
        {group: {"x": NAN} for group in ("source", "trainer", "envs", "generators")}, "not written"
    )
    refuse_non_finite({"model": {"count": torch.tensor([2**40])}}, "not written")
