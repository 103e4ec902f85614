"""Functions that build small games, for commands and settings that name them."""

from typing import Any

import numpy as np
from gymnasium import spaces

from support.games import JointGame, Plot, Role, TurnGame

BOTH = Plot((Role(masks="observation"), Role(masks="observation")), length=6, order=(0, 1))
CONTINUOUS = Plot((Role(actions=spaces.Box(-1, 1, (2,), np.float32)),) * 2, length=6)


def turns(render_mode: str | None = None) -> TurnGame:
    return TurnGame(BOTH, render_mode)


def at_once(render_mode: str | None = None) -> JointGame:
    return JointGame(BOTH, render_mode)


def continuous(**options: Any) -> JointGame:
    return JointGame(CONTINUOUS)


ONLY = TurnGame(BOTH)


def always_the_same() -> TurnGame:
    return ONLY


def nothing() -> None:
    return None
