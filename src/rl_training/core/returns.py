"""Pure return and advantage estimators."""

import numpy as np
from torch import Tensor, from_numpy


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
    """Generalized advantage estimation, arXiv:1506.02438; all [T, ...] on the CPU; writes and returns `out`.

    A_t = delta_t + gamma * lambda * (1 - done_t) * A_{t+1},  delta_t = r_t + gamma * next_value_t - value_t.
    `next_values` depends on how an episode ended: 0 at a termination, V(true final observation) at a truncation. The
    trace is cut at both, so that nothing after the end of an episode affects the steps before it.
    """
    if not rewards.shape == values.shape == next_values.shape == dones.shape == out.shape:
        raise ValueError(
            f"gae needs equal shapes, got rewards {tuple(rewards.shape)}, values {tuple(values.shape)}, next_values "
            f"{tuple(next_values.shape)}, dones {tuple(dones.shape)}, out {tuple(out.shape)}"
        )
    # in NumPy: for few environments a call takes a fifth of the time of torch
    delta = np.multiply(next_values.numpy(), gamma, out=out.numpy())
    delta += rewards.numpy()
    delta -= values.numpy()
    carry = np.where(dones.numpy(), 0.0, gamma * gae_lambda).astype(delta.dtype)
    rows, carries = (list(array.reshape(len(array), -1)) for array in (delta, carry))  # views, made once
    for t in range(len(rows) - 2, -1, -1):
        rows[t] += carries[t] * rows[t + 1]
    return out


def own_rewards(rewards: Tensor, dones: Tensor, valid: Tensor) -> Tensor:
    """Return what each own action was paid, [T, N]: its reward and those of the invalid rows up to the next one.

    Rows that are not `valid` are 0 in the result. They count for the last valid row of the same episode, if there is
    one; after `dones` they count for nothing.
    """
    found, stops, own = rewards.numpy().copy(), dones.numpy(), valid.numpy()
    waiting = np.zeros_like(found[0])  # what was paid after row t, up to the next own action
    for t in range(len(found) - 1, -1, -1):
        waiting[stops[t]] = 0.0
        paid = found[t] + waiting
        found[t] = np.where(own[t], paid, 0.0)
        waiting = np.where(own[t], 0.0, paid).astype(found.dtype, copy=False)
    return from_numpy(found)


def own_turn_gae(
    rewards: Tensor,
    values: Tensor,
    final_values: Tensor,
    last_value: Tensor,
    dones: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    out: Tensor,
) -> Tensor:
    """GAE of rows that may wait: `gae` over the valid rows of each column; all [T, N] on the CPU, `last_value` [N].

    `rewards` are those of `own_rewards`. Discount and trace count own actions. An own action is followed by the row's
    next one, or, if the episode ends first, by `final_values` of the row in which it ends, valid or not. After the last
    row follows `last_value`; where it is nan, the row waits, and what follows its last own action is not known.

    Writes the advantages to `out`, 0 in rows that nothing can be learned from, and returns the others as a mask: those
    that are valid and whose successor is known. If all rows are valid, the advantages are those of `gae`.
    """
    found, stops, own = out.numpy(), dones.numpy(), valid.numpy()
    learned = np.zeros(own.shape, np.bool_)
    unknown = np.isnan(last_value.numpy())
    following = np.where(unknown, 0.0, last_value.numpy()).astype(found.dtype, copy=False)
    later = np.zeros_like(following)  # the advantage of the next own action
    for t in range(len(found) - 1, -1, -1):
        value, stop, acts = values[t].numpy(), stops[t], own[t]
        np.copyto(following, final_values[t].numpy(), where=stop)
        later[stop] = 0.0
        unknown &= ~stop
        advantage = following * gamma + rewards[t].numpy() - value + gamma * gae_lambda * later
        np.logical_and(acts, ~unknown, out=learned[t])
        found[t] = np.where(learned[t], advantage, 0.0)
        np.copyto(following, value, where=acts)
        np.copyto(later, found[t], where=acts)
        unknown &= ~acts
    return from_numpy(learned)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    dones: Tensor,
    ratios: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    advantages: Tensor,
    returns: Tensor,
) -> None:
    """V-trace, arXiv:1802.01561, with the lambda of GAE; all [T, ...] on the CPU; fills `advantages` and `returns`.

    `ratios` are those of the probabilities of the actions: of the policy that learns to the one that collected. With
    rho_t = min(ratio_t, 1) and the delta_t of `gae`,
    c_t = rho_t * delta_t + gamma * lambda * (1 - done_t) * rho_t * c_{t+1},  return_t = value_t + c_t,
    A_t = rho_t * (delta_t + gamma * lambda * (1 - done_t) * c_{t+1}). If all ratios are 1, this is GAE.
    """
    rho = np.minimum(ratios.numpy(), 1.0)
    delta = next_values.numpy() * gamma + rewards.numpy() - values.numpy()
    carry = np.where(dones.numpy(), 0.0, gamma * gae_lambda).astype(delta.dtype)
    corrected, found = np.zeros_like(delta[0]), advantages.numpy()
    for t in range(len(delta) - 1, -1, -1):
        found[t] = rho[t] * (delta[t] + carry[t] * corrected)
        corrected = rho[t] * delta[t] + carry[t] * rho[t] * corrected
        returns.numpy()[t] = values.numpy()[t] + corrected
