"""Experience sources: recorded steps in, batches out. The only place where algorithm families differ."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from rl_training.core.types import ActArrays, ObsArray, Progress, State, StepArrays, UpdateResult
from rl_training.data.rollout_buffer import RolloutBatch, RolloutBuffer


class RewardScaler(Protocol):
    """Keeps statistics of returns and scales rewards by them."""

    def update(self, rewards: Tensor, dones: Tensor, valid: Tensor, carry: Tensor) -> None: ...
    def __call__(self, rewards: Tensor) -> Tensor: ...


class RolloutSource:
    """One rollout per iteration, with advantages; yielded whole, once."""

    def __init__(
        self,
        buffer: RolloutBuffer,
        *,
        gamma: float,
        gae_lambda: float,
        reward_scaler: RewardScaler | None = None,
    ) -> None:
        self.buffer = buffer
        self.steps_per_collect = buffer.num_steps
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.reward_scaler = reward_scaler
        self._running_returns = torch.zeros(buffer.num_envs, dtype=torch.float64)
        self._last_value = torch.zeros(buffer.num_envs)

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None:
        """Copy the observation and what was done."""
        self.buffer.record_action(obs, acted)

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        """Copy what came of it."""
        self.buffer.record_outcome(step, acted)

    def end_collect(self, acted: ActArrays) -> None:
        """Keep the value that follows the last row."""
        self._last_value.copy_(torch.from_numpy(acted.last_value))

    def batches(self, progress: Progress) -> Iterator[RolloutBatch]:
        """Yield the rollout [T * N] with advantages and returns, then rewind the buffer."""
        buffer, rewards = self.buffer, None
        if self.reward_scaler is not None:
            self.reward_scaler.update(buffer.rewards, buffer.dones, buffer.valid, self._running_returns)
            rewards = self.reward_scaler(buffer.rewards)
        buffer.compute_returns_and_advantages(self._last_value, self.gamma, self.gae_lambda, rewards=rewards)
        yield buffer.flat()
        buffer.reset()

    def feedback(self, batch: RolloutBatch, result: UpdateResult) -> None:
        """A rollout learns nothing from its update."""

    def state_dict(self) -> State:
        """Between iterations the buffer is spent; only the running returns live on."""
        return {"running_returns": self._running_returns.clone()}

    def load_state_dict(self, state: State) -> None:
        """Restore the running returns."""
        self._running_returns.copy_(state["running_returns"])
