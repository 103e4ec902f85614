"""Initial weights, drawn from an explicit generator."""

import torch
from torch import nn


def init_linear(layer: nn.Linear, gain: float, orthogonal: bool, generator: torch.Generator) -> nn.Linear:
    """Initialise in place and return `layer`: orthogonal with zero bias, or torch's uniform default."""
    if orthogonal:
        nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
        nn.init.zeros_(layer.bias)
    else:
        bound = layer.in_features**-0.5
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
