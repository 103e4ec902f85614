"""Declared state: what is named once is saved, restored and checked."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.core.state import Counter, gather, join_state, not_finite, scatter, split_state


class Remembers:
    def __init__(self, number: int) -> None:
        self.number = number

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def owners(seed: int) -> dict[str, object]:
    torch.manual_seed(seed)
    return {
        "model": nn.Linear(2, 1),
        "learner/rng": np.random.default_rng(seed),
        "learner/count": Counter(seed),
        "learner/weight": nn.Parameter(torch.randn(3)),
        "other/deep/thing": Remembers(seed),
    }


def test_what_is_gathered_can_be_scattered_also_through_files() -> None:
    one, other = owners(1), owners(2)
    state = gather(one)  # type: ignore[arg-type]
    assert set(state) == {"model", "learner", "other"}
    tensors, plain = split_state(state)
    assert set(tensors) == {"model/weight", "model/bias", "learner/weight"}
    scatter(other, join_state(tensors, json.loads(json.dumps(plain))))  # type: ignore[arg-type]
    assert other["learner/count"] == Counter(1)
    assert other["learner/rng"].random() == one["learner/rng"].random()  # type: ignore[attr-defined]
    assert torch.equal(other["learner/weight"], one["learner/weight"])  # type: ignore[arg-type]
    assert torch.equal(other["model"].weight, one["model"].weight)  # type: ignore[attr-defined]
    assert other["other/deep/thing"].number == 1  # type: ignore[attr-defined]


def test_gathered_tensors_are_the_live_ones() -> None:
    mine = owners(1)
    state = gather(mine)  # type: ignore[arg-type]
    with torch.no_grad():
        mine["learner/weight"].fill_(7.0)  # type: ignore[attr-defined]
    assert state["learner"]["weight"].tolist() == [7.0] * 3


def test_a_missing_part_and_another_shape_are_errors() -> None:
    state = gather(owners(1))  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="count"):
        scatter(owners(2), state | {"learner": {"rng": state["learner"]["rng"]}})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shape \(1,\) instead of \(3,\)"):
        scatter({"weight": nn.Parameter(torch.zeros(3))}, {"weight": torch.zeros(1)})  # type: ignore[dict-item]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_learned_must_be_finite(bad: float) -> None:
    mine = owners(1)
    assert not_finite(mine, gather(mine)) is None  # type: ignore[arg-type]
    with torch.no_grad():
        mine["model"].bias.fill_(bad)  # type: ignore[attr-defined]
    assert not_finite(mine, gather(mine)) == "model/bias"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'model/bias' holds a number that is not finite"):
        scatter(owners(2), gather(mine))  # type: ignore[arg-type]


def test_a_tensor_that_is_not_learned_may_be_infinite() -> None:
    for tensor, culprit in (
        (torch.tensor(-torch.inf), None),
        (nn.Parameter(torch.tensor(-torch.inf)), "log_alpha"),
    ):
        assert not_finite({"log_alpha": tensor}, gather({"log_alpha": tensor})) == culprit


def test_the_check_reads_what_was_gathered_and_not_the_owners_again() -> None:
    mine = owners(1)
    state = gather(mine)  # type: ignore[arg-type]
    state["model"] = state["model"] | {"bias": torch.full((2,), torch.nan)}
    assert not_finite(mine, state) == "model/bias"  # type: ignore[arg-type]


def test_slashes_and_percent_signs_in_keys_survive() -> None:
    state = {"columns": {"obs/a%2Fb": torch.ones(1), "obs/a/b": torch.zeros(2), "plain": 3}}
    tensors, plain = split_state(state)
    assert set(tensors) == {"columns/obs%2Fa%252Fb", "columns/obs%2Fa%2Fb"}
    again = join_state(tensors, plain)
    assert set(again["columns"]) == set(state["columns"])
    assert torch.equal(again["columns"]["obs/a/b"], torch.zeros(2))
