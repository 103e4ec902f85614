"""The records between layers and tiny environments with known answers, shared by the unit tests."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor

from rl_training.core.types import ActArrays, Obs, ObsArray, StepArrays


def step_arrays(
    obs: ObsArray,
    reward: Any,
    *,
    terminated: Any = False,
    truncated: Any = False,
    valid: Any = True,
    cut: Any = False,
    final_obs: ObsArray | None = None,
) -> StepArrays:
    """What a stepper would say; scalars stand for all rows."""
    reward = np.asarray(reward, np.float64)
    rows = np.zeros(len(reward), np.bool_)
    terminated, truncated, valid = rows | terminated, rows | truncated, rows | valid
    ended = terminated | truncated
    return StepArrays(
        obs=obs,
        final_obs=obs if final_obs is None else final_obs,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        ended=ended,
        valid=valid,
        cut=rows | cut,
        any_cut=bool(np.any(cut)),
        any_ended=bool(ended.any()),
        num_valid=int(valid.sum()),
    )


def act_arrays(num_envs: int, action: Any = 0, *, dtype: Any = np.int64, **rows: Any) -> ActArrays:
    """What an explorer would say; scalars stand for all rows."""

    def row(name: str) -> Any:
        return np.zeros(num_envs, np.float32) + np.asarray(rows.get(name, 0.0), np.float32)

    action = np.asarray(action, dtype)
    return ActArrays(
        action=np.broadcast_to(action, (num_envs,)).copy() if action.ndim == 0 else action,
        logprob=row("logprob"),
        value=row("value"),
        final_value=row("final_value"),
        last_value=row("last_value"),
    )


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes [episode, step], counted from 0; the reward of step k is k; ends after `lengths[episode]` steps.

    With `reuse` every observation is the same array, overwritten. `poison` maps (episode, step) to a number
    that replaces the observed step, `poisoned_rewards` to one that replaces the reward.
    """

    def __init__(
        self,
        lengths: tuple[int, ...] = (3,),
        *,
        terminates: bool = True,
        truncates: bool = False,
        reuse: bool = False,
        poison: dict[tuple[int, int], float] | None = None,
        poisoned_rewards: dict[tuple[int, int], float] | None = None,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.lengths, self.terminates, self.truncates, self.reuse = lengths, terminates, truncates, reuse
        self.poison, self.poisoned_rewards = poison or {}, poisoned_rewards or {}
        self.episode, self.count, self.total_steps = -1, 0, 0
        self._memory = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.total_steps += 1
        over = self.count >= self.lengths[self.episode % len(self.lengths)]
        reward = self.poisoned_rewards.get((self.episode, self.count), float(self.count))
        return self._observe(), reward, over and self.terminates, over and self.truncates, {}

    def _observe(self) -> Any:
        seen = self.poison.get((self.episode, self.count), self.count)
        if self.reuse:
            self._memory[:] = self.episode, seen
            return self._memory
        return np.array([self.episode, seen], np.float32)


class DrawingEnv(gymnasium.Env[Any, Any]):
    """Observes random numbers drawn from the reset seed; episodes last from one to four steps, also drawn."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 5))
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self._draw(), 1.0, self.left == 0, False, {}

    def _draw(self) -> Any:
        return self.np_random.random(3, np.float32)


class SeenAndDone(NamedTuple):
    """The part of a batch that a policy reads."""

    obs: Obs
    actions: Tensor
    action_masks: Tensor | None = None
