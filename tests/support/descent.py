"""One step down a loss that autograd differentiates."""

import torch
from torch import Tensor

from rl_training.algorithms.optimizers import FlatOptimizer


def differentiate(optimizer: FlatOptimizer, loss: Tensor) -> None:
    """Write the gradients of a loss where the optimizer reads them; 0 where it does not depend on a parameter."""
    found = torch.autograd.grad(loss, optimizer.parameters, allow_unused=True, materialize_grads=True)
    for parameter, gradient in zip(optimizer.parameters, found, strict=True):
        place = optimizer.gradient_of(parameter)
        assert place is not None
        place.copy_(gradient)


def minimize(optimizer: FlatOptimizer, loss: Tensor, learning_rate: Tensor) -> Tensor:
    """Take one step; return the norm of the gradient before clipping."""
    differentiate(optimizer, loss)
    return torch.as_tensor(optimizer.descend(learning_rate), dtype=optimizer.flat.dtype)
