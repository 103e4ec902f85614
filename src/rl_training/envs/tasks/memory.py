"""Tasks that must be remembered: a corridor with a hint at its beginning, and known tasks that hide their velocities.

`rl_training.envs.tasks:rl_training/NoVelocity-v0` with `game: CartPole-v1` in env_kwargs shows positions alone.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.core.errors import UserError
from rl_training.core.types import Array

VELOCITIES: dict[str, tuple[int, ...]] = {
    "CartPole-v1": (1, 3),
    "Pendulum-v1": (2,),
    "MountainCar-v0": (1,),
    "MountainCarContinuous-v0": (1,),
    "LunarLander-v3": (2, 3, 5),
    "LunarLanderContinuous-v3": (2, 3, 5),
}
"""Which numbers of an observation are velocities."""
HINT_STEPS = 2
REACH = 5


class MaskVelocity(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows 0 in the place of velocities: those at `indices`, by default what is known of the environment's id."""

    def __init__(self, env: gymnasium.Env[Any, Any], indices: Sequence[int] | None = None) -> None:
        super().__init__(env)
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        if indices is None and name not in VELOCITIES:
            raise UserError(
                f"which numbers of '{name}' are velocities is not known here (known: {', '.join(VELOCITIES)}); give "
                "their indices"
            )
        shape = env.observation_space.shape or ()
        chosen = list(VELOCITIES[name] if indices is None else indices)
        if len(shape) != 1 or not all(0 <= index < shape[0] for index in chosen):
            raise UserError(
                f"environment '{name}' has observations of shape {shape}, without numbers {chosen}"
            )
        self._shown = np.ones(shape, np.bool_)
        self._shown[chosen] = False

    def observation(self, observation: Any) -> Any:
        """Return what is left of an observation [D]."""
        return np.where(self._shown, observation, 0).astype(observation.dtype)


class MemoryCorridor(gymnasium.Env[Array, Any]):
    """A corridor with two doors; which one pays is told in the first two steps, while nobody can walk yet.

    Seen is [hint, place]: -1 or 1 for the left or right door as long as the hint lasts, then 0; the place is between
    the doors, -1 and 1. Actions: left, right. The right choice pays 1, the other -1; after 40 steps the clock ends it.
    Whoever does not remember is right half of the time: 0.
    """

    observation_space: spaces.Space[Array] = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Draw the door, and stand in the middle."""
        super().reset(seed=seed)
        self.door = int(self.np_random.choice([-1, 1]))
        self.place, self.time = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Walk, if the hint is over."""
        self.time += 1
        if self.time > HINT_STEPS:
            self.place += 1 if int(action) else -1
        over = abs(self.place) == REACH
        reward = float(np.sign(self.place) * self.door) if over else 0.0
        return self._seen(), reward, over, False, {}

    def _seen(self) -> Array:
        hint = self.door if self.time < HINT_STEPS else 0
        return np.array([hint, self.place / REACH], np.float32)


def no_velocity(game: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return a task of Gymnasium's that hides its velocities."""
    if game not in VELOCITIES:  # also: a run of somebody else must not import a module this way
        raise UserError(f"game is '{game}'; use one of {', '.join(VELOCITIES)}")
    return MaskVelocity(gymnasium.make(game, **kwargs))


gymnasium.register("rl_training/NoVelocity-v0", entry_point=f"{__name__}:no_velocity")
gymnasium.register(
    "rl_training/MemoryCorridor-v0", entry_point=f"{__name__}:MemoryCorridor", max_episode_steps=40
)
