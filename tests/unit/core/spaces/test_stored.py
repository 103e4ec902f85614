"""Reserved entries beside observations: what goes in comes out, and no environment may use their names."""

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.spaces.masks import MASK_KEY, split_mask, with_mask
from rl_training.core.spaces.stored import (
    CRITIC_KEY,
    split_critic,
    stored_space,
    under_own_keys,
    with_critic,
)
from rl_training.core.types import EnvSpec

BOX = spaces.Box(-1, 1, (2,), np.float32)
NESTED = spaces.Dict({"a": BOX, "b": spaces.Dict({"c": spaces.Discrete(3)})})
ACTIONS = spaces.Discrete(2)


def spec(seen: spaces.Space, critic: spaces.Space | None, *, masked: bool = False) -> EnvSpec:
    return EnvSpec(seen, ACTIONS, 1, masked, critic_space=critic)


@pytest.mark.parametrize(
    ("seen", "critic", "masked", "keys"),
    [
        (BOX, None, False, [""]),
        (BOX, BOX, False, ["", "/critic"]),
        (BOX, NESTED, True, ["", "/critic/a", "/critic/b/c", "/action_mask"]),
        (NESTED, BOX, True, ["a", "b/c", "/critic", "/action_mask"]),
        (NESTED, spaces.Dict({"d": BOX}), False, ["a", "b/c", "/critic/d"]),
    ],
)
def test_the_entries_of_what_is_stored(seen, critic, masked, keys):
    assert list(observation_leaves(stored_space(spec(seen, critic, masked=masked)))) == keys


def test_nothing_is_stored_beside_an_ordinary_observation():
    assert stored_space(spec(NESTED, None)) is NESTED


@pytest.mark.parametrize("name", [CRITIC_KEY, f"{CRITIC_KEY}/state", MASK_KEY])
def test_reserved_names_are_refused(name):
    taken = spaces.Dict({"a": BOX, name: BOX})
    with pytest.raises(UserError, match=f"has an entry '{name}', which is a reserved name"):
        stored_space(spec(taken, BOX))


@pytest.mark.parametrize("seen", [1, {"a": 1, "b/c": 2}])
@pytest.mark.parametrize("entries", [3, {"d": 3}, {"d": 3, "e/f": 4}])
def test_what_goes_in_comes_out(seen, entries):
    assert split_critic(with_critic(seen, entries)) == (seen, entries)
    both, mask = split_mask(with_mask(with_critic(seen, entries), 5))
    assert (split_critic(both), mask) == ((seen, entries), 5)


@pytest.mark.parametrize("seen", [1, {"a": 1, "b/c": 2}, {"critic": 1, "criticism": 2}])
def test_what_has_no_such_entries_is_unchanged(seen):
    same, entries = split_critic(seen)
    assert same is seen
    assert entries is None
    assert under_own_keys(seen) is seen


def test_entries_have_the_names_of_the_environment():
    stored = with_mask(with_critic({"a": 1}, {"d": 3, "e/f": 4}), 5)
    assert under_own_keys(stored) == {"a": 1, "d": 3, "e/f": 4}
