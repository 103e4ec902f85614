"""Noise that is added to continuous actions while collecting, and matrices for state-dependent exploration."""

from typing import Literal, TypeAlias

import numpy as np
import torch

from rl_training.core.spaces.layout import float_dtype
from rl_training.core.types import Array, State
from rl_training.models.state_dependent import StateDependentHead

ActionNoiseName: TypeAlias = Literal["gaussian", "ornstein_uhlenbeck"]
AddedNoiseName: TypeAlias = Literal["none", "gaussian", "ornstein_uhlenbeck"]
"""The names for a policy that also samples its actions."""


class GaussianNoise:
    """Noise [N, A] that is independent in every step and has no state."""

    def __init__(self, shape: tuple[int, int], sigma: float) -> None:
        self.shape, self.sigma = shape, sigma

    def sample(self, rng: np.random.Generator) -> Array:
        return self.sigma * rng.standard_normal(self.shape)

    def restart(self, envs: Array) -> None: ...

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None: ...


class OrnsteinUhlenbeckNoise:
    """Noise [N, A], correlated in time: x += -theta * x * dt + sigma * sqrt(dt) * normal; episodes begin at 0."""

    def __init__(
        self, shape: tuple[int, int], sigma: float, *, theta: float = 0.15, dt: float = 1e-2
    ) -> None:
        self.sigma, self.theta, self.dt = sigma, theta, dt
        self.value = np.zeros(shape)

    def sample(self, rng: np.random.Generator) -> Array:
        kick = rng.standard_normal(self.value.shape)
        self.value = self.value * (1 - self.theta * self.dt) + self.sigma * self.dt**0.5 * kick
        return self.value

    def restart(self, envs: Array) -> None:
        """Begin a new episode in these environments (a mask or indices)."""
        self.value = self.value.copy()  # `sample` has returned the old array
        self.value[envs] = 0.0

    def state_dict(self) -> State:
        return {"value": torch.from_numpy(self.value.copy())}

    def load_state_dict(self, state: State) -> None:
        """Restore the noise; that of another number of environments is ignored."""
        if tuple(state["value"].shape) == self.value.shape:
            self.value = state["value"].numpy().copy()


ActionNoise: TypeAlias = GaussianNoise | OrnsteinUhlenbeckNoise


def make_noise(name: AddedNoiseName, sigma: float, num_envs: int, action_size: int) -> ActionNoise | None:
    """Return the named noise for `num_envs` environments, in units of half the action range; None for `none`."""
    if name == "none":
        return None
    shape = (num_envs, action_size)
    return GaussianNoise(shape, sigma) if name == "gaussian" else OrnsteinUhlenbeckNoise(shape, sigma)


class ExplorationMatrices:
    """A noise matrix per environment, drawn when a rollout begins, and every `every` steps unless that is -1."""

    def __init__(self, head: StateDependentHead, num_envs: int, every: int) -> None:
        self.head, self.every = head, every
        self.matrices = np.zeros((num_envs, *head.log_std.shape), float_dtype())
        self.steps = 0

    def current(self, rng: np.random.Generator) -> Array:
        """Return the matrices [N, H, A] of the next step."""
        if self.steps == 0 or (self.every > 0 and self.steps % self.every == 0):
            self.matrices = self.head.matrices(len(self.matrices), rng)
        self.steps += 1
        return self.matrices

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return actions [N, A] and log-probabilities [N], which are marginal over all matrices."""
        return self.head.with_noise(params, self.head.noise_by(params, self.current(rng)))

    def restart(self) -> None:
        """Draw new matrices at the next step."""
        self.steps = 0

    def state_dict(self) -> State:
        return {"matrices": torch.from_numpy(self.matrices.copy()), "steps": self.steps}

    def load_state_dict(self, state: State) -> None:
        """Restore them; for another number of environments, new ones are drawn."""
        if tuple(state["matrices"].shape) == self.matrices.shape:
            self.matrices = state["matrices"].numpy().copy()
            self.steps = int(state["steps"])
