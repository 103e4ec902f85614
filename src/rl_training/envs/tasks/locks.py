"""A test environment for action masks: every step allows some choices, and any other choice raises an error.

`rl_training.envs.tasks:rl_training/Locks-v0`; the best return is 1, and random allowed choices reach less than 0.5.
"""

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.core.types import Array, Info

LENGTH = 8


class Locks(gymnasium.Env[Any, Any]):
    """One lock per component of an action, each with a hint of 1 or -1: the highest or lowest allowed choice opens it.

    The observation is the hints [C]; after the first `hint_steps` steps it is 0. `choices` is the number of choices
    of each lock: one number gives a Discrete action space, several a MultiDiscrete one; `switches` gives a
    MultiBinary one. `tell` selects how masks are provided: in `info`, by the method `action_masks`, or as an `entry`
    of the observation. Rendering shows the allowed choices as bright columns.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        choices: Sequence[int] = (6,),
        switches: int = 0,
        tell: Literal["info", "method", "entry"] = "info",
        hint_steps: int = LENGTH,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.counts = [2] * switches if switches else [int(count) for count in choices]
        self.tell, self.hint_steps = tell, hint_steps
        if switches:
            self.action_space: spaces.Space[Any] = spaces.MultiBinary(switches)
        else:
            one = len(self.counts) == 1
            self.action_space = spaces.Discrete(self.counts[0]) if one else spaces.MultiDiscrete(self.counts)
        hints = spaces.Box(-1.0, 1.0, (len(self.counts),), np.float32)
        mask = spaces.MultiBinary(sum(self.counts))
        self.observation_space: spaces.Space[Any] = (
            spaces.Dict({"hints": hints, "action_mask": mask}) if tell == "entry" else hints
        )
        if tell == "method":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.hints = self.np_random.choice([-1.0, 1.0], len(self.counts)).astype(np.float32)
        self.step_count = 0
        return self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.asarray(action).reshape(-1)
        for lock, (choice, allowed) in enumerate(zip(chosen, self.allowed, strict=True)):
            if not allowed[choice]:
                raise ValueError(f"choice {choice} of lock {lock} is not allowed")
        wanted = [
            np.flatnonzero(allowed)[-1 if hint > 0 else 0]
            for hint, allowed in zip(self.hints, self.allowed, strict=True)
        ]
        reward = float(np.mean(chosen == wanted)) / LENGTH
        self.step_count += 1
        obs, info = self._told()
        return obs, reward, self.step_count >= LENGTH, False, info

    def render(self) -> Array:
        """Return an image [64, 16 * M, 3] of the allowed choices."""
        columns = np.repeat(np.where(self._mask(), 220, 40), 16).astype(np.uint8)
        return np.broadcast_to(columns[None, :, None], (64, len(columns), 3)).copy()

    def _told(self) -> tuple[Any, dict[str, Any]]:
        self.allowed = [self._some(count) for count in self.counts]
        shown = self.hints * np.float32(self.step_count < self.hint_steps)
        mask = self._mask()
        if self.tell == "entry":
            return {"hints": shown, "action_mask": mask.astype(np.int8)}, {}
        return shown, ({"action_mask": mask} if self.tell == "info" else {})

    def _mask(self) -> Array:
        return np.concatenate(self.allowed)

    def _some(self, count: int) -> Array:
        """Return which choices of a lock are allowed: at least two if there are more than two."""
        allowed = self.np_random.random(count) < 0.5
        allowed[self.np_random.choice(count, 2 if count > 2 else 1, replace=False)] = True
        return allowed


gymnasium.register("rl_training/Locks-v0", entry_point=f"{__name__}:Locks")
