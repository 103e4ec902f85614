"""Nothing that happens after the end of an episode, of either kind, reaches back before it."""

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_training.core.returns import gae
from rl_training.data.rollout_buffer import RolloutBuffer

LAW = settings(deadline=None, database=None, derandomize=True, max_examples=100)

unit = st.floats(0.0, 1.0)
cases = st.fixed_dictionaries(
    {
        "num_steps": st.integers(1, 10),
        "num_envs": st.integers(1, 3),
        "seed": st.integers(0, 2**31 - 1),
        "gamma": unit,
        "gae_lambda": unit,
        "end": unit,
        "env": unit,
        "truncated": st.booleans(),
    }
)


def place(fraction: float, count: int) -> int:
    return min(int(fraction * count), count - 1)


def normal(seed: int) -> Callable[..., Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=rng)


@LAW
@given(case=cases)
def test_gae_before_an_end_ignores_what_follows(case: dict[str, float]) -> None:
    steps, envs = int(case["num_steps"]), int(case["num_envs"])
    draw = normal(int(case["seed"]))
    t, n = place(case["end"], steps), place(case["env"], envs)
    rewards, values, next_values = draw(steps, envs), draw(steps, envs), draw(steps, envs)
    dones = draw(steps, envs) > 0.5
    dones[t, n] = True
    next_values[t, n] = 3.0 if case["truncated"] else 0.0

    def advantages() -> Tensor:
        return gae(
            rewards,
            values,
            next_values,
            dones,
            gamma=case["gamma"],
            gae_lambda=case["gae_lambda"],
            out=torch.empty(steps, envs),
        )

    before = advantages()
    for tensor in (rewards, values, next_values):
        tensor[t + 1 :, n] = 1e3 * draw(steps - t - 1)
    dones[t + 1 :, n] = draw(steps - t - 1) > 0
    after = advantages()
    assert torch.equal(after[: t + 1, n], before[: t + 1, n])
    others = torch.arange(envs) != n
    assert torch.equal(after[:, others], before[:, others])


@LAW
@given(case=cases)
def test_rollout_returns_before_an_end_ignore_what_follows(case: dict[str, float]) -> None:
    steps, envs = int(case["num_steps"]), int(case["num_envs"])
    draw = normal(int(case["seed"]))
    t, n = place(case["end"], steps), place(case["env"], envs)
    buffer = RolloutBuffer(num_steps=steps, num_envs=envs, obs_shape=(1,), action_shape=())
    last_value = draw(envs)
    buffer.rewards[:], buffer.values[:], buffer.dones[:] = draw(steps, envs), draw(steps, envs), False
    buffer.dones |= draw(steps, envs) > 0.5
    buffer.final_values[:] = draw(steps, envs) * buffer.dones
    buffer.dones[t, n] = True
    buffer.final_values[t, n] = 3.0 if case["truncated"] else 0.0

    def compute() -> tuple[Tensor, Tensor]:
        buffer.compute_returns_and_advantages(last_value, case["gamma"], case["gae_lambda"])
        return buffer.advantages.clone(), buffer.returns.clone()

    before = compute()
    rest = steps - t - 1
    buffer.rewards[t + 1 :, n] = 1e3 * draw(rest)
    buffer.values[t + 1 :, n] = 1e3 * draw(rest)
    buffer.dones[t + 1 :, n] = draw(rest) > 0
    buffer.final_values[t + 1 :, n] = 1e3 * draw(rest)
    last_value[n] = 1e3
    others = torch.arange(envs) != n
    for new, old in zip(compute(), before, strict=True):
        assert torch.equal(new[: t + 1, n], old[: t + 1, n])
        assert torch.equal(new[:, others], old[:, others])


@LAW
@given(case=cases)
def test_a_termination_is_worth_its_reward_and_a_truncation_its_final_value_too(
    case: dict[str, float],
) -> None:
    steps, envs = int(case["num_steps"]), int(case["num_envs"])
    draw = normal(int(case["seed"]))
    t, n = place(case["end"], steps), place(case["env"], envs)
    buffer = RolloutBuffer(num_steps=steps, num_envs=envs, obs_shape=(1,), action_shape=())
    buffer.rewards[:], buffer.values[:] = draw(steps, envs), draw(steps, envs)
    buffer.dones[t, n] = True
    bootstrap = 3.0 if case["truncated"] else 0.0
    buffer.final_values[t, n] = bootstrap
    buffer.compute_returns_and_advantages(draw(envs), case["gamma"], case["gae_lambda"])
    expected = buffer.rewards[t, n] + case["gamma"] * bootstrap
    torch.testing.assert_close(buffer.returns[t, n], expected, rtol=1e-5, atol=1e-5)
