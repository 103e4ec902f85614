"""Pure return and advantage estimators."""

from torch import Tensor, add


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    dones: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    out: Tensor,
) -> Tensor:
    """Generalized advantage estimation, arXiv:1506.02438; all [T, ...]; writes and returns `out`.

    A_t = delta_t + gamma * lambda * (1 - done_t) * A_{t+1},  delta_t = r_t + gamma * next_value_t - value_t.
    `next_values` already carries the kind of ending: 0 at a termination, V(true final observation) at a
    truncation. The trace is cut at both, so nothing after an episode's end reaches back before it.
    """
    if not rewards.shape == values.shape == next_values.shape == dones.shape == out.shape:
        raise ValueError(
            "gae needs equal shapes, got "
            f"rewards {tuple(rewards.shape)}, values {tuple(values.shape)}, next_values "
            f"{tuple(next_values.shape)}, dones {tuple(dones.shape)}, out {tuple(out.shape)}"
        )
    add(rewards, next_values, alpha=gamma, out=out).sub_(values)
    carry = (~dones).to(out.dtype).mul_(gamma * gae_lambda)
    # unbind once: indexing a tensor T times costs more than the arithmetic on its small rows
    rows, carries = out.unbind(0), carry.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(carries[t], rows[t + 1])
    return out
