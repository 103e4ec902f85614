"""The recurrent actor-critic network."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.types import Array
from rl_training.models.cores import CoreName, IdentityCore, Memory, RecurrentCore
from rl_training.models.heads import ActionHead, CategoricalHead
from rl_training.models.initialization import make_linear
from rl_training.models.mlp import ActivationName, MakeLinear, MLPActorCritic


class LSTMActorCritic(nn.Module):
    """Features through an LSTM or GRU to action parameters and values.

    Actor and critic share one core, or have one each. The state is a tuple of parts [B, size] with the given
    `memory_sizes`, those of the actor's core first.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_sizes: Sequence[int] = (64,),
        *,
        core: CoreName | None = "lstm",
        core_size: int = 64,
        core_layers: int = 1,
        share_core: bool = True,
        critic_sizes: Sequence[int] | None = None,
        critic_input_size: int | None = None,
        activation: ActivationName = "tanh",
        shared: bool = False,
        orthogonal: bool = True,
        generator: torch.Generator | None = None,
        make_last: MakeLinear = make_linear,
    ) -> None:
        """`core` None means no recurrence; `make_last` builds the actor's last layer.

        The critic may read `critic_input_size` features, which needs a core of its own.
        """
        super().__init__()
        if input_size < 1 or action_size < 1:
            raise ValueError(
                f"input_size and action_size must be positive, got {input_size} and {action_size}"
            )
        if share_core and critic_input_size is not None:
            raise ValueError("critic_input_size is given, but share_core is true; leave one of them out")
        generator = generator or torch.Generator().manual_seed(0)
        make: Callable[[int], RecurrentCore | IdentityCore] = IdentityCore
        if core is not None:
            sizes = {"size": core_size, "num_layers": core_layers}
            make = partial(RecurrentCore, core, **sizes, orthogonal=orthogonal, generator=generator)
        critic_input = input_size if critic_input_size is None else critic_input_size
        self.core = make(input_size)
        self.critic_core = None if share_core else make(critic_input)
        same_size = self.critic_core is None or self.critic_core.size == self.core.size
        self.network = MLPActorCritic(
            self.core.size,
            action_size,
            hidden_sizes,
            critic_sizes=critic_sizes,
            critic_input_size=None if same_size else critic_input,
            activation=activation,
            shared=shared,
            orthogonal=orthogonal,
            generator=generator,
            make_last=make_last,
        )

    @property
    def memory_sizes(self) -> tuple[int, ...]:
        return self.core.memory_sizes + (() if self.critic_core is None else self.critic_core.memory_sizes)

    def initial_state(self, rows: int) -> Memory:
        """Return the state at the beginning of an episode."""
        return tuple(torch.zeros(rows, size) for size in self.memory_sizes)

    def forward(
        self, features: Tensor, critic_features: Tensor | None = None, *, memory: Memory, starts: Tensor
    ) -> tuple[Tensor, Tensor, Memory]:
        """Return action parameters [L * B, A], values [L * B] and the state after the last step.

        Features [L * B, D] and `starts` [L * B] are in time order; `memory` [B, ...] is the first state.
        """
        read, after = self.core_outputs(features, critic_features, memory=memory, starts=starts)
        return *self.network(*read), after

    def core_outputs(
        self, features: Tensor, critic_features: Tensor | None = None, *, memory: Memory, starts: Tensor
    ) -> tuple[tuple[Tensor, ...], Memory]:
        """Return the outputs of the cores, one tensor [L * B, H] or one each, and the state after the last step."""
        own = len(self.core.memory_sizes)
        actor, after = self.core(features, memory[:own], starts)
        if self.critic_core is None:
            return (actor,), after
        critic, critic_after = self.critic_core(
            features if critic_features is None else critic_features, memory[own:], starts
        )
        return (actor, critic), after + critic_after

    def params(self, features: Tensor, *, memory: Memory, starts: Tensor) -> tuple[Tensor, Memory]:
        """Return action parameters [L * B, A] alone, and the state, in which that of the critic is as before."""
        own = len(self.core.memory_sizes)
        read, after = self.core(features, memory[:own], starts)
        return self.network.params(read), after + memory[own:]

    @torch.no_grad()
    def act(
        self,
        features: Tensor,
        memory: Memory | None = None,
        starts: Tensor | None = None,
        *,
        head: ActionHead | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Array, Tensor, Array, Memory]:
        """Return actions, values and log-probabilities [B] for one step, and the next state.

        Without a `head` the actions are discrete.
        """
        rows = len(features)
        memory = self.initial_state(rows) if memory is None else memory
        starts = torch.zeros(rows, dtype=torch.bool) if starts is None else starts
        params, values, after = self(features, memory=memory, starts=starts)
        head = head or CategoricalHead(params.shape[1])
        actions, logprobs = head.sample(params.cpu().numpy(), rng or np.random.default_rng())
        return actions, values, logprobs, after
