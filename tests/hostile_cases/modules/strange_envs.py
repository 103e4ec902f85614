"""Environments that go wrong, one way each; with `STRANGE_MENDED` in the surroundings all of them are well again.

Steps go wrong after forty of an environment's life, when a run has checkpoints to lose.
"""

import ctypes
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

MENDED = "STRANGE_MENDED" in os.environ
LIFE = 40


class Slow(CartPoleEnv):
    """CartPole, as slowly as `STRANGE_SECONDS` says."""

    def step(self, action: Any) -> Any:
        """Wait, then step."""
        time.sleep(float(os.environ.get("STRANGE_SECONDS", "0")))
        return super().step(action)


class Plain(gymnasium.Env[Any, Any]):
    """Ten steps of nothing; subclasses change one thing each."""

    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self) -> None:
        self.life = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        """Step, and go wrong when it is time."""
        self.count += 1
        self.life += 1
        result = self.observe(), 1.0, self.count >= 10, False, {}
        return result if MENDED or self.life <= LIFE else self.spoiled(*result)

    def observe(self) -> Any:
        """Return three numbers."""
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def spoiled(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        """Return what a step returns, changed."""
        return obs, reward, terminated, truncated, info


class Unprintable(Exception):
    """An exception that cannot be told."""

    def __str__(self) -> str:
        raise ValueError("no text")


class TwoParts(Exception):
    """An exception that cannot be made from one text, as a worker would."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what, where)


class Base(BaseException):
    """Not caught by `except Exception`."""


def _raise(error: BaseException) -> Any:
    raise error


def _forever(depth: int = 0) -> Any:
    return _forever(depth + 1)


SPOILED: dict[str, Any] = {
    "NarrowObservation": lambda s, o, r, e, t, i: (o[:1], r, e, t, i),
    "TextObservation": lambda s, o, r, e, t, i: ("left", r, e, t, i),
    "NoObservation": lambda s, o, r, e, t, i: (None, r, e, t, i),
    "ComplexObservation": lambda s, o, r, e, t, i: (o + 1j, r, e, t, i),
    "NanObservation": lambda s, o, r, e, t, i: (o * np.nan, r, e, t, i),
    "FourTuple": lambda s, o, r, e, t, i: (o, r, e, i),
    "ReturnsNothing": lambda s, o, r, e, t, i: None,
    "VectorReward": lambda s, o, r, e, t, i: (o, np.ones(2), e, t, i),
    "TextReward": lambda s, o, r, e, t, i: (o, "much", e, t, i),
    "NoReward": lambda s, o, r, e, t, i: (o, None, e, t, i),
    "NanReward": lambda s, o, r, e, t, i: (o, float("nan"), e, t, i),
    "HugeReward": lambda s, o, r, e, t, i: (o, 10**400, e, t, i),
    "TextEnd": lambda s, o, r, e, t, i: (o, r, "yes", t, i),
    "ListInfo": lambda s, o, r, e, t, i: (o, r, e, t, ["a"]),
    "Exits": lambda s, *_: sys.exit(0),
    "Interrupts": lambda s, *_: _raise(KeyboardInterrupt()),
    "Recurses": lambda s, *_: _forever(),
    "OutOfMemory": lambda s, *_: _raise(MemoryError()),
    "Unprintable": lambda s, *_: _raise(Unprintable()),
    "TwoParts": lambda s, *_: _raise(TwoParts("left", "right")),
    "BaseError": lambda s, *_: _raise(Base("not an Exception")),
    "StopIteration": lambda s, *_: _raise(StopIteration("no more")),
    "Group": lambda s, *_: _raise(ExceptionGroup("many", [ValueError("one"), KeyError("two")])),
    "Escapes": lambda s, *_: _raise(ValueError("\x1b[2J\n\x07owned")),
    "Dies": lambda s, *_: os._exit(9),
    "Segfaults": lambda s, *_: ctypes.string_at(0),
    "Hangs": lambda s, *_: time.sleep(10**6),
}


def _spoiling(spoiled: Any) -> Any:
    return lambda self, *result: spoiled(self, *result)


for _name, _spoiled in SPOILED.items():
    _made = type(_name, (Plain,), {"spoiled": _spoiling(_spoiled), "__module__": __name__})
    gymnasium.register(f"strange/{_name}-v0", entry_point=_made, disable_env_checker=True)


def _of_space(**space: Any) -> Any:
    return type("Spaced", (Plain,), space)


SPACED: dict[str, Any] = {
    "EmptyBox": {"observation_space": spaces.Box(-1, 1, (0,), np.float32)},
    "TextSpace": {"observation_space": spaces.Text(5)},
    "TupleAction": {"action_space": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])},
    "InfiniteAction": {"action_space": spaces.Box(-np.inf, np.inf, (1,), np.float32)},
    "GraphSpace": {"observation_space": spaces.Graph(spaces.Box(-1, 1, (2,)), None)},
    "NoSpaces": {"observation_space": None},
    "NotASpace": {"action_space": 4},
    "ManyActions": {"action_space": spaces.Discrete(2**40)},
}
for _name, _space in SPACED.items():
    gymnasium.register(f"strange/{_name}-v0", entry_point=_of_space(**_space), disable_env_checker=True)


class RaisesWhenBuilt(Plain):
    """Cannot be built."""

    def __init__(self) -> None:
        raise OSError(2, "No such file or directory", "rom.bin")


class RaisesInReset(Plain):
    """Cannot be reset."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Fail."""
        raise ValueError("no level to load")


class ResetWithoutInfo(Plain):
    """Returns what environments returned before there was `info`."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin."""
        return super().reset(seed=seed)[0]


class ResetWithoutSeed(Plain):
    """Knows no seed."""

    def reset(self) -> Any:  # type: ignore[override]
        """Begin."""
        return super().reset()


class RaisesInClose(Plain):
    """Fails when all is over."""

    def close(self) -> None:
        """Fail."""
        raise OSError("the window is gone")


class NeedsPackage(Plain):
    """Needs what is not installed."""

    def __init__(self) -> None:
        import no_such_simulator  # noqa: F401


class Agents:
    """As PettingZoo has it."""

    possible_agents = ("left", "right")

    def reset(self, seed: Any = None) -> None:
        """Begin."""

    def step(self, action: Any) -> None:
        """Step."""


for _kind in (
    Slow,
    RaisesWhenBuilt,
    RaisesInReset,
    ResetWithoutInfo,
    ResetWithoutSeed,
    RaisesInClose,
    NeedsPackage,
):
    gymnasium.register(f"strange/{_kind.__name__}-v0", entry_point=_kind, disable_env_checker=True)

one = Plain()
"""An environment where a function that builds one is asked for."""


def several() -> Any:
    """Build several agents."""
    return Agents()


def vector() -> Any:
    """Build a vector of environments."""
    return gymnasium.make_vec("CartPole-v1", 2)


def nothing() -> None:
    """Build nothing, as a function does that forgets to return."""


def needs_arguments(level: int) -> Any:
    """Build one of a level."""
    return Plain()
