"""Optimizers on one flat vector: a step takes a few operations for any number of layers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.timing import lap
from rl_training.core.types import Array, State

SMALL = 2.0**-520
"""Its square is a denormal number."""


class FlatOptimizer(ABC):
    """Gradient descent with global gradient clipping; a subclass defines the step.

    The parameters become views of one vector, which modules, state dicts and NumPy views share. With twelve small
    tensors this saves a tenth of the time of an update. Learners write gradients into the views from `gradient_of` and
    call `descend`. Frozen parameters have no such view and do not change.
    """

    is_learned = True

    def __init__(self, parameters: Iterable[nn.Parameter], *, max_grad_norm: float | None) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.max_grad_norm = max_grad_norm
        self.flat = flatten_parameters(self.parameters)
        self.gradient = torch.zeros_like(self.flat)
        self._array = self.gradient.numpy() if self.gradient.device.type == "cpu" else None
        sizes = [parameter.numel() for parameter in self.parameters]
        self._places = {
            id(parameter): part.view_as(parameter)
            for parameter, part in zip(self.parameters, torch.split(self.gradient, sizes), strict=True)
        }

    def gradient_of(self, parameter: nn.Parameter) -> Tensor | None:
        """Return a view of a parameter's gradient, in its shape; None if the parameter is not trained here."""
        return self._places.get(id(parameter))

    def set_gradient(self, parts: Sequence[Array]) -> None:
        """Set the gradient to the sum of several, added in order."""
        total = np.empty_like(parts[0]) if self._array is None else self._array
        np.copyto(total, parts[0])
        for part in parts[1:]:
            total += part
        if self._array is None:
            self.gradient.copy_(torch.from_numpy(total))

    def descend(self, learning_rate: Tensor) -> Tensor | float:
        """Take one step along `-gradient`; return its norm before clipping. Does not synchronise with the device."""
        lap("backward")
        norm = self._clipped_norm() if self._array is None else self._clipped_norm_of(self._array)
        with without_denormals():
            self._apply(self.gradient, learning_rate)
        lap("optimiser")
        return norm

    def _clipped_norm(self) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if self.max_grad_norm is not None:
            self.gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        return norm

    def _clipped_norm_of(self, array: Array) -> float:
        """Like `_clipped_norm` on the CPU, where reading a number is cheap and most gradients need no clipping."""
        norm = math.sqrt(np.dot(array, array))
        if self.max_grad_norm is not None and norm + 1e-6 > self.max_grad_norm:
            array *= self.max_grad_norm / (norm + 1e-6)
        return norm

    @abstractmethod
    def _apply(self, grad: Tensor, learning_rate: Tensor) -> None: ...

    @abstractmethod
    def state_dict(self) -> State:
        """Return the statistics of past gradients."""

    def load_state_dict(self, state: State) -> None:
        """Restore the statistics in place."""
        for name, tensor in self.state_dict().items():
            if state[name].shape != tensor.shape:  # copy_ would broadcast a smaller one
                raise ValueError(
                    f"'{name}' has shape {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
                )
            tensor.copy_(state[name])


class FlatAdam(FlatOptimizer):
    """Adam, arXiv:1412.6980, in torch's fused form: one pass over the vectors instead of ten."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        max_grad_norm: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-5,
    ) -> None:
        super().__init__(parameters, max_grad_norm=max_grad_norm)
        self.betas, self.eps = betas, eps
        self.exp_avg = torch.zeros_like(self.flat)
        self.exp_avg_sq = torch.zeros_like(self.flat)
        self.step = torch.zeros((), dtype=torch.float32, device=self.flat.device)

    def _apply(self, grad: Tensor, learning_rate: Tensor) -> None:
        # the kernel of torch.optim.Adam(fused=True), without its overhead of 10 µs
        self.step.add_(1)
        torch._fused_adam_(
            [self.flat],
            [grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.step],
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> State:
        return {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq, "step": self.step}


class FlatRMSprop(FlatOptimizer):
    """RMSprop as in torch: the square root is taken before `eps` is added."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        max_grad_norm: float | None = None,
        decay: float = 0.99,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(parameters, max_grad_norm=max_grad_norm)
        self.decay, self.eps = decay, eps
        self.square_avg = torch.zeros_like(self.flat)
        self._denominator = torch.empty_like(self.flat)

    def _apply(self, grad: Tensor, learning_rate: Tensor) -> None:
        self.square_avg.mul_(self.decay).addcmul_(grad, grad, value=1 - self.decay)
        torch.sqrt(self.square_avg, out=self._denominator).add_(self.eps)
        self.flat.addcdiv_(grad, self._denominator, value=-learning_rate.item())  # a tensor on the CPU

    def state_dict(self) -> State:
        return {"square_avg": self.square_avg}


class without_denormals:  # noqa: N801  # used like a function; a generator would take ten times as long
    """Flush denormal numbers to 0 inside the block, then restore the previous mode.

    Moments of dead units become denormal, and arithmetic with them takes twice as long.
    """

    def __enter__(self) -> None:
        self._was_set = SMALL * SMALL == 0.0
        torch.set_flush_denormal(True)

    def __exit__(self, *_: object) -> None:
        if not self._was_set:
            torch.set_flush_denormal(False)


def flatten_parameters(parameters: list[nn.Parameter]) -> Tensor:
    """Move the parameters into one vector and make each of them a view of its part; return the vector."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    offset = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.data = flat[offset : offset + size].view_as(parameter)
        offset += size
    return flat
