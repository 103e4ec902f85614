"""Several critics as one network, with batched matrices: all members together cost one call per layer."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rl_training.models.mlp import ACTIVATIONS, ActivationName

NORM_EPS = 1e-5
"""Added to the variance in layer normalization."""


class EnsembleMLP(nn.Module):
    """`num_members` networks of the given layer sizes; features and actions, [B, D] together, to values [M, B].

    The members are initialised independently, with torch's uniform default. The last size must be 1. With
    `layer_norm` the inputs of every activation are normalized.
    """

    def __init__(
        self,
        num_members: int,
        sizes: Sequence[int],
        activation: ActivationName,
        *,
        layer_norm: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if num_members < 1 or sizes[-1] != 1 or min(sizes) < 1:
            raise ValueError(
                f"sizes must be positive and end with 1, got {num_members} networks of {list(sizes)}"
            )
        self.num_members = num_members
        self.activation = ACTIVATIONS[activation]()
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            bound = fan_in**-0.5
            weight = torch.empty(num_members, fan_in, fan_out)
            bias = torch.empty(num_members, 1, fan_out)
            for member in range(num_members):  # member by member, as separate networks would draw
                nn.init.uniform_(weight[member], -bound, bound, generator=generator)
                nn.init.uniform_(bias[member], -bound, bound, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))
        normalized = sizes[1:-1] if layer_norm else ()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(num_members, 1, size)) for size in normalized)
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(num_members, 1, size)) for size in normalized)

    def forward(self, features: Tensor, actions: Tensor, members: int | None = None) -> Tensor:
        """Return values [M, B], or only those of the first `members`."""
        layers = list(zip(self.weights, self.biases, strict=True))
        if members is not None:
            layers = [(weight[:members], bias[:members]) for weight, bias in layers]
        *hidden, (last_weight, last_bias) = layers
        pairs = torch.cat([features, actions], dim=-1)
        x = pairs.expand(len(last_weight), *pairs.shape)
        for number, (weight, bias) in enumerate(hidden):
            x = torch.baddbmm(bias, x, weight)
            if self.scales:
                x = nn.functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
                x = torch.addcmul(self.shifts[number][:members], x, self.scales[number][:members])
            x = self.activation(x)
        # one output: a matrix product with a single column takes six times as long
        outputs: Tensor = (x * last_weight.transpose(1, 2)).sum(-1) + last_bias[:, :, 0]
        return outputs
