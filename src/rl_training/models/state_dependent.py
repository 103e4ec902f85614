"""Generalised state-dependent exploration (gSDE), arXiv:2005.05719: noise that depends on the observation.

The noise of an action is `features @ matrix`, of the actor's last hidden layer and a random matrix: with one matrix the
same state gets the same noise, so actions are smooth. Over all matrices the noise is normal, with a deviation that
depends on the features; log-probabilities and entropies are those of this distribution.
Letters: `N` and `B` rows, `A` components of an action, `H` features. Parameters [N, A + H] are means and features.
"""

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.spaces.layout import float_dtype
from rl_training.core.types import Array
from rl_training.models.heads import LOG_SQRT_2PI, UnmaskedHead, inverse_tanh
from rl_training.models.initialization import make_linear

LEAST_VARIANCE = 1e-6
"""Added to every variance, because all features may be 0."""
MEAN_LIMIT = 2.0
"""Largest mean of a squashed action: beyond it the gradient of tanh almost vanishes."""


class LinearAndFeatures(nn.Linear):
    """A linear layer that also returns its inputs: inputs [B, I] to outputs and inputs, [B, O + I]."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([super().forward(features), features], dim=-1)


def make_linear_and_features(
    fan_in: int, fan_out: int, gain: float, *, orthogonal: bool, generator: torch.Generator
) -> nn.Linear:
    """Return a layer with `fan_out` numbers in total, its inputs included; otherwise like `make_linear`."""
    return make_linear(
        fan_in, fan_out - fan_in, gain, orthogonal=orthogonal, generator=generator, kind=LinearAndFeatures
    )


class StateDependentHead(UnmaskedHead):
    """Normals whose deviation depends on the features; the deviation of every matrix entry is learned."""

    def __init__(self, action_size: int, num_features: int, log_std_init: float) -> None:
        super().__init__()
        self.action_size = action_size
        self.num_params = action_size + num_features
        self.log_std = nn.Parameter(torch.full((num_features, action_size), log_std_init))

    def means(self, params: Array) -> Array:
        return params[:, : self.action_size]

    def matrices(self, count: int, rng: np.random.Generator) -> Array:
        """Return random matrices [count, H, A]."""
        noise = rng.standard_normal((count, *self.log_std.shape), dtype=float_dtype())
        return np.exp(self._log_std()) * noise

    def noise_by(self, params: Array, matrices: Array) -> Array:
        """Return the noise [N, A] of each row: its features times its matrix [N, H, A]."""
        features: Array = params[:, None, self.action_size :]
        return (features @ matrices)[:, 0]

    def fresh_noise(self, params: Array, rng: np.random.Generator) -> Array:
        """Return noise [N, A] with the distribution of a new matrix for every row, without drawing matrices."""
        size = (len(params), self.action_size)
        return np.sqrt(self._variances(params)) * rng.standard_normal(size, dtype=float_dtype())

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return unclipped actions [N, A] and log-probabilities [N], with independent noise in every row."""
        return self.with_noise(params, self.fresh_noise(params, rng))

    def with_noise(self, params: Array, noise: Array) -> tuple[Array, Array]:
        """Return unclipped actions [N, A] and log-probabilities [N] for noise [N, A]."""
        variances = self._variances(params)
        logprobs = -0.5 * (noise * noise / variances + np.log(variances)) - LOG_SQRT_2PI
        return self.means(params) + noise, logprobs.sum(axis=-1)

    def mode(self, params: Array) -> Array:
        return self.means(params)

    def logprob_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [B] and entropies [B]; no gradient reaches the features through the deviation."""
        means, features = params.tensor_split([self.action_size], dim=-1)
        variances = features.detach().square() @ (2 * self.log_std).exp() + LEAST_VARIANCE
        log_std = 0.5 * variances.log()
        logprobs = (-0.5 * (actions - means).square() / variances - log_std - LOG_SQRT_2PI).sum(-1)
        return logprobs, (log_std + 0.5 + LOG_SQRT_2PI).sum(-1)

    def squashed_log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return log-probabilities [B] of given actions [B, A] in [-1, 1], squashed by tanh.

        Means are limited as in sampling. Gradients reach the features through the deviation.
        """
        means, features = params.tensor_split([self.action_size], dim=-1)
        variances = features.square() @ (2 * self.log_std).exp() + LEAST_VARIANCE
        raw, log_slope = inverse_tanh(actions)
        noise = raw - means.clamp(-MEAN_LIMIT, MEAN_LIMIT)
        logprobs = -0.5 * (noise.square() / variances + variances.log()) - LOG_SQRT_2PI - log_slope
        return logprobs.sum(-1)

    def _variances(self, params: Array) -> Array:
        variances: Array = np.square(params[:, self.action_size :]) @ np.exp(2 * self._log_std())
        variances += LEAST_VARIANCE
        return variances

    def _log_std(self) -> Array:
        return self.log_std.detach().cpu().numpy()
