"""Behaviour policies: they choose actions while collecting."""

from collections.abc import Sequence

import numpy as np

from rl_training.config.schedules import interpolated
from rl_training.core.columns import Column
from rl_training.core.spaces.layout import take_rows
from rl_training.core.spaces.masks import random_actions, split_mask
from rl_training.core.state import Owners, gather, scatter
from rl_training.core.types import ActArrays, Array, ObsArray, Progress, State, StepArrays
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.base import NetworkPolicy
from rl_training.policies.noise import ActionNoise, ExplorationMatrices
from rl_training.policies.q_policy import QPolicy


class BaseExplorer:
    """Defaults: most explorers do nothing after a step and have no state but a random stream.

    `owners` are the objects with state that is saved and restored.
    """

    rng: np.random.Generator
    columns: tuple[Column, ...] = ()

    def after_step(self, step: StepArrays, acted: ActArrays) -> None: ...
    def end_collect(self, step: StepArrays, acted: ActArrays) -> None: ...
    def forget(self, rows: Sequence[int]) -> None: ...

    @property
    def owners(self) -> Owners:
        return {"rng": self.rng}

    def state_dict(self) -> State:
        return gather(self.owners)

    def load_state_dict(self, state: State) -> None:
        scatter(self.owners, state)


class ActorCriticExplorer(BaseExplorer):
    """Samples actions from the policy, and records the values of the same forward pass.

    Noise comes from the head, or from `matrices`, which are kept for several steps.
    """

    def __init__(
        self,
        policy: ActorCriticPolicy,
        rng: np.random.Generator,
        *,
        matrices: ExplorationMatrices | None = None,
    ) -> None:
        self.policy, self.rng, self.matrices = policy, rng, matrices

    def act(self, obs: ObsArray, acted: ActArrays, progress: Progress) -> None:
        params, acted.value[:] = self.policy.outputs(obs)
        acted.action[:], acted.logprob[:] = self.sampled(params)

    def sampled(self, params: Array) -> tuple[Array, Array]:
        """Return actions [N, ...] and log-probabilities [N] for action parameters [N, P]."""
        source = self.policy.head if self.matrices is None else self.matrices
        return source.sample(params, self.rng)

    def after_step(self, step: StepArrays, acted: ActArrays) -> None:
        """Fill final_value: the value of the last observation where a time limit cut the episode, otherwise 0."""
        acted.final_value[:] = 0.0
        if step.any_ended and step.truncated.any():
            rows = np.flatnonzero(step.truncated)
            acted.final_value[rows] = self.policy.values(take_rows(step.final_obs, rows))

    def end_collect(self, step: StepArrays, acted: ActArrays) -> None:
        """Fill last_value: the value after the last recorded step of a rollout; nan for rows that wait."""
        acted.last_value[:] = self.policy.values(step.obs)
        self._mark_waiting(step, acted)
        self.begin_rollout()

    def _mark_waiting(self, step: StepArrays, acted: ActArrays) -> None:
        """Set last_value to nan where a row does not act next: what follows its last action is not known yet."""
        if step.acts is not None:
            acted.last_value[~step.acts] = np.nan

    def begin_rollout(self) -> None:
        """Draw new exploration matrices for the next rollout."""
        if self.matrices is not None:
            self.matrices.restart()

    @property
    def owners(self) -> Owners:
        return super().owners if self.matrices is None else {"rng": self.rng, "matrices": self.matrices}


class EpsilonGreedyExplorer(BaseExplorer):
    """Takes a random action with probability epsilon, drawn for each environment; otherwise the best one.

    A mask limits both to the allowed actions. Before `learning_starts` every action is random. Epsilon decreases
    linearly over the first `fraction` of the budget.
    """

    def __init__(
        self,
        policy: QPolicy,
        rng: np.random.Generator,
        *,
        initial: float,
        final: float,
        fraction: float,
        learning_starts: int,
    ) -> None:
        self.policy, self.rng = policy, rng
        self.initial, self.final, self.fraction = initial, final, fraction
        self.learning_starts = learning_starts

    def epsilon(self, progress: Progress) -> float:
        if progress.timesteps < self.learning_starts:
            return 1.0
        return interpolated(self.initial, self.final, progress.fraction / self.fraction)

    def act(self, obs: ObsArray, acted: ActArrays, progress: Progress) -> None:
        epsilon, n = self.epsilon(progress), len(acted.action)
        if epsilon > 0.0:
            explores = self.rng.random(n) < epsilon
            mask = split_mask(obs)[1]
            acted.action[:] = random_actions(mask, n, self.policy.num_actions, self.rng)
            if np.logical_and.reduce(explores):
                return
            greedy, _ = self.policy.act(obs, (), deterministic=False, rng=self.rng)
            np.copyto(acted.action, greedy, where=~explores)
        else:
            acted.action[:], _ = self.policy.act(obs, (), deterministic=False, rng=self.rng)


class ContinuousExplorer(BaseExplorer):
    """Acts in [-1, 1]: uniformly at random before `learning_starts`, then by the policy, with optional added noise."""

    def __init__(
        self,
        policy: NetworkPolicy,
        rng: np.random.Generator,
        *,
        learning_starts: int,
        noise: ActionNoise | None = None,
    ) -> None:
        self.policy, self.rng, self.noise = policy, rng, noise
        self.learning_starts = learning_starts

    def act(self, obs: ObsArray, acted: ActArrays, progress: Progress) -> None:
        if progress.timesteps < self.learning_starts:
            acted.action[:] = self.rng.uniform(-1.0, 1.0, acted.action.shape)
            return
        acted.action[:] = self.chosen(obs)
        if self.noise is not None:
            acted.action += self.noise.sample(self.rng)
            acted.action.clip(-1.0, 1.0, out=acted.action)

    def chosen(self, obs: ObsArray) -> Array:
        """Return the policy's own actions [N, A], before noise is added."""
        return self.policy.act(obs, (), deterministic=False, rng=self.rng)[0]

    def after_step(self, step: StepArrays, acted: ActArrays) -> None:
        """Reset correlated noise where an episode has ended."""
        if step.any_ended and self.noise is not None:
            self.noise.restart(step.ended)

    def forget(self, rows: Sequence[int]) -> None:
        if self.noise is not None and rows:
            self.noise.restart(np.asarray(rows))

    @property
    def owners(self) -> Owners:
        return super().owners if self.noise is None else {"rng": self.rng, "noise": self.noise}
