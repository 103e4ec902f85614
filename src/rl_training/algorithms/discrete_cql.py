"""Conservative Q-learning for discrete actions, arXiv:2006.04779: DQN's loss and the conservative term."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.conservative import conservative_gap, conservative_gap_gradient
from rl_training.algorithms.learner import named_path, refuse_autograd
from rl_training.algorithms.losses import Loss, named_parts
from rl_training.algorithms.off_policy import OffPolicyLearner
from rl_training.algorithms.optimizers import FlatAdam
from rl_training.algorithms.q_objective import QObjective, td_gradient, td_loss
from rl_training.algorithms.target_networks import TargetNetwork
from rl_training.config import UpdatePath
from rl_training.core.seeding import ACTIONS, numpy_generator
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.replay_buffer import Transitions
from rl_training.models.fast.backend import Backend
from rl_training.policies.explorers import EpsilonGreedyExplorer
from rl_training.policies.q_policy import QPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.cql import CQLConfig

EXPLORATION = 0.05
"""Probability of a random action, for an agent that learns on in an environment."""
NO_NOISE: Any = (None, None, None)


def conservative_q_loss(minibatch: Mapping[str, Any], *, alpha: float) -> dict[str, Tensor]:
    """Return the mean of Huber losses + alpha * mean(gap), and both parts. Pure.

    `minibatch` maps to `all_values` [B, A] of all actions, `values` [B] of the recorded ones, and `targets` [B]. The
    gap is logsumexp(all values) - value: lowering it lowers the values of actions that the data lacks.
    """
    found = td_loss({"values": minibatch["values"], "targets": minibatch["targets"]}, huber=True)
    gap = conservative_gap(minibatch["all_values"], minibatch["values"]).mean()
    return {"loss": found["loss"] + alpha * gap, "td_loss": found["loss"], "conservative_gap": gap}


def conservative_q_gradient(
    minibatch: Mapping[str, Numbers], *, alpha: float, backend: Backend
) -> tuple[StepMetrics, Numbers, Numbers]:
    """Return the result of `conservative_q_loss`, and its gradients with respect to `values` and `all_values`.

    It replaces autograd while the loss is the one above; tests/unit/algorithms/test_continuous_losses.py compares both.
    """
    values = minibatch["values"]
    columns = {"values": values, "targets": minibatch["targets"], "weights": None}
    found, by_values = td_gradient(columns, huber=True, backend=backend)
    gaps, by_all = conservative_gap_gradient(minibatch["all_values"], values, backend=backend)
    share = alpha / len(values)
    gap = gaps.sum() / len(values)
    parts = {"loss": found["loss"] + alpha * gap, "td_loss": found["loss"], "conservative_gap": gap}
    return parts, by_values - share, by_all * share


DISCRETE_CQL_LOSS = Loss(conservative_q_loss, conservative_q_gradient, of="443fb9dacdea")


class ConservativeObjective(QObjective):
    """DQN's objective, with a loss that also reads the values of all actions [B, A]."""

    def __init__(self, *arguments: Any, alpha: float, **settings: Any) -> None:
        super().__init__(*arguments, **settings, huber=True)
        self._settings: dict[str, Any] = {"alpha": alpha}

    def _gradient_of_values(
        self, outputs: Numbers, targets: Numbers, rows: Transitions
    ) -> tuple[StepMetrics, Numbers]:
        place = self.backend.arange(len(outputs)), rows.actions
        columns = {"values": outputs[place], "all_values": outputs, "targets": targets}
        parts, (by_values, gradient) = self.loss.differentiate(
            columns, ("values", "all_values"), self.backend, **self._settings
        )
        gradient[place] += by_values
        return parts, gradient

    def _gradient_of_outputs(
        self, outputs: Numbers, next_outputs: Tensor, rows: Transitions
    ) -> tuple[StepMetrics, Numbers]:
        targets = rows.rewards + rows.discounts * next_outputs[:, 0]
        parts, gradient = self._gradient_of_values(outputs.view(len(outputs), -1), targets, rows)
        return parts, gradient.view(outputs.shape)


class DiscreteCQLLearner(OffPolicyLearner):
    """The update rule: one step towards double DQN's targets and a smaller gap, then the target network."""

    def __init__(
        self,
        config: "CQLConfig",
        actor: Actor[QPolicy],
        *,
        alpha: float,
        loss: Loss | None = None,
        update_path: UpdatePath = "auto",
    ) -> None:
        super().__init__(config, actor)
        self.policy, self.tau = actor.policy, config.tau
        network = actor.policy.network
        self.optimizer = FlatAdam(network.parameters(), eps=1e-8)
        self.target = TargetNetwork(network, self.optimizer.flat)
        self.objective = ConservativeObjective(
            actor.policy,
            self.target.network,
            self.optimizer.gradient_of,
            double=True,
            alpha=alpha,
            loss=loss or DISCRETE_CQL_LOSS.current(),
            autograd=update_path == "autograd",
        )
        self.backend, losses = self.objective.backend, {"critic_loss": self.objective.loss}
        self.update_path = named_path(self.objective.path, losses)
        refuse_autograd(update_path, self.objective.path, losses, actor.policy)
        by_hand = self.objective.path != "autograd"
        self.networks_with_modes = () if actor.policy.encoding.encoder is None or by_hand else (network,)
        self.owners = {**self.owners, "target": self.target, "optimizer": self.optimizer}

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[StepMetrics, Numbers | None]:
        parts, gradient = self.objective.forward(rows, NO_NOISE)
        self.objective.backward(gradient)
        norm = self.optimizer.descend(learning_rate)
        self.target.follow(self.tau)
        return {**named_parts("critic_loss", parts), "grad_norm": norm}, None


def build_discrete_actor(settings: "CQLConfig", context: BuildContext) -> Actor[QPolicy]:
    """Return a policy with one value per action, and an explorer with few random actions."""
    arguments = context.policy_settings(settings)
    policy = QPolicy(context.spec, **arguments).to(context.device)
    explorer = EpsilonGreedyExplorer(
        policy,
        numpy_generator(context.seed, ACTIONS),
        initial=EXPLORATION,
        final=EXPLORATION,
        fraction=1.0,
        learning_starts=settings.learning_starts,
    )
    return Actor(policy, explorer)
