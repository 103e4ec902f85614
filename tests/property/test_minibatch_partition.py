"""Minibatches partition a rollout exactly, and every field of a row stays with its row."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.rollout_buffer import RolloutBuffer

LAW = settings(deadline=None, database=None, derandomize=True, max_examples=100)


@LAW
@given(
    num_steps=st.integers(1, 9),
    num_envs=st.integers(1, 5),
    batch_size=st.integers(1, 60),
    seed=st.none() | st.integers(0, 1000),
    as_dict=st.booleans(),
    dead_row=st.booleans(),
)
def test_minibatches_partition_the_rollout(
    num_steps: int, num_envs: int, batch_size: int, seed: int | None, as_dict: bool, dead_row: bool
) -> None:
    buffer = RolloutBuffer(
        num_steps=num_steps,
        num_envs=num_envs,
        obs_shape={"a": (2,), "b/c": ()} if as_dict else (2,),
        action_shape=(),
        action_dtype=np.int64,
    )
    index = torch.arange(num_steps * num_envs).reshape(num_steps, num_envs)
    for tensor in (buffer.actions, buffer.logprobs, buffer.values, buffer.advantages, buffer.returns):
        tensor.copy_(index)
    for leaf in buffer.obs.values() if isinstance(buffer.obs, dict) else [buffer.obs]:
        leaf.copy_(index.reshape(*index.shape, *[1] * (leaf.ndim - 2)).expand_as(leaf))
    if dead_row:
        buffer.valid[0, 0] = False
    rng = None if seed is None else np.random.default_rng(seed)
    parts = list(buffer.iter_minibatches(batch_size, rng=rng))

    rows = num_steps * num_envs
    assert sorted(int(i) for part in parts for i in part.actions) == list(range(rows))
    full, rest = divmod(rows, batch_size)
    assert [len(part) for part in parts] == [batch_size] * full + [rest] * (rest > 0)
    for part in parts:
        for field in (part.logprobs, part.values, part.advantages, part.returns):
            assert torch.equal(field.long(), part.actions)
        for leaf in part.obs.values() if isinstance(part.obs, dict) else [part.obs]:
            assert torch.equal(leaf.reshape(len(part), -1)[:, 0].long(), part.actions)
        if dead_row:
            assert part.valid is not None
            assert torch.equal(part.valid, part.actions != 0)
        else:
            assert part.valid is None
