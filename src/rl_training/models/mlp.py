"""Multilayer perceptrons: the actor-critic pair that PPO and A2C share."""

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
    "relu": partial(
        nn.ReLU, inplace=True
    ),  # it follows a linear layer, which does not need its own output again
    "elu": nn.ELU,
    "silu": nn.SiLU,
}
HIDDEN_GAIN = 2**0.5


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
    sizes: Sequence[int], activation: ActivationName, *, generator: torch.Generator
) -> nn.Sequential:
    """Return linear layers of the given sizes with the activation between them, in torch's uniform initialisation.

    What value-based and off-policy methods use: nothing in them asks for orthogonal weights.
    """
    *hidden, last = sizes
    body = mlp(hidden, activation, orthogonal=False, generator=generator)
    return nn.Sequential(*body, make_linear(hidden[-1], last, 1.0, orthogonal=False, generator=generator))


class MLPActorCritic(nn.Module):
    """Maps features [B, input_size] to action parameters [B, action_size] and values [B].

    With `shared` both heads read one body; otherwise actor and critic are two networks. The small gain of the
    actor's last layer makes the first policy nearly uniform.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        activation: ActivationName = "tanh",
        shared: bool = False,
        orthogonal: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if input_size < 1 or action_size < 1:
            raise ValueError(
                f"input_size and action_size must be positive, got {input_size} and {action_size}"
            )
        generator = generator or torch.Generator().manual_seed(0)
        self.activation: ActivationName = activation
        self.shared = shared
        sizes = (input_size, *hidden_sizes)
        self.actor_body = mlp(sizes, activation, orthogonal=orthogonal, generator=generator)
        self.actor_head = make_linear(
            sizes[-1], action_size, 0.01, orthogonal=orthogonal, generator=generator
        )
        # registered under one name only: shared tensors are stored once in a checkpoint
        self.critic_body = (
            None if shared else mlp(sizes, activation, orthogonal=orthogonal, generator=generator)
        )
        self.critic_head = make_linear(sizes[-1], 1, 1.0, orthogonal=orthogonal, generator=generator)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return action parameters [B, action_size] and values [B]."""
        actor = self.actor_body(features)
        critic = actor if self.critic_body is None else self.critic_body(features)
        return self.actor_head(actor), self.critic_head(critic).squeeze(-1)
