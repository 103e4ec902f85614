"""The conservative term against its formula, and its gradient by hand against autograd, in NumPy and torch alike."""

import numpy as np
import pytest
import torch

from rl_training.algorithms.conservative import conservative_gap, conservative_gap_gradient
from rl_training.models.fast.backend import NUMPY, TorchBackend


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("backend", [NUMPY, TorchBackend()])
@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 30)])
def test_the_gap_and_its_gradient(shape, backend):
    values, recorded = drawn(*shape, seed=0).requires_grad_(), drawn(*shape[:-1], seed=1)
    gap = conservative_gap(values, recorded)
    torch.testing.assert_close(gap, values.exp().sum(-1).log() - recorded, rtol=0, atol=1e-12)
    (expected,) = torch.autograd.grad(gap.sum(), [values])
    given = (backend.view(values.detach()), backend.view(recorded))
    found, weights = conservative_gap_gradient(*given, backend=backend)
    np.testing.assert_allclose(found, gap.detach(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", [NUMPY, TorchBackend()])
def test_large_values_do_not_overflow(backend):
    values = torch.tensor([[1e4, 1e4], [-1e4, 0.0]])
    found, weights = conservative_gap_gradient(
        backend.view(values), backend.view(values[:, 0]), backend=backend
    )
    np.testing.assert_allclose(found, [np.log(2), 1e4], rtol=1e-3)  # float32
    np.testing.assert_allclose(weights, [[0.5, 0.5], [0, 1]])
