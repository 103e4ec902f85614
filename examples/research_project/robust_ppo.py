"""The algorithm: PPO whose value loss is a Huber loss, with one setting more than PPO."""

from dataclasses import dataclass

from torch.nn import functional

from rl_training import PPO
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.ppo import PPOConfig, ppo_loss


@dataclass(frozen=True, kw_only=True)
class RobustPPOConfig(PPOConfig):
    huber_delta: float = 1.0
    """Error of a value above which its loss grows linearly instead of quadratically."""

    def problems(self, num_envs):
        return [*super().problems(num_envs), *self.not_positive("huber_delta")]


def robust_loss(minibatch, *, huber_delta, vf_coef, **settings):
    """PPO's loss with a Huber value loss; twice the usual one, so that small errors count as in PPO."""
    parts = ppo_loss(minibatch, vf_coef=0.0, **settings)
    value_loss = 2 * functional.huber_loss(minibatch["new_values"], minibatch["returns"], delta=huber_delta)
    return parts | {"value_loss": value_loss, "loss": parts["loss"] + vf_coef * value_loss}


class RobustPPO(PPO):
    config_class = RobustPPOConfig

    @staticmethod
    def losses(settings):
        def loss(minibatch, **others):
            return robust_loss(minibatch, huber_delta=settings.huber_delta, **others)

        return {"loss": Loss(loss)}
