"""Statistics are those of all the data, however it arrived."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.models.normalizer import ObservationNormalizer, RunningMoments

LAW = settings(deadline=None, database=None, derandomize=True, max_examples=100)


@LAW
@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 0),
    seed=st.integers(0, 1000),
    offset=st.floats(-1e3, 1e3),
    scale=st.floats(1e-2, 1e2),
)
def test_moments_equal_numpys_over_all_batches(
    sizes: list[int], seed: int, offset: float, scale: float
) -> None:
    rows = offset + scale * np.random.default_rng(seed).standard_normal((sum(sizes), 2))
    moments = RunningMoments(2)
    for part in torch.from_numpy(rows).split(sizes):
        moments.update(part)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(moments.var, rows.var(0), rtol=1e-7, atol=1e-8)


@LAW
@given(
    cut=st.integers(1, 29),
    seed=st.integers(0, 1000),
    continuous=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_normalising_does_not_depend_on_how_the_data_was_batched(
    cut: int, seed: int, continuous: list[bool]
) -> None:
    rows = 3 + 2 * torch.randn(30, 3, generator=torch.Generator().manual_seed(seed))
    mask = torch.tensor(continuous)
    whole, parts = ObservationNormalizer(mask), ObservationNormalizer(mask)
    whole.update(rows)
    parts.update(rows[:cut])
    parts.update(rows[cut:])
    torch.testing.assert_close(whole(rows), parts(rows), rtol=1e-5, atol=1e-5)
    assert torch.equal(parts(rows)[:, ~mask], rows[:, ~mask])
