"""Checks the results of a native vector environment."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.core.errors import EnvironmentFault
from rl_training.core.types import Array
from rl_training.envs.checks import ResultCheck, kind_of, wrong_length


class CheckedVectorEnv:
    """Resets and steps a native vector environment, and checks the results against its spaces.

    With same-step autoreset, `info["final_obs"]` is checked too.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, same_step: bool) -> None:
        self.env, self.same_step = env, same_step
        self.steps = 0
        self._batch = ResultCheck(batch_space(env.single_observation_space, env.num_envs))
        self._single = ResultCheck(env.single_observation_space)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        result = self._asked("reset", lambda: self.env.reset(**arguments))
        self._refuse("reset", self._batch.after_reset(result))
        obs, info = result
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        self.steps += 1
        result = self._asked("step", lambda: self.env.step(actions))
        self._refuse("step", wrong_length(result) or self._misfit(*result))
        obs, reward, terminated, truncated, info = result
        return obs, reward, terminated, truncated, info

    def _misfit(self, obs: Any, rewards: Any, terminated: Any, truncated: Any, info: Any) -> str | None:
        count = self.env.num_envs
        numbers = np.asarray(rewards)
        if numbers.shape != (count,):
            return f"returned rewards of shape {numbers.shape}, but Gymnasium requires shape ({count},)"
        if numbers.dtype.kind not in "biuf":
            return f"returned rewards of type {numbers.dtype}; they must be numbers"
        for name, said in (("terminated", terminated), ("truncated", truncated)):
            flags = np.asarray(said)
            if flags.shape != (count,) or (
                flags.dtype != np.bool_ and not (flags.dtype.kind in "iu" and np.isin(flags, (0, 1)).all())
            ):
                return (
                    f"returned '{name}' of type {flags.dtype} and shape {flags.shape}; it must be true or false for "
                    f"each of {count}"
                )
        if not isinstance(info, dict):
            return f"returned {kind_of(info)} as info, but Gymnasium requires a dict"
        problem = self._batch.observation(obs)
        if problem is None and self.same_step:
            ended = np.logical_or(terminated, truncated)
            problem = self._final_misfit(info, ended) if ended.any() else None
        return problem

    def _final_misfit(self, info: dict[str, Any], ended: Array) -> str | None:
        if "final_obs" not in info:
            return "ended an episode without info['final_obs'], which same-step autoreset requires"
        final = info["final_obs"]
        if isinstance(final, np.ndarray) and final.dtype == object:
            found = (self._single.observation(final[row]) for row in np.flatnonzero(ended))
            problem = next((problem for problem in found if problem is not None), None)
        else:
            problem = self._batch.observation(final)
        return None if problem is None else problem.replace("an observation", "a final observation", 1)

    def _asked(self, method: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (KeyboardInterrupt, EnvironmentFault):
            raise
        except BaseException as error:  # also SystemExit, which would end the run silently
            raise EnvironmentFault(
                f"{self._name} raised {type(error).__name__} in {method}, {self._moment}: {error}"
            ) from error

    def _refuse(self, method: str, problem: str | None) -> None:
        if problem is not None:
            raise EnvironmentFault(f"{self._name} {problem} ({method}, {self._moment})")

    @property
    def _name(self) -> str:
        name = self.env.spec.id if self.env.spec is not None else type(self.env.unwrapped).__name__
        return f"environment '{name}' (native, {self.env.num_envs} at once)"

    @property
    def _moment(self) -> str:
        return f"step {self.steps} of this run"
