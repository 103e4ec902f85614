"""Running statistics of observations and returns. They are part of the model and saved with it."""

import torch
from torch import Tensor, nn

from rl_training.core.types import Array


class RunningMoments(nn.Module):
    """Running mean and variance of rows [B, D], in float64, merged batch by batch (Chan et al. 1979)."""

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))

    def update(self, batch: Tensor) -> None:
        if len(batch) == 0:
            return
        batch = batch.to(self.mean)  # type and device
        var, mean = torch.var_mean(batch, dim=0, correction=0)
        total = self.count + len(batch)
        delta = mean - self.mean
        merged = (
            self.var * self.count + var * len(batch) + delta.square() * self.count * len(batch) / total
        ) / total
        self.mean += delta * len(batch) / total
        self.var.copy_(merged)
        self.count.copy_(total)


class ObservationNormalizer(nn.Module):
    """Normalises continuous features [B, D] to zero mean and unit variance and clips them; others stay unchanged.

    Statistics change only in `update`. On-policy learners call it after training on a rollout, so that acting and
    learning use the same statistics; off-policy, every new observation updates them. Evaluation does not.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, continuous: Tensor, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.moments = RunningMoments(len(continuous))
        self.clip, self.epsilon = clip, epsilon
        self.register_buffer("continuous", continuous, persistent=False)
        self.register_buffer("shift", torch.zeros(len(continuous)), persistent=False)
        self.register_buffer("scale", torch.ones(len(continuous)), persistent=False)
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            lambda module, keys: module._refresh()
        )

    def update(self, features: Tensor) -> None:
        self.moments.update(features)
        self._refresh()

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.shift) * self.scale).clamp(-self.clip, self.clip)

    def forward_numpy(self, features: Array) -> Array:
        """Like `forward`, in NumPy on views of the same statistics."""
        normalized: Array = features - self.shift.numpy()
        normalized *= self.scale.numpy()
        return normalized.clip(-self.clip, self.clip, out=normalized)

    def _refresh(self) -> None:
        continuous = self.get_buffer("continuous")
        self.shift.copy_(torch.where(continuous, self.moments.mean, 0.0))
        self.scale.copy_(torch.where(continuous, (self.moments.var + self.epsilon).rsqrt(), 1.0))


class RewardNormalizer(nn.Module):
    """Divides rewards by the running deviation of the discounted return and clips them; recorded rewards stay raw."""

    def __init__(self, gamma: float, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.moments = RunningMoments(1)
        self.gamma, self.clip, self.epsilon = gamma, clip, epsilon

    def update(self, rewards: Tensor, dones: Tensor, valid: Tensor, carry: Tensor) -> None:
        """Merge the valid rows of a rollout [T, N]; `carry` [N], the returns so far, is advanced in place."""
        running = torch.empty_like(rewards, dtype=torch.float64)
        for t in range(len(rewards)):
            carry.mul_(self.gamma).add_(rewards[t])
            running[t] = carry
            carry.masked_fill_(dones[t], 0.0)
        self.moments.update(running[valid].reshape(-1, 1))

    def update_own_turns(
        self, rewards: Tensor, dones: Tensor, valid: Tensor, carry: Tensor, unfinished: Tensor
    ) -> None:
        """Merge the returns of own actions, for rows that may wait: what a waiting row is paid is not discounted.

        The return after an own action is complete when the row acts again, or when its episode ends: until then it is
        `unfinished` [N], which is advanced in place, as is `carry`. An episode without an own action has no return.
        """
        complete = []
        for t in range(len(rewards)):
            own, ended = valid[t], dones[t]
            complete.append(carry[unfinished & own])
            carry.copy_(torch.where(own, carry * self.gamma, carry))
            unfinished |= own
            carry += torch.where(unfinished, rewards[t], 0.0)
            complete.append(carry[unfinished & ended])
            carry.masked_fill_(ended, 0.0)
            unfinished &= ~ended
        self.moments.update(torch.cat(complete).reshape(-1, 1))

    def forward(self, rewards: Tensor) -> Tensor:
        scale = (self.moments.var + self.epsilon).rsqrt().to(rewards)
        return (rewards * scale).clamp(-self.clip, self.clip)
