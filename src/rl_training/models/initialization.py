"""Initial weights, drawn from an explicit generator."""

import torch
from torch import nn


def make_linear(
    fan_in: int,
    fan_out: int,
    gain: float,
    *,
    orthogonal: bool,
    generator: torch.Generator,
    kind: type[nn.Linear] = nn.Linear,
) -> nn.Linear:
    """Return a layer with orthogonal weights and zero bias, or with torch's uniform default.

    The layer's own initialisation is skipped, as it would use the global generator.
    """
    layer = nn.utils.skip_init(kind, fan_in, fan_out)  # type: ignore[no-untyped-call]  # torch
    assert isinstance(layer, nn.Linear)
    if orthogonal:
        nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
        nn.init.zeros_(layer.bias)
    else:
        bound = layer.in_features**-0.5
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def make_orthogonal(module: nn.Module, gain: float, generator: torch.Generator) -> None:
    """Give all convolutions and linear layers of a module orthogonal weights and zero bias, in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
