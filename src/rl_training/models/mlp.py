"""Multilayer perceptrons, and the actor-critic network of PPO and A2C."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from rl_training.models.initialization import make_linear

ActivationName: TypeAlias = Literal["tanh", "relu", "elu", "silu"]
ACTIVATIONS: dict[ActivationName, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    # safe in place: the linear layer before it does not need its output for the backward pass
    "relu": partial(nn.ReLU, inplace=True),
    "elu": nn.ELU,
    "silu": nn.SiLU,
}
HIDDEN_GAIN = 2**0.5
MakeLinear: TypeAlias = Callable[..., nn.Linear]
"""A function with the signature of `make_linear`."""


def mlp(
    sizes: Sequence[int], activation: ActivationName, *, orthogonal: bool, generator: torch.Generator
) -> nn.Sequential:
    """Return linear layers of the given sizes, each followed by the activation."""
    if min(sizes) < 1:
        raise ValueError(f"layer sizes must be positive, got {list(sizes)}")
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [
            make_linear(fan_in, fan_out, HIDDEN_GAIN, orthogonal=orthogonal, generator=generator),
            ACTIVATIONS[activation](),
        ]
    return nn.Sequential(*layers)


def mlp_with_head(
    sizes: Sequence[int],
    activation: ActivationName,
    *,
    generator: torch.Generator,
    make_last: MakeLinear = make_linear,
) -> nn.Sequential:
    """Return linear layers of the given sizes with the activation between them, with torch's uniform initialisation."""
    *hidden, last = sizes
    body = mlp(hidden, activation, orthogonal=False, generator=generator)
    return nn.Sequential(*body, make_last(hidden[-1], last, 1.0, orthogonal=False, generator=generator))


class MLPActorCritic(nn.Module):
    """Maps features [B, input_size] to action parameters [B, action_size] and values [B].

    With `shared` both heads read one body; otherwise actor and critic are two networks, of the same widths unless
    `critic_sizes` are given, and the critic may read other features, `critic_input_size` of them. The small gain of the
    actor's last layer makes the first policy nearly uniform.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        critic_sizes: Sequence[int] | None = None,
        critic_input_size: int | None = None,
        activation: ActivationName = "tanh",
        shared: bool = False,
        orthogonal: bool = True,
        generator: torch.Generator | None = None,
        make_last: MakeLinear = make_linear,
    ) -> None:
        """`make_last` builds the actor's last layer."""
        super().__init__()
        if input_size < 1 or action_size < 1:
            raise ValueError(
                f"input_size and action_size must be positive, got {input_size} and {action_size}"
            )
        if shared and critic_sizes is not None:
            raise ValueError("critic_sizes are given, but shared is true; leave one of them out")
        if shared and critic_input_size is not None:
            raise ValueError("critic_input_size is given, but shared is true; leave one of them out")
        generator = generator or torch.Generator().manual_seed(0)
        layers = partial(mlp, activation=activation, orthogonal=orthogonal, generator=generator)
        actor = (input_size, *hidden_sizes)
        critic = (
            input_size if critic_input_size is None else critic_input_size,
            *(hidden_sizes if critic_sizes is None else critic_sizes),
        )
        self.actor_body = layers(actor)
        self.actor_head = make_last(actor[-1], action_size, 0.01, orthogonal=orthogonal, generator=generator)
        # registered under one name only: shared tensors are stored once in a checkpoint
        self.critic_body = None if shared else layers(critic)
        self.critic_head = make_linear(critic[-1], 1, 1.0, orthogonal=orthogonal, generator=generator)

    def forward(self, features: Tensor, critic_features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return action parameters [B, action_size] and values [B]; the critic may read other features."""
        actor = critic = self.actor_body(features)
        if self.critic_body is not None:
            critic = self.critic_body(features if critic_features is None else critic_features)
        return self.actor_head(actor), self.critic_head(critic).squeeze(-1)

    def params(self, features: Tensor) -> Tensor:
        """Return action parameters [B, action_size] alone."""
        found: Tensor = self.actor_head(self.actor_body(features))
        return found
