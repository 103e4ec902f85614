"""Experience sources: they record steps and yield batches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.config.schedules import interpolated
from rl_training.core.blocks import Block
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.spaces.layout import take_rows
from rl_training.core.types import (
    ActArrays,
    Obs,
    ObsArray,
    Progress,
    State,
    StepArrays,
    UpdateResult,
    joined,
    leaves,
    tensors_of,
)
from rl_training.data.block_recorder import record_steps
from rl_training.data.replay_buffer import ReplayBuffer, Transitions
from rl_training.data.rollout_buffer import NO_VTRACE, RolloutBatch, RolloutBuffer
from rl_training.data.running_returns import RewardScaler, RunningReturns

MAX_ROWS_AT_ONCE = 2**14
MAX_BYTES_AT_ONCE = 2**26


class RolloutSource:
    """Yields each rollout once, as a whole, with advantages.

    If rows may wait, it yields only those that are learned from; a rollout without any is dropped.
    """

    def __init__(
        self,
        buffer: RolloutBuffer,
        *,
        gamma: float,
        gae_lambda: float,
        reward_scaler: RewardScaler | None = None,
        log_prob: Callable[[Obs, Tensor], Tensor] | None = None,
    ) -> None:
        """With `log_prob`, that of the learner's policy, advantages and returns are corrected by V-trace."""
        if log_prob is not None and buffer.turns:
            raise ValueError(NO_VTRACE)
        self.buffer, self.steps_per_collect, self._log_prob = buffer, buffer.num_steps, log_prob
        self.gamma, self.gae_lambda, self.reward_scaler = gamma, gae_lambda, reward_scaler
        self._running_returns = RunningReturns(buffer.num_envs, turns=buffer.turns)
        self._last_value = torch.zeros(buffer.num_envs)

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None:
        self.buffer.record_action(obs, acted)

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        self.buffer.record_outcome(step, acted)

    def end_collect(self, acted: ActArrays) -> None:
        """Copy the value after the last row."""
        self._last_value.copy_(torch.from_numpy(acted.last_value))

    def record_block(self, block: Block) -> None:
        """Copy a block of steps, and the value after its last row."""
        self.buffer.record_block(block)
        self._last_value.copy_(torch.from_numpy(block.last_value))

    def batches(self, progress: Progress) -> Iterator[RolloutBatch]:
        """Yield the rollout [T * N] with advantages and returns, then rewind the buffer."""
        buffer, rewards = self.buffer, None
        if self.reward_scaler is not None:
            self._running_returns.update(self.reward_scaler, buffer.rewards, buffer.dones, buffer.valid)
            rewards = self.reward_scaler(buffer.own_rewards())
        buffer.compute_returns_and_advantages(
            self._last_value, self.gamma, self.gae_lambda, rewards=rewards, ratios=self._ratios()
        )
        if buffer.learned is None or bool(buffer.learned.any()):
            yield buffer.flat()
        buffer.reset()

    def _ratios(self) -> Tensor | None:
        """Return the probabilities of the actions now, relative to those when they were chosen [T, N]."""
        if self._log_prob is None:
            return None
        buffer = self.buffer
        obs = buffer.obs
        rows = (
            {key: part.flatten(0, 1) for key, part in obs.items()}
            if isinstance(obs, dict)
            else obs.flatten(0, 1)
        )
        with torch.no_grad():
            now = self._log_prob(rows, buffer.actions.flatten(0, 1)).cpu().view_as(buffer.logprobs)
        return (now - buffer.logprobs).exp()

    def feedback(self, batch: RolloutBatch, result: UpdateResult) -> None: ...

    @property
    def storages(self) -> Mapping[str, Any]:
        return {}

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def forget(self, rows: Sequence[int]) -> None:
        """Drop the running returns of rows whose episode does not continue."""
        self._running_returns.forget(rows)

    def state_dict(self) -> State:
        """Return the running returns; the buffer is empty between iterations."""
        return self._running_returns.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore the running returns; those of another number of environments are ignored."""
        self._running_returns.load_state_dict(state)


class ReplaySource:
    """Stores transitions, and yields `gradient_steps` batches for every `train_freq` of them.

    The number of batches depends only on the number of transitions, so the update-to-data ratio
    `gradient_steps / train_freq` is the same for any number of environments. The first `learning_starts` transitions
    yield none.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        batch_size: int,
        train_freq: int,
        gradient_steps: int,
        learning_starts: int,
        rng: np.random.Generator,
        beta: float = 1.0,
        reward_scaler: RewardScaler | None = None,
        observe: Callable[[Obs], None] | None = None,
    ) -> None:
        """`beta` increases linearly to 1; `observe` receives every new observation [N, ...], for statistics.

        If rows may wait, it receives those that a row acted on.
        """
        self.buffer = buffer
        self.steps_per_collect = max(train_freq // buffer.num_envs, 1)
        self.batch_size, self.train_freq = batch_size, train_freq
        self.gradient_steps = gradient_steps if gradient_steps > 0 else train_freq
        self.learning_starts = learning_starts
        self.rng, self.beta = rng, beta
        self.reward_scaler, self.observe = reward_scaler, observe
        self.recorded = self.batches_given = 0
        self._seen: list[ObsArray] = []
        """Observations of the collection in progress."""
        self._acted_on: ObsArray = np.zeros(0)
        """The observations of the step in progress, if rows may wait."""
        self._counts_turns = buffer.turns and observe is not None
        self._running_returns = RunningReturns(buffer.num_envs, turns=buffer.turns)

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None:
        self.buffer.record_action(obs, acted.action, acted.extra)
        if self._counts_turns:
            self._acted_on = joined({key: array.copy() for key, array in leaves(obs)})

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        self.buffer.record_outcome(step)
        self.recorded += step.num_valid
        if self._counts_turns:
            self._seen.append(take_rows(self._acted_on, np.flatnonzero(step.valid)))
        elif self.observe is not None:
            self._seen.append(joined({key: array.copy() for key, array in leaves(step.obs)}))
        if self.reward_scaler is not None:
            rewards, ended, valid = (
                torch.from_numpy(array)[None] for array in (step.signal, step.ended, step.valid)
            )
            self._running_returns.update(self.reward_scaler, rewards, ended, valid)

    def end_collect(self, acted: ActArrays) -> None:
        """Update the statistics of observations, step by step: they change between collections, never within one."""
        if self.observe is not None:
            for obs in self._seen:
                self.observe(tensors_of(obs))
            self._seen.clear()

    def record_block(self, block: Block) -> None:
        """Record the steps of a block in order: n-step returns, frames and statistics depend on it."""
        record_steps(self, block)

    @property
    def owed(self) -> int:
        """The number of batches that are due for the transitions so far."""
        if self.recorded <= self.learning_starts or len(self.buffer) == 0:
            return 0
        rounds = self.recorded // self.train_freq - self.learning_starts // self.train_freq
        return rounds * self.gradient_steps - self.batches_given

    def batches(self, progress: Progress) -> Iterator[Transitions]:
        """Yield the batches that are due, as many together as memory and priorities allow."""
        beta = interpolated(self.beta, 1.0, progress.fraction)
        # uniform batches are drawn together; priorities change with every update
        rows_at_once = min(MAX_ROWS_AT_ONCE, MAX_BYTES_AT_ONCE // self.buffer.drawn_bytes)
        at_once = 1 if self.buffer.prioritized else max(rows_at_once // self.batch_size, 1)
        owed = self.owed
        while owed > 0:
            count = min(owed, at_once)
            rows = self.buffer.sample(count * self.batch_size, self.rng, beta=beta)
            if self.reward_scaler is not None:
                rows = replace(rows, rewards=self.reward_scaler(rows.rewards))
            self.batches_given += count
            owed -= count
            yield rows

    def feedback(self, batch: Transitions, result: UpdateResult) -> None:
        """Set the priorities of the rows by the errors of the update."""
        if self.buffer.prioritized and result.priorities is not None:
            self.buffer.update_priorities(batch.indices, result.priorities)

    @property
    def storages(self) -> Mapping[str, Any]:
        return self.buffer.storages

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def forget(self, rows: Sequence[int]) -> None:
        """Drop the unfinished transitions and running returns of rows whose episode does not continue."""
        self.buffer.forget(list(rows))
        self._running_returns.forget(rows)

    def state_dict(self) -> State:
        """Return everything but the rows, which are saved in segments."""
        return {
            "buffer": self.buffer.state_dict(),
            "recorded": self.recorded,
            "batches_given": self.batches_given,
            "rng": generator_state(self.rng),
            **self._running_returns.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state, after the rows."""
        self.buffer.load_state_dict(state["buffer"])
        self.recorded = int(state["recorded"])
        self.batches_given = int(state["batches_given"])
        set_generator_state(self.rng, state["rng"])
        self._running_returns.load_state_dict(state)
