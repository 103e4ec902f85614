"""Locks as a vector environment with an implementation of its own, in either autoreset mode and way to tell masks."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.envs.tasks.locks import Locks


class StrictVector(VectorEnv[Any, Any, Any]):
    """Hands everything on to environments that nobody else sees."""

    def __init__(self, num_envs: int, mode: str = "NEXT_STEP", tell: str = "info", **settings: Any) -> None:
        inner_tell = "info" if tell == "method" else tell
        autoreset = AutoresetMode[mode]
        self._inner = SyncVectorEnv(
            [lambda: Locks(tell=inner_tell, **settings) for _ in range(num_envs)], autoreset_mode=autoreset
        )
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": autoreset}
        for name in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
            setattr(self, name, getattr(self._inner, name))
        self._hides = tell == "method"
        if self._hides:
            self.action_masks = lambda: self._masks

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self._inner.reset(seed=seed, options=options)
        return obs, self._told(info)

    def step(self, actions: Any) -> Any:
        *result, info = self._inner.step(np.asarray(actions))
        return *result, self._told(info)

    def _told(self, info: dict[str, Any]) -> dict[str, Any]:
        """With a method, `info` says nothing of masks."""
        self._masks = info.get("action_mask")
        return {key: value for key, value in info.items() if not (self._hides and "action_mask" in key)}

    def close_extras(self, **kwargs: Any) -> None:
        self._inner.close()


gymnasium.register(
    "StrictVector-v0",
    entry_point=Locks,
    vector_entry_point=StrictVector,
)
