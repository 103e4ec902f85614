"""Environments in this process are stepped straight into `out`: the same as Gymnasium's vector says, step by step."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.core.types import leaves
from rl_training.envs.info_keys import CUT
from rl_training.envs.stepper import VectorStepper

SAME = AutoresetMode.SAME_STEP
NAMES = (
    "reward",
    "terminated",
    "truncated",
    "ended",
    "valid",
    "cut",
    "success",
    "any_ended",
    "any_cut",
    "num_valid",
)


class Merged(SyncVectorEnv):
    """One that the stepper does not know, so that it takes what the vector itself returns."""


class Eventful(gymnasium.Env[Any, Any]):
    """Ends by its task, by the clock and by both, loses lives, says whether it succeeded; nested or plain."""

    action_space = spaces.Discrete(3, start=1)

    def __init__(self, number: int, *, nested: bool) -> None:
        self.nested, self.episode, self.time = nested, -1, 0
        self.rng = np.random.default_rng(number)
        box = spaces.Box(-9.0, 9.0, (2,), np.float32)
        self.observation_space: Any = spaces.Dict(a=box, b=spaces.Discrete(50)) if nested else box

    def _seen(self) -> Any:
        found = self.rng.normal(size=2).astype(np.float32)
        return {"a": found, "b": self.time} if self.nested else found

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self._seen(), {CUT: True}  # said of a reset, it means nothing

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        terminated, truncated = bool(self.rng.random() < 0.1), bool(self.rng.random() < 0.1)
        said: dict[str, Any] = {CUT: True} if self.rng.random() < 0.2 else {}
        if self.rng.random() < 0.5:
            said["is_success"] = bool(self.rng.random() < 0.5)
        return self._seen(), float(action) + self.rng.normal(), terminated, truncated, said


def stepper(kind: type[SyncVectorEnv], *, nested: bool, clip_reward: bool = False) -> VectorStepper:
    builders = [lambda number=number: Eventful(number, nested=nested) for number in range(3)]
    found = VectorStepper(kind(builders, autoreset_mode=SAME), clip_reward=clip_reward)
    found.reset()
    return found


def seen(stepper: VectorStepper) -> dict[str, Any]:
    out = stepper.out
    found: dict[str, Any] = {name: np.array(getattr(out, name)) for name in NAMES}
    found |= {f"obs/{key}": array.copy() for key, array in leaves(out.obs)}
    found |= {f"final/{key}": array[out.ended].copy() for key, array in leaves(out.final_obs)}
    found["success"] = np.where(out.ended, out.success, np.nan)
    return found | {"signal": out.signal.copy()}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("clip_reward", [False, True])
def test_every_step_is_what_the_vector_would_have_said(nested: bool, clip_reward: bool) -> None:
    mine, theirs = (stepper(kind, nested=nested, clip_reward=clip_reward) for kind in (SyncVectorEnv, Merged))
    assert mine._local is not None
    assert theirs._local is None
    rng, happened = np.random.default_rng(0), dict.fromkeys(("terminated", "truncated", "cut"), 0)
    for number in range(400):
        actions = rng.integers(0, 3, 3)
        for each in (mine, theirs):
            each.step(actions)
            if number % 50 == 49:
                each.restart(np.array([False, True, False]))
        for name, array in seen(mine).items():
            np.testing.assert_array_equal(array, seen(theirs)[name], err_msg=f"{name} in step {number}")
        for name in happened:
            happened[name] += int(getattr(mine.out, name).sum())
    assert all(count > 20 for count in happened.values()), happened


class Changeable(gymnasium.Env[Any, Any]):
    """What it says in `info` changes its shape, which Gymnasium's vector cannot put into one array."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, size: int) -> None:
        self.size = size

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, True, False, {"path": np.zeros(self.size), "is_success": True}


def test_what_nobody_reads_may_be_of_any_shape() -> None:
    builders = [lambda size=size: Changeable(size) for size in (1, 2)]
    found = VectorStepper(SyncVectorEnv(builders, autoreset_mode=SAME))
    found.reset()
    found.step(np.zeros(2, np.int64))
    assert found.out.success.tolist() == [1.0, 1.0]
