"""What callbacks see of each step: a copy of all its arrays, and the infos."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rl_training.core.blocks import Block
from rl_training.core.protocols import Recorder
from rl_training.core.spaces.masks import split_mask
from rl_training.core.spaces.stored import split_critic
from rl_training.core.types import ActArrays, Array, Info, ObsArray, StepArrays, WatchedStep, joined, leaves


@dataclass(frozen=True)
class StepContext:
    """One step of all N environments, as `Callback.on_step` sees it. Its arrays are copies: you may keep them.

    Arrays inside `infos` are those of the environment, which may change them later: copy what you keep.
    Observations are arrays [N, ...], or dicts of them for Dict and Tuple spaces, with nested keys such as `a/b`.
    """

    timesteps: int
    """Timesteps of the run, with this step: the sum over environments."""
    observations: ObsArray
    """What the policy saw before the step [N, ...]."""
    actions: Array
    """What the environments received [N, ...]: rescaled and clipped to the action space."""
    rewards: Array
    """The environments' rewards [N], float64, neither clipped nor normalized."""
    terminations: Array
    """Where the task ended [N], bool."""
    truncations: Array
    """Where a time limit ended the episode [N], bool; never together with a termination."""
    next_observations: ObsArray
    """What the step led to [N, ...]: the last observation where an episode ended, not the first of the next one."""
    infos: list[Info]
    """The `info` of each environment's step, N dicts: the one of the last step where an episode ended."""
    valid: Array
    """False [N] where a native vector environment only reset in this step; such a row is no transition."""
    action_masks: Array | None = None
    """The masks of allowed actions before the step [N, M], bool; None without masks."""


class StepWatcher:
    """A recorder in front of another one that also passes each step to `on_step`."""

    def __init__(
        self, recorder: Recorder, watched: WatchedStep, on_step: Callable[[StepContext], None], timesteps: int
    ) -> None:
        self.recorder, self.watched, self.on_step, self.timesteps = recorder, watched, on_step, timesteps
        self._before: ObsArray = {}

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None:
        self._before = _copied(obs)
        self.recorder.record_action(obs, acted)

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        """Record the outcome, then pass the step on."""
        self.recorder.record_outcome(step, acted)
        self.timesteps += step.num_valid
        before, masks = _seen(self._before)
        after = _copied(_seen(step.obs)[0])
        if step.any_ended:
            final = dict(leaves(_seen(step.final_obs)[0]))
            for key, array in leaves(after):
                array[step.ended] = final[key][step.ended]
        self.on_step(
            StepContext(
                timesteps=self.timesteps,
                observations=before,
                actions=np.array(self.watched.actions),
                rewards=step.reward.copy(),
                terminations=step.terminated.copy(),
                truncations=step.truncated.copy(),
                next_observations=after,
                infos=self.watched.infos,
                valid=step.valid.copy(),
                action_masks=masks,
            )
        )

    def end_collect(self, acted: ActArrays) -> None:
        self.recorder.end_collect(acted)

    def record_block(self, block: Block) -> None:
        """Record a block; its steps were seen where they were taken."""
        self.recorder.record_block(block)


def _seen(obs: ObsArray) -> tuple[ObsArray, Array | None]:
    """Return what the policy sees of a stored observation, and its mask."""
    seen, mask = split_mask(obs)
    return split_critic(seen)[0], mask


def _copied(obs: ObsArray) -> ObsArray:
    return joined({key: array.copy() for key, array in leaves(obs)})
