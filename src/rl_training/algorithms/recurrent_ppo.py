"""PPO with an LSTM or GRU between encoder and heads, trained on sequences. The update rule is PPO's."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self, Unpack

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.on_policy import build_rollouts, exploration_matrices, policy_settings
from rl_training.algorithms.ppo import PPO, PPOConfig, ppo_gradient, ppo_loss
from rl_training.core.seeding import ACTIONS, numpy_generator
from rl_training.core.spaces.layout import ANY_ACTION
from rl_training.data.recurrent_rollout_buffer import RecurrentRolloutBuffer
from rl_training.data.sources import RolloutSource
from rl_training.models.cores import CoreName
from rl_training.policies.recurrent import RecurrentExplorer, RecurrentPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, RecurrentPPOKeywords


@dataclass(frozen=True, kw_only=True)
class RecurrentPPOConfig(PPOConfig):
    """Settings of RecurrentPPO: those of PPO and of the recurrent core."""

    has_memory: ClassVar[bool] = True

    core: CoreName = "lstm"
    """Recurrent core between encoder and hidden layers."""
    core_size: int = 64
    """Size of the hidden state of each recurrent layer; an lstm also has a cell state of this size."""
    core_layers: int = 1
    """Number of recurrent layers."""
    share_core: bool = False
    """Share one core between actor and critic, which is faster, but the value loss can dominate."""
    sequence_length: int = 16
    """Steps of backpropagation through time; must divide num_steps and batch_size."""
    hidden_sizes: tuple[int, ...] = (64,)
    """Widths of the hidden layers after the core."""

    def sharing_problems(self) -> list[str]:
        shared = ["share_core is true, but the critic reads more than the actor; set it to false"]
        return super().sharing_problems() + (shared if self.share_core else [])

    def problems(self, num_envs: int) -> list[str]:
        found = [
            *super().problems(num_envs),
            *self.outside("core_size", 1, 2**14),
            *self.outside("core_layers", 1, 64),
            *self.not_positive("sequence_length"),
        ]
        for name in ("num_steps", "batch_size"):
            if self.sequence_length >= 1 and getattr(self, name) % self.sequence_length:
                found.append(
                    f"{name} is {getattr(self, name)}, which sequence_length {self.sequence_length} does not divide; "
                    "use a multiple of it, or another sequence_length"
                )
        if self.shared_network and not self.share_core:
            found.append("share_core is false, but shared_network is true; a shared network has one core")
        if self.share_core and not self.share_encoder:
            found.append("share_encoder is false, but share_core is true; a shared core reads one encoder")
        return found


class RecurrentPPO(Algorithm):
    """Recurrent PPO: `RecurrentPPO("CartPole-v1").learn()`."""

    name = "recurrent_ppo"
    config_class = RecurrentPPOConfig
    action_spaces = ANY_ACTION
    takes_action_masks = True
    loss = staticmethod(ppo_loss)
    loss_gradient = staticmethod(ppo_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[RecurrentPPOKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[RecurrentPPOKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def build_actor(settings: RecurrentPPOConfig, context: BuildContext) -> Actor[RecurrentPolicy]:
        policy = RecurrentPolicy(
            context.spec,
            core=settings.core,
            core_size=settings.core_size,
            core_layers=settings.core_layers,
            share_core=settings.share_core,
            **policy_settings(settings, context),
        ).to(context.device)
        rng, matrices = numpy_generator(context.seed, ACTIONS), exploration_matrices(settings, policy)
        return Actor(policy, RecurrentExplorer(policy, rng, matrices=matrices))

    @staticmethod
    def build_source(
        settings: RecurrentPPOConfig, context: BuildContext, actor: Actor[RecurrentPolicy]
    ) -> RolloutSource:
        buffer = partial(RecurrentRolloutBuffer.for_spaces, sequence_length=settings.sequence_length)
        return build_rollouts(settings, context, actor, make_buffer=buffer)

    losses = staticmethod(PPO.losses)
    build_learner = staticmethod(PPO.build_learner)
