"""MAPPO, arXiv:2103.01955: PPO of several agents whose critic reads more than each of them sees.

The update rule is PPO's. What the critic reads comes from the environment, as `EnvSpec.critic_space`: the state of a
game, the observations of all its agents, or the entries that `critic_obs` names. Actors read only their own
observations, so acting needs nothing else.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self, Unpack

from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.on_policy import ActorCriticConfig, build_actor_critic
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.core.errors import UserError
from rl_training.policies.actor_critic import ActorCriticPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, MAPPOKeywords


@dataclass(frozen=True, kw_only=True)
class MAPPOConfig(PPOConfig):
    """Settings of MAPPO: those of PPO, and what the critic reads.

    The defaults of learning_rate, ent_coef and max_grad_norm are the paper's, which also advises few epochs and large
    minibatches. Unlike there, neither values nor value losses are normalized or clipped; normalize_reward scales both.
    """

    central_critic: ClassVar[bool] = True

    critic_input: Literal["auto", "state", "observations"] = "auto"
    """What the critic of a game reads besides an agent's own observation: state, which is that of the game;
    observations, those of all agents side by side; auto uses the state if the game has one."""
    learning_rate: float = 5e-4
    """Learning rate at the start."""
    batch_size: int = 128
    """Minibatch size; at most num_steps * num_envs, times the agents of a game that share the policy."""
    update_epochs: int = 5
    """Number of epochs over each rollout."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 10.0
    """Maximum norm of the gradient; larger gradients are scaled down."""

    def critic_problems(self, algo: str) -> list[str]:
        if self.critic_input == "auto":
            return []
        named = f"critic_input is {self.critic_input}, but critic_obs names what the critic reads"
        return [f"{named}; leave one of them out"]

    def problems(self, num_envs: int) -> list[str]:
        return [*super().problems(num_envs), *self.sharing_problems()]


class MAPPO(PPO):
    """MAPPO, for games with several agents: `MAPPO("pettingzoo://mpe2/simple_spread_v3").learn()`."""

    name = "mappo"
    config_class = MAPPOConfig
    needs_critic_space = True

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[MAPPOKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[MAPPOKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def build_actor(settings: ActorCriticConfig, context: BuildContext) -> Actor[ActorCriticPolicy]:
        """Return PPO's actor; raise if there is nothing that only the critic reads."""
        if context.spec.critic_space is None:
            raise UserError(
                "mappo needs a game with several agents, or critic_obs, as its critic reads more than an actor; use ppo"
            )
        return build_actor_critic(settings, context)
