"""SAC's policy and explorer with state-dependent exploration (gSDE); see `models/state_dependent.py`."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.state import Owners
from rl_training.core.types import (
    ActArrays,
    Array,
    EnvSpec,
    Numbers,
    ObsArray,
    PolicyState,
    StepArrays,
    StepMetrics,
)
from rl_training.models.encoded_network import layers_after_encoder
from rl_training.models.fast.backend import Backend
from rl_training.models.fast.heads import Sampled, squashed_state_dependent
from rl_training.models.mlp import ActivationName, mlp_with_head
from rl_training.models.state_dependent import MEAN_LIMIT, StateDependentHead, make_linear_and_features
from rl_training.policies.continuous import StochasticPolicy
from rl_training.policies.explorers import ContinuousExplorer
from rl_training.policies.noise import ActionNoise, ExplorationMatrices


class StateDependentPolicy(StochasticPolicy):
    """tanh of a normal whose deviation depends on the last hidden layer."""

    def __init__(self, spec: EnvSpec, *, log_std_init: float, **settings: Any) -> None:
        """`settings` are those of `ContinuousPolicy`."""
        super().__init__(spec, **settings)
        last = list(layers_after_encoder(self.network).children())[-1]
        assert isinstance(last, nn.Linear)
        self.head = StateDependentHead(self.action_size, last.in_features, log_std_init)

    def _new_layers(
        self, sizes: tuple[int, ...], activation: ActivationName, generator: torch.Generator
    ) -> nn.Module:
        outputs = self.action_size + sizes[-1]
        return mlp_with_head(
            (*sizes, outputs), activation, generator=generator, make_last=make_linear_and_features
        )

    @property
    def head_parameters(self) -> tuple[nn.Parameter, ...]:
        """The log standard deviations of the matrices."""
        return (self.head.log_std,)

    def draw(self, normal: Any, rows: int) -> tuple[Numbers, Numbers]:
        """Return one noise matrix, the same for actions and for next actions."""
        noise = normal(*self.head.log_std.shape)
        return noise, noise

    def noise_of(self, noise: Numbers, place: slice) -> Numbers:
        """Return the whole matrix, which all rows share."""
        return noise

    def sampled(self, params: Numbers, noise: Numbers, backend: Backend) -> Sampled:
        return squashed_state_dependent(params, noise, backend.view(self.head.log_std.detach()), backend)

    def outputs_log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return self.head.squashed_log_prob(outputs, actions)

    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]:
        """Return actions [N, A] in [-1, 1]; unless deterministic, with independent noise in every row."""
        params = self.outputs(obs)
        return self._squashed(params, None if deterministic else self.head.fresh_noise(params, rng)), state

    def metrics(self) -> StepMetrics:
        return {"std": self.head.log_std.detach().exp().mean()}

    def act_by(self, obs: ObsArray, matrices: Array) -> Array:
        """Return actions [N, A] in [-1, 1] with the noise of matrices [N, H, A]."""
        params = self.outputs(obs)
        return self._squashed(params, self.head.noise_by(params, matrices))

    def _squashed(self, params: Array, noise: Array | None) -> Array:
        means = self.head.means(params).clip(-MEAN_LIMIT, MEAN_LIMIT)
        actions: Array = np.tanh(means if noise is None else means + noise)
        return actions


class StateDependentContinuousExplorer(ContinuousExplorer):
    """Acts in [-1, 1]: uniformly at random before `learning_starts`, then with noise from matrices and features."""

    policy: StateDependentPolicy

    def __init__(
        self,
        policy: StateDependentPolicy,
        rng: np.random.Generator,
        *,
        learning_starts: int,
        noise: ActionNoise | None = None,
        every: int,
    ) -> None:
        super().__init__(policy, rng, learning_starts=learning_starts, noise=noise)
        self.matrices = ExplorationMatrices(policy.head, policy.spec.num_envs, every)

    def chosen(self, obs: ObsArray) -> Array:
        return self.policy.act_by(obs, self.matrices.current(self.rng))

    def end_collect(self, step: StepArrays, acted: ActArrays) -> None:
        self.matrices.restart()

    @property
    def owners(self) -> Owners:
        return {**super().owners, "matrices": self.matrices}
