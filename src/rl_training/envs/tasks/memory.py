"""Tasks that need memory: a corridor with a hint at the start, and known tasks without velocities.

`rl_training.envs.tasks:rl_training/NoVelocity-v0` with `game: CartPole-v1` in env_kwargs shows only positions.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.core.errors import UserError
from rl_training.core.types import Array, Info

VELOCITIES: dict[str, tuple[int, ...]] = {
    "CartPole-v1": (1, 3),
    "Pendulum-v1": (2,),
    "MountainCar-v0": (1,),
    "MountainCarContinuous-v0": (1,),
    "LunarLander-v3": (2, 3, 5),
    "LunarLanderContinuous-v3": (2, 3, 5),
}
"""Indices of the velocities in an observation."""
HINT_STEPS = 2
REACH = 5


class MaskVelocity(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Replaces velocities with 0: those at `indices`, by default the known ones of the environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], indices: Sequence[int] | None = None) -> None:
        super().__init__(env)
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        if indices is None and name not in VELOCITIES:
            raise UserError(
                f"the velocities of '{name}' are unknown (known: {', '.join(VELOCITIES)}); pass their indices"
            )
        shape = env.observation_space.shape or ()
        chosen = list(VELOCITIES[name] if indices is None else indices)
        if len(shape) != 1 or not all(0 <= index < shape[0] for index in chosen):
            raise UserError(
                f"environment '{name}' has observations of shape {shape}, which do not have the indices {chosen}"
            )
        self._shown = np.ones(shape, np.bool_)
        self._shown[chosen] = False

    def observation(self, observation: Any) -> Any:
        return np.where(self._shown, observation, 0).astype(observation.dtype)


class MemoryCorridor(gymnasium.Env[Array, Any]):
    """A corridor with two doors; a hint in the first two steps, in which nobody moves, shows the rewarded one.

    The observation is [hint, position]: the hint is -1 or 1 for the left or right door, later 0; the position is
    between the doors at -1 and 1. Actions: left, right. The reward is 1 for the correct door and -1 for the other;
    episodes are truncated after 40 steps. A policy without memory reaches 0.
    """

    observation_space: spaces.Space[Array] = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.door = int(self.np_random.choice([-1, 1]))
        self.place, self.time = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
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
    """Return a Gymnasium task without velocities."""
    if game not in VELOCITIES:  # also, an untrusted run must not import a module this way
        raise UserError(f"game is '{game}'; use one of {', '.join(VELOCITIES)}")
    return MaskVelocity(gymnasium.make(game, **kwargs))


gymnasium.register("rl_training/NoVelocity-v0", entry_point=f"{__name__}:no_velocity")
gymnasium.register(
    "rl_training/MemoryCorridor-v0", entry_point=f"{__name__}:MemoryCorridor", max_episode_steps=40
)
