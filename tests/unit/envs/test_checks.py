"""What environments return that they should not, in words that name it; and what is let pass."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.core.errors import EnvironmentFault
from rl_training.envs.episodes import SeededEpisodes

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
FINE = np.zeros(3, np.float32)


class Saying(gymnasium.Env[Any, Any]):
    """Returns what it is told to, from the second step on."""

    action_space = spaces.Discrete(2)

    def __init__(self, result: Any = None, first: Any = (FINE, {}), space: Any = VECTOR) -> None:
        self.result, self.first, self.observation_space = result, first, space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.first

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count < 2:
            return self.first[0], 0.0, False, False, {}
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def stepped(env: Saying) -> Any:
    seeded = SeededEpisodes(env, seed=0, env_index=3)
    seeded.reset()
    seeded.step(0)
    return seeded.step(0)


class Rude(BaseException):
    """What nobody should raise."""


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ((np.zeros(1, np.float32), 1.0, False, False, {}), r"observation of shape \(1,\), .* has \(3,\)"),
        ((np.array(["a", "b", "c"]), 1.0, False, False, {}), "an array of type <U1 .* its space has dtype float32"),
        ((None, 1.0, False, False, {}), "an observation that is None"),
        (({"a": FINE}, 1.0, False, False, {}), "an observation that is a dict"),
        ((FINE, 1.0, False, {}), r"a tuple of 4 from step, but Gymnasium requires \(observation, reward, terminated"),
        (None, "returned None from step"),
        ((FINE, np.array([1.0, 2.0]), False, False, {}), r"a reward of shape \(2,\); .*LinearReward of mo-gymnasium"),
        ((FINE, np.array([1.0]), False, False, {}), r"a reward of shape \(1,\); it must be one number: select"),
        ((FINE, "one", False, False, {}), "a reward that is a str; it must be a number"),
        ((FINE, None, False, False, {}), "a reward that is None"),
        ((FINE, 1.0, None, False, {}), "'terminated' that is None; it must be true or false"),
        ((FINE, 1.0, False, 2, {}), "'truncated' that is a int"),
        ((FINE, 1.0, False, np.zeros(2, bool), {}), r"'truncated' that is an array of type bool and shape \(2,\)"),
        ((FINE, 1.0, False, False, None), "None as info"),
        (SystemExit(0), "raised SystemExit in step"),
        (Rude("boo"), "raised Rude in step"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_what_is_wrong_is_said_with_an_address(result: Any, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words) as fault:
        stepped(Saying(result))
    assert str(fault.value).startswith("environment 3 (Saying) ")
    assert "step 2 of its episode 0" in str(fault.value)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (FINE, r"returned an array of type float32 and shape \(3,\) from reset, but Gymnasium requires"),
        ((FINE, None), "returned a tuple of 2 from reset"),
        ((np.zeros(4, np.float32), {}), r"of shape \(4,\)"),
    ],
)
def test_what_reset_returns_is_looked_at_too(first: Any, words: str) -> None:
    with pytest.raises(
        EnvironmentFault, match=rf"environment 3 \(Saying\) .*{words}.*step 0 of its episode 0"
    ):
        SeededEpisodes(Saying(first=first), seed=0, env_index=3).reset()


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (spaces.Dict({"a": VECTOR, "b": VECTOR}), {"a": FINE}, r"a dict with entries \['a'\].*has \['a', 'b'\]"),
        (spaces.Dict({"a": VECTOR}), FINE, r"an array .*but its space has entries \['a'\]"),
        (spaces.Dict({"a": spaces.Dict({"b": VECTOR})}), {"a": {"b": np.zeros(2)}}, r"entry 'a/b' is of shape \(2,\)"),
        (spaces.Tuple((VECTOR, VECTOR)), (FINE,), "a tuple of 1, but its space is a tuple of 2"),
        (spaces.Tuple((VECTOR, VECTOR)), (FINE, np.zeros(1)), r"entry '1' is of shape \(1,\)"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.5, 1.0]), "of type float64, but its space has uint8"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 300]), "of type int64, but its space has uint8"),
        (spaces.Discrete(3), 1.5, "of type float64, but its space has int64"),
        (spaces.Discrete(3), np.array([1]), r"of shape \(1,\), but its space has \(\)"),
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_space_is_held_to_its_word(space: Any, obs: Any, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        SeededEpisodes(Saying(first=(obs, {}), space=space), seed=0, env_index=3).reset()


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (VECTOR, np.zeros(3, np.float64)),
        (VECTOR, np.zeros(3, np.int64)),
        (VECTOR, [0.0, 0.0, 0.0]),
        (VECTOR, (0, 0, 0)),
        (VECTOR, np.full(3, 7.0, np.float32)),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 255])),
        (spaces.Box(0, 1, (2,), bool), np.array([0, 1])),
        (spaces.Discrete(3), np.int32(2)),
        (spaces.Discrete(3), np.array(2)),
        (spaces.MultiBinary(2), np.array([True, False])),
        (spaces.MultiDiscrete([2, 2]), [1, 0]),
        (spaces.Tuple((VECTOR, spaces.Discrete(2))), (FINE, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("reward", [1, 1.0, np.float32(1), np.int64(1), True, np.array(1.0)], ids=repr)
@pytest.mark.parametrize("flag", [True, np.True_, 1, np.array(False)], ids=repr)
def test_what_can_be_understood_is_let_pass(space: Any, obs: Any, reward: Any, flag: Any) -> None:
    result = (obs, reward, flag, np.False_, {})
    assert stepped(Saying(result, first=(obs, {}), space=space))[1] is reward


def test_a_signal_passes() -> None:
    """Ctrl-C belongs to the run."""
    with pytest.raises(KeyboardInterrupt):
        stepped(Saying(KeyboardInterrupt()))
