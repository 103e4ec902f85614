"""Records steps as a block, and blocks as steps."""

import numpy as np

from rl_training.core.blocks import Block
from rl_training.core.protocols import Recorder
from rl_training.core.types import ActArrays, Array, ObsArray, StepArrays, joined, leaves


class BlockRecorder:
    """Records steps as columns; `take` returns them as a block.

    A sampler in another process records into one of these; the learner's source reads the block with `record_block`.
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Array]] = {}
        self._after: ObsArray | None = None

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None:
        """Copy the observations and the explorer's outputs, before the environments overwrite them."""
        for key, array in leaves(obs):
            self._add(f"obs/{key}", array)
        for name in ("action", "logprob", "value"):
            self._add(name, getattr(acted, name))
        for name, array in acted.extra.items():
            self._add(f"extra/{name}", array)

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        """Copy the outcome; final observations only for rows in which an episode ended."""
        for key, array in leaves(step.final_obs):
            self._add(f"final_obs/{key}", array[step.ended])
        self._add("final_value", acted.final_value)
        for name in ("signal", "terminated", "ended", "valid", "cut"):
            self._add(name, getattr(step, name))
        self._after = step.obs

    def end_collect(self, acted: ActArrays) -> None:
        """Copy the observations and values after the last step."""
        assert self._after is not None
        for key, array in leaves(self._after):
            self._add(f"obs/{key}", array)
        self._add("last_value", acted.last_value)

    def record_block(self, block: Block) -> None:
        record_steps(self, block)

    def take(self) -> Block:
        """Return the steps since the last call as a block."""
        found, self._columns = self._columns, {}
        obs = {name: np.stack(parts) for name, parts in _under("obs", found).items()}
        final_obs = {name: np.concatenate(parts) for name, parts in _under("final_obs", found).items()}
        extra = {name: np.stack(parts) for name, parts in _under("extra", found).items()}
        plain = {name: np.stack(parts) for name, parts in found.items() if "/" not in name}
        last_value = plain.pop("last_value")[0]
        return Block(
            obs=joined(obs), final_obs=joined(final_obs), extra=extra, last_value=last_value, **plain
        )

    def _add(self, name: str, array: Array) -> None:
        self._columns.setdefault(name, []).append(array.copy())


def record_steps(recorder: Recorder, block: Block) -> None:
    """Record the steps of a block one by one."""
    acted = None
    for obs, acted, step in block.steps():
        recorder.record_action(obs, acted)
        recorder.record_outcome(step, acted)
    if acted is not None:
        recorder.end_collect(acted)


def _under(prefix: str, columns: dict[str, list[Array]]) -> dict[str, list[Array]]:
    return {
        name.removeprefix(f"{prefix}/"): parts
        for name, parts in columns.items()
        if name.startswith(f"{prefix}/")
    }
