"""Catch with image observations: a small game to test image encoders."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.core.types import Array, Info

ROWS, COLUMNS, PIXELS = 10, 5, 36
CELL_HEIGHT, CELL_WIDTH = PIXELS / ROWS, PIXELS / COLUMNS


class Catch(gymnasium.Env[Array, Any]):
    """A ball falls from a random column of a 10 x 5 board; the paddle must be below it at the end.

    An episode has nine steps. The reward is 1 for a catch and -1 for a miss. Observations are 36 x 36 grayscale
    images. Actions: left, stay, right; with `continuous`, one number in [-1, 1], the columns to move by. A policy
    that ignores the image catches one ball in five: -0.6. With `shown_steps`, only the first images show the ball, so
    the policy must remember it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space: spaces.Space[Array] = spaces.Box(0, 255, (PIXELS, PIXELS), np.uint8)

    def __init__(
        self, *, continuous: bool = False, shown_steps: int = ROWS, render_mode: str | None = None
    ) -> None:
        self.continuous, self.shown_steps, self.render_mode = continuous, shown_steps, render_mode
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(3)
        self.ball, self.row, self.paddle = 0, 0, 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.ball, self.row, self.paddle = int(self.np_random.integers(COLUMNS)), 0, COLUMNS // 2
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        move = float(np.clip(np.asarray(action).item(), -1.0, 1.0)) if self.continuous else int(action) - 1
        self.paddle = min(max(self.paddle + move, 0), COLUMNS - 1)
        self.row += 1
        over = self.row == ROWS - 1
        caught = abs(self.paddle - self.ball) <= 0.5
        return self._seen(), (1.0 if caught else -1.0) if over else 0.0, over, False, {}

    def render(self) -> Any:
        return np.repeat(self._picture()[:, :, None], 3, axis=2)

    def _seen(self) -> Array:
        return self._picture(ball=self.row < self.shown_steps)

    def _picture(self, *, ball: bool = True) -> Array:
        picture = np.zeros((PIXELS, PIXELS), np.uint8)
        things = [(ROWS - 1, self.paddle), *([(self.row, self.ball)] if ball else [])]
        for row, column in things:
            top, left = round(row * CELL_HEIGHT), round(column * CELL_WIDTH)
            picture[top : round((row + 1) * CELL_HEIGHT), left : round((column + 1) * CELL_WIDTH)] = 255
        return picture


gymnasium.register("rl_training/Catch-v0", entry_point=f"{__name__}:Catch")
