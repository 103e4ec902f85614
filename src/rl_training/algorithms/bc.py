"""Behavioural cloning: imitates the actions of a dataset. Config, loss, learner and algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self, Unpack

import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.learner import named_path, refuse_autograd
from rl_training.algorithms.losses import Loss, named_parts
from rl_training.algorithms.off_policy import BatchConfig, OffPolicyLearner, dataset_source
from rl_training.algorithms.optimizers import FlatAdam
from rl_training.algorithms.recorded_actions import RecordedActions
from rl_training.config import UpdatePath
from rl_training.core.seeding import ACTIONS, numpy_generator
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.dataset_source import DatasetSource
from rl_training.data.replay_buffer import Transitions
from rl_training.models.autograd_network import AutogradNetwork, Backprop
from rl_training.models.fast.backend import Backend, TorchBackend, fast_backend
from rl_training.models.fast.networks import explicit_outputs
from rl_training.policies.actor import ActorPolicy, SamplingExplorer

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import BCKeywords, ConfigOrEnv


@dataclass(frozen=True, kw_only=True)
class BCConfig(BatchConfig):
    """Settings of behavioural cloning."""

    needs_dataset: ClassVar[bool] = True

    imitation: Literal["mean", "distribution"] = "mean"
    """What imitates continuous actions: mean, by least squares; distribution, by maximum likelihood of a normal whose
    deviation is learned. Discrete actions are always imitated by maximum likelihood."""


def bc_loss(minibatch: Mapping[str, Tensor]) -> Tensor:
    """Return mean(mismatch): the squared distance of mean and action, or minus the log-probability, [B]. Pure."""
    return minibatch["mismatch"].mean()


def bc_gradient(minibatch: Mapping[str, Numbers], *, backend: Backend) -> tuple[StepMetrics, Numbers]:
    """Return the result of `bc_loss`, and its gradient with respect to `mismatch`."""
    mismatch = minibatch["mismatch"]
    return {"loss": mismatch.mean()}, backend.xp.full_like(mismatch, 1.0 / len(mismatch))


BC_LOSS = Loss(bc_loss, bc_gradient, of="607033e6affc")


class BCLearner(OffPolicyLearner):
    """The update rule: one step on the loss of a batch of recorded actions."""

    def __init__(
        self,
        config: BCConfig,
        actor: Actor[ActorPolicy],
        *,
        loss: Loss | None = None,
        update_path: UpdatePath = "auto",
    ) -> None:
        super().__init__(config, actor)
        self.policy, self.loss = actor.policy, loss or BC_LOSS.current()
        self.by_distance = self.policy.continuous and config.imitation == "mean"
        self.optimizer = FlatAdam(self.policy.parameters(), eps=1e-8)
        own = [self.optimizer.gradient_of(parameter) for parameter in self.policy.head_parameters]
        self._head_gradients = [place for place in own if place is not None]
        path = self._select_run(autograd=update_path == "autograd")
        losses = {"loss": self.loss}
        self.update_path = named_path(path, losses)
        refuse_autograd(update_path, path, losses, self.policy)
        encoded = self.policy.encoding.encoder is not None
        self.networks_with_modes = (self.policy.network,) if encoded and path == "autograd" else ()
        self.owners = {**self.owners, "optimizer/actor": self.optimizer}

    def _select_run(self, *, autograd: bool) -> str:
        """Select how the network runs: hand-written if `models.fast` knows it and its head, otherwise autograd."""
        network, gradient_of = self.policy.network, self.optimizer.gradient_of
        self.backend: Backend = fast_backend(self.device)
        self.recorded = RecordedActions(self.policy, self.backend, autograd=autograd)
        known = explicit_outputs(network, gradient_of, self.backend) if self.recorded.by_hand else None
        if known is not None:
            self.run: Backprop = known
            return "explicit"
        self.backend = TorchBackend(self.device)
        self.recorded = RecordedActions(self.policy, self.backend, autograd=True)
        self.run = AutogradNetwork(network, network.parameters(), gradient_of)
        return "autograd"

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[StepMetrics, Numbers | None]:
        outputs = self.run.forward(rows.obs)
        if self.by_distance:
            mismatch, back = self.recorded.distances(outputs, rows.actions)
        else:
            logprobs, back = self.recorded.log_probs(outputs, rows.actions)
            mismatch = -logprobs
        parts, (by_mismatch,) = self.loss.differentiate({"mismatch": mismatch}, ("mismatch",), self.backend)
        by_outputs, *by_head = back(by_mismatch if self.by_distance else -by_mismatch)
        self.run.backward(by_outputs)
        for place, gradient in zip(
            self._head_gradients, by_head, strict=False
        ):  # least squares trains no deviation
            place.copy_(torch.as_tensor(gradient))
        norm = self.optimizer.descend(learning_rate)
        return {**named_parts("loss", parts), "grad_norm": norm}, None


class BC(Algorithm):
    """Behavioural cloning: `BC(dataset="path").learn(total_updates=10_000)`."""

    name = "bc"
    config_class = BCConfig
    action_spaces = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
    loss = staticmethod(bc_loss)
    loss_gradient = staticmethod(bc_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[BCKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[BCKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: BCConfig) -> dict[str, Loss]:
        return {"loss": BC_LOSS}

    @staticmethod
    def build_actor(settings: BCConfig, context: BuildContext) -> Actor[ActorPolicy]:
        """Return the policy; the explorer samples from it."""
        policy = ActorPolicy(
            context.spec,
            hidden_sizes=settings.hidden_sizes,
            activation=settings.activation,
            encoding=context.encoding(settings),
            normalize_obs=context.normalize_obs,
            generator=context.weights,
        ).to(context.device)
        return Actor(policy, SamplingExplorer(policy, numpy_generator(context.seed, ACTIONS)))

    @staticmethod
    def build_source(settings: BCConfig, context: BuildContext, actor: Actor[ActorPolicy]) -> DatasetSource:
        """Return batches of the dataset."""
        return dataset_source(settings, context, actor, gamma=1.0)

    @staticmethod
    def build_learner(settings: BCConfig, context: BuildContext, actor: Actor[ActorPolicy]) -> BCLearner:
        loss = context.loss("loss", BC_LOSS)
        return BCLearner(settings, actor, loss=loss, update_path=context.update_path)
