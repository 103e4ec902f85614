"""Networks of action values: plain or dueling, with a value, atoms or quantiles per action, optionally noisy."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.initialization import make_linear
from rl_training.models.mlp import ACTIVATIONS, ActivationName, mlp

Noise = tuple[Tensor, Tensor]
"""Noise of one layer: for its inputs [1 or B, I] and its outputs [1 or B, O]."""


class NoisyLinear(nn.Module):
    """A linear layer with random weights of learned deviation, inputs [B, I] to outputs [B, O] (arXiv:1706.10295).

    The noise is factorised: y = W x + b + e_out * (S (e_in * x) + s). The caller draws it; without it, the layer uses
    the mean weights.
    """

    def __init__(self, fan_in: int, fan_out: int, *, sigma: float = 0.5, generator: torch.Generator) -> None:
        super().__init__()
        self.fan_in, self.fan_out = fan_in, fan_out
        bound = fan_in**-0.5
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in))
        self.bias = nn.Parameter(torch.empty(fan_out))
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)
        nn.init.uniform_(self.bias, -bound, bound, generator=generator)
        self.weight_sigma = nn.Parameter(torch.full((fan_out, fan_in), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((fan_out,), sigma * bound))

    def forward(self, x: Tensor, noise: Noise | None) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        if noise is None:
            return y
        inputs, outputs = noise
        return y + outputs * F.linear(x * inputs, self.weight_sigma, self.bias_sigma)


class Stream(nn.Module):
    """The upper part of a value network: one hidden layer, if any, and the output layer."""

    def __init__(
        self, sizes: Sequence[int], activation: ActivationName, *, noisy: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.noisy = noisy
        self.activation = ACTIVATIONS[activation]()
        self.layers = nn.ModuleList(
            NoisyLinear(i, o, generator=generator)
            if noisy
            else make_linear(i, o, 1.0, orthogonal=False, generator=generator)
            for i, o in pairwise(sizes)
        )

    def interleaved(self) -> Iterator[nn.Module]:
        """Yield the layers with the activations between them."""
        for index, layer in enumerate(self.layers):
            if index:
                yield self.activation
            yield layer

    def forward(self, x: Tensor, noise: Sequence[Noise] | None) -> Tensor:
        for index, layer in enumerate(self.layers):
            if index:
                x = self.activation(x)
            x = layer(x, None if noise is None else noise[index]) if self.noisy else layer(x)
        return x


class QNetwork(nn.Module):
    """Maps features [B, D] to [B, num_actions, outputs_per_action].

    All hidden layers but the last are shared; the last one and the outputs form a stream. A dueling network
    (arXiv:1511.06581) has two, for the value of the state and for the advantages, whose mean is subtracted.
    """

    def __init__(
        self,
        input_size: int,
        num_actions: int,
        hidden_sizes: Sequence[int],
        *,
        outputs_per_action: int = 1,
        activation: ActivationName = "relu",
        dueling: bool = False,
        noisy: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if input_size < 1 or num_actions < 1 or outputs_per_action < 1:
            raise ValueError(
                f"sizes must be positive: {input_size} features, {num_actions} actions, {outputs_per_action} outputs"
            )
        self.num_actions, self.outputs_per_action = num_actions, outputs_per_action
        self.activation: ActivationName = activation
        self.noisy = noisy
        shared, upper = (input_size, *hidden_sizes[:-1]), tuple(hidden_sizes[-1:])
        self.body = mlp(shared, activation, orthogonal=False, generator=generator)
        outputs = num_actions * outputs_per_action
        self.advantage = Stream((shared[-1], *upper, outputs), activation, noisy=noisy, generator=generator)
        self.value = (
            Stream((shared[-1], *upper, outputs_per_action), activation, noisy=noisy, generator=generator)
            if dueling
            else None
        )

    def forward(self, features: Tensor, noise: Sequence[Noise] | None = None) -> Tensor:
        """Return the outputs of every action [B, A, K]; `noise` comes from `draw_noise`."""
        x = self.body(features)
        depth = len(self.advantage.layers)
        outputs = self.advantage(x, None if noise is None else noise[:depth])
        advantage: Tensor = outputs.view(-1, self.num_actions, self.outputs_per_action)
        if self.value is None:
            return advantage
        value: Tensor = self.value(x, None if noise is None else noise[depth:])
        return value.unsqueeze(1) + advantage - advantage.mean(dim=1, keepdim=True)

    def draw_noise(self, rng: np.random.Generator, device: torch.device, rows: int = 1) -> list[Noise] | None:
        """Return noise of `rows` rows for every noisy layer; None if the network is not noisy."""
        if not self.noisy:
            return None
        streams = [self.advantage] if self.value is None else [self.advantage, self.value]
        layers = [layer for stream in streams for layer in stream.layers]
        return [
            (_scaled(rng, rows, layer.fan_in).to(device), _scaled(rng, rows, layer.fan_out).to(device))
            for layer in layers
            if isinstance(layer, NoisyLinear)
        ]


def _scaled(rng: np.random.Generator, rows: int, size: int) -> Tensor:
    """Return sign(x) * sqrt(|x|) of standard normal x [rows, size]."""
    x = torch.from_numpy(rng.standard_normal((rows, size))).to(torch.get_default_dtype())
    return x.sign() * x.abs().sqrt()
