"""The base of SAC, TD3, IQL and AWAC: an ensemble of critics for observations and actions, and target networks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.components import Actor
from rl_training.algorithms.learner import named_path, refuse_autograd
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.off_policy import BatchConfig, OffPolicyLearner, ReplayConfig
from rl_training.algorithms.optimizers import FlatAdam
from rl_training.algorithms.target_networks import TargetNetwork
from rl_training.config import UpdatePath
from rl_training.core.spaces.layout import float_dtype
from rl_training.core.types import Numbers
from rl_training.data.replay_buffer import Transitions
from rl_training.models.autograd_network import AutogradCritics, AutogradNetwork
from rl_training.models.encoded_network import Encoded, layers_after_encoder
from rl_training.models.ensemble import EnsembleMLP
from rl_training.models.fast.backend import TorchBackend, fast_backend
from rl_training.models.fast.networks import ExplicitCritics, ExplicitMLP, explicit_critics, explicit_mlp
from rl_training.policies.actor import ActorPolicy
from rl_training.policies.continuous import ContinuousPolicy


@dataclass(frozen=True, kw_only=True)
class CriticsConfig(BatchConfig):
    """Settings of every learner with an actor and critics for continuous actions."""

    tau: float = 0.005
    """Fraction by which the target networks move towards the online networks at each update."""
    num_critics: int = 2
    """Number of critics, batched as one network; the target is their minimum."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the critics' hidden layers; by default hidden_sizes."""
    critic_layer_norm: bool = False
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450), which limits how far values of
    actions that the data lacks are overestimated."""
    share_encoder: bool | None = None
    """Let the actor use the critics' encoder, which is then trained by their loss only; otherwise each has its own.
    None shares it for images."""

    def problems(self, num_envs: int) -> list[str]:
        found = [*super().problems(num_envs), *self.not_positive("tau"), *self.outside("tau", 0, 1)]
        if self.critic_hidden_sizes is not None:
            found += self.bad_sizes("critic_hidden_sizes")
        return found


@dataclass(frozen=True, kw_only=True)
class ContinuousConfig(CriticsConfig, ReplayConfig):
    """Settings of every algorithm that also collects the transitions that it learns from."""


class ContinuousLearner(OffPolicyLearner):
    """Actor, critics, their optimizers and the target critics.

    A shared encoder belongs to the critics; the actor's loss does not train it.
    """

    actor_run: ExplicitMLP | AutogradNetwork
    critics_run: ExplicitCritics | AutogradCritics
    target_run: Callable[[Any, Any], Numbers]
    _actor_outputs: Callable[[], Numbers]

    def __init__(
        self,
        config: CriticsConfig,
        actor: Actor[ContinuousPolicy | ActorPolicy],
        *,
        generator: torch.Generator,
        noise_rng: np.random.Generator,
        losses: Mapping[str, Loss],
        update_path: UpdatePath = "auto",
    ) -> None:
        super().__init__(config, actor)
        self.losses = losses
        self.action_size = actor.policy.action_size
        self.noise_rng = noise_rng
        self.critics = build_critics(config, actor.policy, generator)
        encoded = actor.policy.encoding.encoder is not None
        shared = encoded and actor.policy.encoding.shared
        self.actor_layers = layers_after_encoder(actor.policy.network) if shared else actor.policy.network
        own = actor.policy.head_parameters
        self.actor_optimizer = FlatAdam([*self.actor_layers.parameters(), *own], eps=1e-8)
        places = [self.actor_optimizer.gradient_of(parameter) for parameter in own]
        self._head_gradients: list[Tensor] = [place for place in places if place is not None]
        self.critic_optimizer = FlatAdam(self.critics.parameters(), eps=1e-8)
        self.target_critics = TargetNetwork(self.critics, self.critic_optimizer.flat)
        path = self._build_runs(actor.policy.network, autograd=update_path == "autograd")
        self.update_path = named_path(path, losses)
        refuse_autograd(update_path, path, losses, actor.policy)
        self.networks_with_modes = (actor.policy.network, self.critics) if encoded else ()
        self.owners = {
            **self.owners,
            # a shared encoder is saved with the model
            "critics/online": layers_after_encoder(self.critics) if shared else self.critics,
            "critics/target": self.target_critics,
            "optimizer/actor": self.actor_optimizer,
            "optimizer/critics": self.critic_optimizer,
            "learner/noise_rng": noise_rng,
        }

    def _build_runs(self, network: nn.Module, *, autograd: bool) -> str:
        """Select how all networks run: hand-written if `models.fast` supports all of them, otherwise autograd."""
        fast = fast_backend(self.device)
        by_actor, by_critics = self.actor_optimizer.gradient_of, self.critic_optimizer.gradient_of
        actor = explicit_mlp(network, by_actor, fast)
        critics = explicit_critics(self.critics, by_critics, fast)
        target = explicit_critics(self.target_critics.network, None, fast)
        if actor and critics and target and not autograd:
            self.backend = fast
            self.actor_run, self.critics_run, self.target_run = actor, critics, target
            return "explicit"
        self.backend = TorchBackend(self.device)
        self.actor_run = AutogradNetwork(network, self.actor_layers.parameters(), by_actor)
        self.critics_run = AutogradCritics(self.critics, self.critics.parameters(), by_critics)
        self.target_run = self.target_critics.network
        return "autograd"

    def next_actor_outputs(self, rows: Transitions) -> Numbers:
        """Return the actor's outputs for the next observations, without gradients.

        Without shards one pass computes those that `actor_outputs` returns, too. With shards, the passes of other
        shards come in between.
        """
        if self.shards.count == 1:
            self._actor_outputs, next_outputs = self.actor_run.forward_both(rows.obs, rows.next_obs)
            return next_outputs
        with torch.no_grad():
            return self.actor_run.forward(rows.next_obs)

    def actor_outputs(self, rows: Transitions) -> Numbers:
        """Return the actor's outputs for the observations; `next_actor_outputs` comes first."""
        return self._actor_outputs() if self.shards.count == 1 else self.actor_run.forward(rows.obs)

    def backward_actor(self, by_outputs: Numbers, *by_head: Numbers) -> None:
        """Write the gradients of the actor, given those of its network's outputs and of the head's parameters."""
        self.actor_run.backward(by_outputs)
        for place, gradient in zip(self._head_gradients, by_head, strict=True):
            place.copy_(torch.as_tensor(gradient))

    def draw_noise(self, *shape: int) -> Numbers:
        """Return standard normal numbers of a shape, in the backend."""
        return self.backend.from_numpy(self.noise_rng.standard_normal(shape, dtype=float_dtype()))


def build_critics(
    config: CriticsConfig, policy: ContinuousPolicy | ActorPolicy, generator: torch.Generator
) -> nn.Module:
    """Return the critics: inputs and actions [B, ...] to values [M, B]."""
    encoder = None
    if isinstance(policy.network, Encoded):
        encoder = policy.network.encoder if policy.encoding.shared else policy.new_encoder(generator)
    widths = config.hidden_sizes if config.critic_hidden_sizes is None else config.critic_hidden_sizes
    sizes = (policy.features_size(encoder) + policy.action_size, *widths, 1)
    ensemble = EnsembleMLP(
        config.num_critics,
        sizes,
        config.activation,
        layer_norm=config.critic_layer_norm,
        generator=generator,
    )
    return (ensemble if encoder is None else Encoded(encoder, ensemble)).to(policy.device)
