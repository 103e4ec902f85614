"""A console whose screens, lives, rewards and end are written down, so that tests of wrappers need no emulator."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NOOP, FIRE, LEFT = 0, 1, 2


class FakeALE:
    """Counts frames since the reset; frame k shows k everywhere, or what `screens` says of it.

    `memory` is what a reset forgets to clear and a restored state brings back.
    """

    def __init__(self, game: "FakeGame") -> None:
        self.game, self.settings = game, {"repeat_action_probability": game.stickiness}
        self.loaded_with, self.loads = game.stickiness, 1
        self.frame, self.memory = 0, 0

    def getFloat(self, name: str) -> float:  # noqa: N802
        return self.settings[name]

    def setFloat(self, name: str, value: float) -> None:  # noqa: N802
        self.settings[name] = value

    def getScreenDims(self) -> tuple[int, int]:  # noqa: N802
        return 6, 4

    def getScreenGrayscale(self, out: Any) -> None:  # noqa: N802
        out[...] = self.brightness()

    def getScreenRGB(self, out: Any) -> None:  # noqa: N802
        out[...] = self.brightness() + np.array([0, 1, 2])

    def brightness(self) -> int:
        return self.game.screens.get(self.frame, self.frame) + self.memory

    def lives(self) -> int:
        return [n for frame, n in self.game.lives_from.items() if frame <= self.frame][-1]

    def getEpisodeFrameNumber(self) -> int:  # noqa: N802
        return self.frame

    def cloneSystemState(self) -> tuple[int, int]:  # noqa: N802
        return self.frame, self.memory

    def restoreSystemState(self, state: tuple[int, int]) -> None:  # noqa: N802
        self.frame, self.memory = state


class FakeGame(gymnasium.Env[Any, Any]):
    """The part of ale-py's AtariEnv that wrappers touch; actions played are in `played`, a list per reset."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(
        self,
        *,
        screens: dict[int, int] | None = None,
        lives_from: dict[int, int] | None = None,
        rewards: dict[int, float] | None = None,
        ends_at: int = 10_000,
        truncates_at: int = 10_000,
        stickiness: float = 0.0,
        leaks: bool = False,
        frameskip: Any = 1,
        meanings: tuple[str, ...] = ("NOOP", "FIRE", "LEFT"),
        render_mode: str | None = None,
    ) -> None:
        self.screens, self.lives_from, self.rewards = screens or {}, lives_from or {0: 3}, rewards or {}
        self.ends_at, self.truncates_at, self.stickiness, self.leaks = (
            ends_at,
            truncates_at,
            stickiness,
            leaks,
        )
        self.meanings, self._frameskip, self.render_mode = meanings, frameskip, render_mode
        self.observation_space = spaces.Box(0, 255, (128,), np.uint8)
        self.action_space = spaces.Discrete(len(meanings))
        self.ale = FakeALE(self)
        self.played: list[list[int]] = []
        self.reset_seeds: list[int | None] = []

    def get_action_meanings(self) -> list[str]:
        return list(self.meanings)

    def load_game(self) -> None:
        self.ale.loads += 1
        self.ale.loaded_with = self.ale.settings["repeat_action_probability"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.reset_seeds.append(seed)
        if self.leaks:
            self.ale.memory += len(self.played)
        self.ale.frame = 0
        self.played.append([])
        return self._ram(), self._counters()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.played[-1].append(int(action))
        self.ale.frame += 1
        frame = self.ale.frame
        ends = frame >= self.ends_at, frame >= self.truncates_at
        return self._ram(), self.rewards.get(frame, 0.0), *ends, self._counters() | {"own": frame}

    def render(self) -> Any:
        return np.full((6, 4, 3), self.ale.frame, np.uint8)

    def _ram(self) -> Any:
        return np.zeros(128, np.uint8)

    def _counters(self) -> dict[str, int]:
        return {
            "lives": self.ale.lives(),
            "episode_frame_number": self.ale.frame,
            "frame_number": self.ale.frame,
        }


def fake_opencv(*_: str) -> Any:
    """What wrappers use of OpenCV, for screens of one colour."""

    def resize(image: Any, size: tuple[int, int], *, interpolation: int) -> Any:
        assert interpolation == 3
        return np.broadcast_to(image[0, 0], (size[1], size[0], *image.shape[2:])).copy()

    return SimpleNamespace(INTER_AREA=3, resize=resize)
