import pytest
import torch
from torch import Tensor

from rl_training.core.returns import gae

GAMMA = 0.9


def rollout(
    num_steps: int = 12, num_envs: int = 3, *, done_rate: float = 0.3, seed: int = 0
) -> dict[str, Tensor]:
    """Random rows whose next value is the next row's value, 0 or a bootstrap where an episode ended."""
    rng = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=rng, dtype=torch.float64)

    values, last = normal(*shape), normal(1, num_envs)
    dones = torch.rand(shape, generator=rng) < done_rate
    truncated = dones & (torch.rand(shape, generator=rng) < 0.5)
    following = torch.cat([values[1:], last])
    next_values = torch.where(dones, torch.where(truncated, normal(*shape), 0.0), following)
    return {"rewards": normal(*shape), "values": values, "next_values": next_values, "dones": dones}


def advantages(rows: dict[str, Tensor], *, gae_lambda: float, gamma: float = GAMMA) -> Tensor:
    return gae(**rows, gamma=gamma, gae_lambda=gae_lambda, out=torch.empty_like(rows["rewards"]))


def double_sum(rows: dict[str, Tensor], gamma: float, gae_lambda: float) -> Tensor:
    """sum_k (gamma lambda)^k delta_{t+k}, over the rest of the episode of each row."""
    result = torch.zeros_like(rows["rewards"])
    num_steps, num_envs = result.shape
    for n in range(num_envs):
        for t in range(num_steps):
            for k in range(t, num_steps):
                delta = rows["rewards"][k, n] + gamma * rows["next_values"][k, n] - rows["values"][k, n]
                result[t, n] += (gamma * gae_lambda) ** (k - t) * delta
                if rows["dones"][k, n]:
                    break
    return result


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("done_rate", [0.0, 0.3, 1.0])
def test_gae_equals_its_double_sum(gae_lambda: float, done_rate: float) -> None:
    rows = rollout(done_rate=done_rate)
    expected = double_sum(rows, GAMMA, gae_lambda)
    torch.testing.assert_close(advantages(rows, gae_lambda=gae_lambda), expected, rtol=0, atol=1e-12)


def test_lambda_zero_is_the_one_step_error() -> None:
    rows = rollout()
    one_step = rows["rewards"] + GAMMA * rows["next_values"] - rows["values"]
    torch.testing.assert_close(advantages(rows, gae_lambda=0.0), one_step, rtol=0, atol=1e-14)


def test_lambda_one_is_the_discounted_return_minus_the_value() -> None:
    rows = rollout()
    returns = torch.zeros_like(rows["rewards"])
    for n in range(returns.shape[1]):
        following = torch.zeros((), dtype=torch.float64)
        for t in reversed(range(len(returns))):
            if rows["dones"][t, n] or t == len(returns) - 1:
                following = rows["next_values"][t, n]
            following = rows["rewards"][t, n] + GAMMA * following
            returns[t, n] = following
    torch.testing.assert_close(advantages(rows, gae_lambda=1.0), returns - rows["values"], rtol=0, atol=1e-12)


def test_a_constant_reward_without_end_is_worth_one_over_one_minus_gamma() -> None:
    worth = 1 / (1 - GAMMA)
    rewards = torch.ones(5, 1, dtype=torch.float64)
    values = torch.zeros_like(rewards)
    next_values = torch.tensor([[0.0]] * 4 + [[worth]], dtype=torch.float64)
    result = gae(
        rewards, values, next_values, rewards > 1, gamma=GAMMA, gae_lambda=1.0, out=torch.empty_like(rewards)
    )
    torch.testing.assert_close(result, torch.full_like(rewards, worth))


def test_gae_writes_and_returns_out_and_leaves_its_inputs_alone() -> None:
    rows = rollout()
    before = {name: tensor.clone() for name, tensor in rows.items()}
    out = torch.empty_like(rows["rewards"])
    assert gae(**rows, gamma=GAMMA, gae_lambda=0.9, out=out) is out
    for name, tensor in rows.items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("shape", [(4,), (1, 2), (3, 2, 2)])
def test_leading_time_with_any_trailing_shape(shape: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(1)
    parts = [torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(3)]
    dones = torch.rand(shape, generator=rng) < 0.3
    result = gae(*parts, dones, gamma=GAMMA, gae_lambda=0.8, out=torch.empty(shape, dtype=torch.float64))
    names = ("rewards", "values", "next_values", "dones")
    columns = dict(zip(names, [part.reshape(shape[0], -1) for part in (*parts, dones)], strict=True))
    torch.testing.assert_close(result.reshape(shape[0], -1), double_sum(columns, GAMMA, 0.8))


@pytest.mark.parametrize("culprit", ["rewards", "values", "next_values", "dones", "out"])
def test_unequal_shapes_are_refused_by_name(culprit: str) -> None:
    rows = rollout(4, 2)
    rows["out"] = torch.empty_like(rows["rewards"])
    rows[culprit] = rows[culprit][:, :1]  # would broadcast
    with pytest.raises(ValueError, match=rf"{culprit} \(4, 1\)"):
        gae(**rows, gamma=GAMMA, gae_lambda=0.9)
