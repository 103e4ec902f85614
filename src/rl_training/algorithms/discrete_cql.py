"""Conservative Q-learning for discrete actions: double DQN's targets with CQL's loss of one critic."""

from typing import Any

from torch import Tensor

from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.learner import named_path, refuse_autograd
from rl_training.algorithms.losses import Loss, named_parts
from rl_training.algorithms.off_policy import OffPolicyLearner
from rl_training.algorithms.optimizers import FlatAdam
from rl_training.algorithms.q_objective import QObjective
from rl_training.algorithms.sac import SACUpdateConfig
from rl_training.algorithms.target_networks import TargetNetwork
from rl_training.config import UpdatePath
from rl_training.core.seeding import ACTIONS, numpy_generator
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.replay_buffer import Transitions
from rl_training.policies.explorers import EpsilonGreedyExplorer
from rl_training.policies.q_policy import QPolicy

EXPLORATION = 0.05
"""Probability of a random action where the agent collects."""
NO_NOISE: Any = (None, None, None)


class ConservativeObjective(QObjective):
    """Double DQN's objective with a loss that reads the values of all actions, too: `others` [1, B, A].

    Errors above 1 count linearly, as in DQN. Squared ones are as large as the values where an episode ends; as values
    grow during training, the conservative term would have less and less weight.
    """

    def __init__(self, *arguments: Any, cql_alpha: float, **settings: Any) -> None:
        super().__init__(*arguments, **settings, double=True, huber=False)
        self._settings: dict[str, Any] = {"cql_alpha": cql_alpha, "huber": True}

    def _gradient_of_values(
        self, outputs: Numbers, targets: Numbers, rows: Transitions
    ) -> tuple[StepMetrics, Numbers]:
        place = self.backend.arange(len(outputs)), rows.actions
        columns = {"values": outputs[place][None], "targets": targets, "others": outputs[None]}
        parts, (by_values, by_others) = self.loss.differentiate(
            columns, ("values", "others"), self.backend, **self._settings
        )
        gradient = by_others[0]
        gradient[place] += by_values[0]
        return {**parts, "q_value": outputs[place].sum() / len(outputs)}, gradient

    def _gradient_of_outputs(
        self, outputs: Numbers, next_outputs: Tensor, rows: Transitions
    ) -> tuple[StepMetrics, Numbers]:
        targets = rows.rewards + rows.discounts * next_outputs[:, 0]
        parts, gradient = self._gradient_of_values(outputs.view(len(outputs), -1), targets, rows)
        return parts, gradient.view(outputs.shape)


class DiscreteCQLLearner(OffPolicyLearner):
    """The update rule: one step on CQL's loss, then the target network follows."""

    def __init__(
        self,
        config: SACUpdateConfig,
        actor: Actor[QPolicy],
        *,
        cql_alpha: float,
        loss: Loss,
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
            cql_alpha=cql_alpha,
            loss=loss,
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
        return {**named_parts("critic_loss", parts), "critic_grad_norm": norm}, None


def build_discrete_actor(settings: SACUpdateConfig, context: BuildContext) -> Actor[QPolicy]:
    """Return a policy with one value per action, and an explorer with few random actions."""
    policy = QPolicy(context.spec, **context.policy_settings(settings)).to(context.device)
    explorer = EpsilonGreedyExplorer(
        policy,
        numpy_generator(context.seed, ACTIONS),
        initial=EXPLORATION,
        final=EXPLORATION,
        fraction=1.0,
        learning_starts=0,
    )
    return Actor(policy, explorer)
