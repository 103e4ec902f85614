"""Records steps as a block, and blocks as steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.core.blocks import COLUMNS, Block
from rl_training.core.columns import Column, action_column, observation_columns
from rl_training.core.protocols import Recorder
from rl_training.core.spaces.layout import float_dtype
from rl_training.core.spaces.stored import stored_space
from rl_training.core.types import ActArrays, Array, EnvSpec, ObsArray, StepArrays, joined, leaves


class BlockRecorder:
    """Records steps in preallocated columns; `take` returns them as a block of views.

    A sampler in another process records into one of these, in shared memory; the learner's source reads the block with
    `record_block`.
    """

    def __init__(self, columns: Mapping[str, Array]) -> None:
        """`columns` are those of `block_columns`, by name."""
        self._columns = columns
        self._obs = _under("obs", columns)
        self._final_obs = _under("final_obs", columns)
        self._extra = _under("extra", columns)
        self._num_steps = len(columns["signal"])
        self._after: ObsArray | None = None
        self.row = self._num_ended = 0

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None:
        """Copy the observations and the explorer's outputs, before the environments overwrite them."""
        if self.row == self._num_steps:
            raise IndexError(f"the block of {self._num_steps} steps is full; call take() first")
        columns, row = self._columns, self.row
        for key, array in leaves(obs):
            self._obs[key][row] = array
        columns["action"][row] = acted.action
        columns["logprob"][row] = acted.logprob
        columns["value"][row] = acted.value
        for name, array in acted.extra.items():
            self._extra[name][row] = array

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        """Copy the outcome; final observations only for rows in which an episode ended."""
        columns, row = self._columns, self.row
        if step.any_ended:
            ended = step.ended
            stop = self._num_ended + int(ended.sum())
            for key, array in leaves(step.final_obs):
                self._final_obs[key][self._num_ended : stop] = array[ended]
            self._num_ended = stop
        columns["final_value"][row] = acted.final_value
        columns["signal"][row] = step.signal
        columns["terminated"][row] = step.terminated
        columns["ended"][row] = step.ended
        columns["valid"][row] = step.valid
        columns["cut"][row] = step.cut
        self._after = step.obs
        self.row += 1

    def end_collect(self, acted: ActArrays) -> None:
        """Copy the observations and values after the last step."""
        assert self._after is not None
        for key, array in leaves(self._after):
            self._obs[key][self.row] = array
        self._columns["last_value"][:] = acted.last_value

    def record_block(self, block: Block) -> None:
        record_steps(self, block)

    def take(self) -> Block:
        """Return the recorded steps, and begin again with the first row: the next steps overwrite the block."""
        steps, ended = self.row, self._num_ended
        self.row = self._num_ended = 0
        return block_of(self._columns, steps, ended)


def block_columns(
    spec: EnvSpec, extra: Sequence[Column], num_steps: int, num_rows: int
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and type of each column of a block of `num_steps` steps of `num_rows` rows."""
    seen = observation_columns(stored_space(spec)).items()
    action = action_column(spec.action_space)
    real = np.dtype(float_dtype())
    found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for key, column in seen:
        found[f"obs/{key}"] = ((num_steps + 1, num_rows, *column.shape), column.type)
        found[f"final_obs/{key}"] = ((num_steps * num_rows, *column.shape), column.type)
    each = (num_steps, num_rows)
    found |= {f"extra/{column.name}": ((*each, *column.shape), column.type) for column in extra}
    found["action"] = ((*each, *action.shape), action.type)
    found |= dict.fromkeys(("logprob", "value", "final_value"), (each, real))
    found["signal"] = (each, np.dtype(np.float64))
    found |= {name: (each, np.dtype(np.bool_)) for name in ("terminated", "ended", "valid", "cut")}
    return found | {"last_value": ((num_rows,), real)}


def block_of(columns: Mapping[str, Array], num_steps: int, num_ended: int) -> Block:
    """Return the first steps in the columns of a block, as views; `num_ended` episodes ended in them."""
    obs, final_obs = _under("obs", columns), _under("final_obs", columns)
    return Block(
        obs=joined({key: array[: num_steps + 1] for key, array in obs.items()}),
        final_obs=joined({key: array[:num_ended] for key, array in final_obs.items()}),
        extra={name: array[:num_steps] for name, array in _under("extra", columns).items()},
        last_value=columns["last_value"],
        **{name: columns[name][:num_steps] for name in COLUMNS},
    )


def record_steps(recorder: Recorder, block: Block) -> None:
    """Record the steps of a block one by one."""
    acted = None
    for obs, acted, step in block.steps():
        recorder.record_action(obs, acted)
        recorder.record_outcome(step, acted)
    if acted is not None:
        recorder.end_collect(acted)


def _under(prefix: str, columns: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name.removeprefix(f"{prefix}/"): array
        for name, array in columns.items()
        if name.startswith(f"{prefix}/")
    }
