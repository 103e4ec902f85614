"""Blocks: several recorded steps as columns, so that another process can hand over a whole rollout at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.core.types import ActArrays, Array, ObsArray, StepArrays, joined, leaves

COLUMNS = (
    "action", "logprob", "value", "final_value", "signal", "terminated", "ended", "valid", "cut",
)  # fmt: skip
"""The plain columns [T, N, ...] of a block."""


@dataclass(frozen=True)
class Block:
    """T steps of the N rows of a group; columns [T, N, ...] unless noted. The names are those of the step records."""

    obs: ObsArray
    """[T + 1, N, ...]: the observations before each step, and after the last one."""
    final_obs: ObsArray
    """[K, ...]: the true last observations of the K rows in which an episode ended, ordered by step and row."""
    action: Array
    logprob: Array
    value: Array
    final_value: Array
    last_value: Array
    """[N]; nan where the row's next action will not be used."""
    extra: dict[str, Array]
    signal: Array
    terminated: Array
    ended: Array
    valid: Array
    cut: Array

    @property
    def num_steps(self) -> int:
        return len(self.signal)

    def steps(self) -> Iterator[tuple[ObsArray, ActArrays, StepArrays]]:
        """Iterate over the steps: the observations before each, the explorer's outputs, and the outcome.

        The final observations lie in one array that every step overwrites. Rewards are those that are learned from.
        """
        final = {key: np.zeros_like(array[0]) for key, array in leaves(self.obs)}
        waiting, used = dict(leaves(self.final_obs)), 0
        for t in range(self.num_steps):
            ended = self.ended[t]
            count = int(ended.sum())
            for key, array in final.items():
                array[ended] = waiting[key][used : used + count]
            used += count
            acted = ActArrays(
                action=self.action[t],
                logprob=self.logprob[t],
                value=self.value[t],
                final_value=self.final_value[t],
                last_value=self.last_value,
                extra={name: column[t] for name, column in self.extra.items()},
            )
            step = StepArrays(
                obs=_at(self.obs, t + 1),
                final_obs=joined(final),
                reward=self.signal[t],
                terminated=self.terminated[t],
                truncated=ended & ~self.terminated[t],
                ended=ended,
                valid=self.valid[t],
                cut=self.cut[t],
                any_ended=count > 0,
                any_cut=bool(self.cut[t].any()),
                num_valid=int(self.valid[t].sum()),
            )
            yield _at(self.obs, t), acted, step


def joined_blocks(blocks: Sequence[Block]) -> Block:
    """Return the same steps of several groups as one block: the rows of the first group, then those of the next."""
    ended = np.concatenate([block.ended for block in blocks], axis=1)
    place = (np.cumsum(ended.ravel()) - 1).reshape(ended.shape)  # where the final observation of a row goes
    bounds = np.cumsum([0, *(block.ended.shape[1] for block in blocks)])
    groups = zip(blocks, bounds, bounds[1:], strict=False)
    order = np.argsort(np.concatenate([place[:, low:high][block.ended] for block, low, high in groups]))

    obs = [dict(leaves(block.obs)) for block in blocks]
    final = [dict(leaves(block.final_obs)) for block in blocks]
    return Block(
        obs=joined({key: np.concatenate([each[key] for each in obs], axis=1) for key in obs[0]}),
        final_obs=joined({key: np.concatenate([each[key] for each in final])[order] for key in final[0]}),
        extra={
            name: np.concatenate([each.extra[name] for each in blocks], axis=1) for name in blocks[0].extra
        },
        last_value=np.concatenate([block.last_value for block in blocks]),
        **{name: np.concatenate([getattr(each, name) for each in blocks], axis=1) for name in COLUMNS},
    )


def copied_block(block: Block) -> Block:
    """Return a block with arrays of its own."""
    return Block(
        obs=joined({key: array.copy() for key, array in leaves(block.obs)}),
        final_obs=joined({key: array.copy() for key, array in leaves(block.final_obs)}),
        extra={name: array.copy() for name, array in block.extra.items()},
        last_value=block.last_value.copy(),
        **{name: getattr(block, name).copy() for name in COLUMNS},
    )


def _at(obs: ObsArray, t: int) -> ObsArray:
    return joined({key: array[t] for key, array in leaves(obs)})
