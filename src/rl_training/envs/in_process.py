"""Environments in this process, stepped one by one straight into the arrays of a step."""

from typing import Any

from gymnasium.vector import SyncVectorEnv

from rl_training.core.types import Array, StepArrays
from rl_training.envs.cuts import CUT
from rl_training.envs.observations import write_row
from rl_training.envs.success import NAME as SUCCESS


class InProcess:
    """The same as `SyncVectorEnv.step` in same-step mode, without what that spends on steps in which nothing ends.

    It stacks observations, copies them and all flags, and makes an array of every entry of every `info`: for eight
    CartPoles a fifth of the time. Of `info` only what is read here is kept, and only where it says something.
    """

    def __init__(self, env: SyncVectorEnv, out: StepArrays) -> None:
        self._vector, self._envs, self._out = env, env.envs, out
        self._plain = None if isinstance(out.obs, dict) else out.obs

    def reset(self, rows: Array | None = None) -> None:
        """Start a new episode everywhere, or in the rows of a mask [N]."""
        for row, env in enumerate(self._envs):
            if rows is None or rows[row]:
                write_row(self._out.obs, row, env.reset()[0])

    def step(self, actions: Array) -> dict[str, Any]:
        """Step all of them, overwrite all but cuts and successes in `out`, and return what there is to read of these.

        As of any vector environment in same-step mode: under `final_info` for episodes that ended.
        """
        out, plain, said = self._out, self._plain, dict[str, Any]()
        if out.any_ended or out.any_cut:
            out.terminated[:] = out.truncated[:] = out.ended[:] = False
            out.any_ended = False
        for row, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            obs, out.reward[row], terminated, truncated, info = env.step(action)
            if terminated or truncated:
                out.ended[row] = out.any_ended = True
                out.terminated[row] = bool(terminated)
                out.truncated[row] = not terminated  # terminated wins if both are set
                told = {name: info[name] for name in (CUT, SUCCESS) if name in info}
                said = self._vector._add_info(said, {"final_info": told}, row)
                write_row(out.final_obs, row, obs)
                obs, _ = env.reset()
            elif CUT in info:
                said = self._vector._add_info(said, {CUT: info[CUT]}, row)
            if plain is None:
                write_row(out.obs, row, obs)
            else:
                plain[row] = obs
        return said
