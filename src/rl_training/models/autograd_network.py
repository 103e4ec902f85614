"""Networks for learners: forward to outputs, then backward from the gradient of a loss with respect to these.

`AutogradNetwork` does this for any module; `models.fast` has hand-written networks for the modules it knows.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from rl_training.core.timing import lap
from rl_training.core.types import Numbers

GradientOf: TypeAlias = Callable[[Any], Tensor | None]
"""Where to write the gradient of a parameter: a view of its shape; None if the parameter is not trained."""


class Backprop(Protocol):
    """A network with a backward pass: `forward`, then `backward` for the first rows of its outputs.

    Outputs are valid until the next `forward`. `backward` writes the gradients into the views of `GradientOf`.
    """

    def forward(self, *inputs: Any) -> Any: ...
    def backward(self, *gradients: Numbers) -> None: ...


class AutogradNetwork:
    """Any network: autograd keeps its graph from `forward` to `backward`."""

    def __init__(
        self, run: Callable[..., Any], parameters: Iterable[nn.Parameter], gradient_of: GradientOf
    ) -> None:
        """`run` is the module, or a function that calls it; it returns a tensor or a tuple of tensors."""
        self._run = run
        found = [(parameter, gradient_of(parameter)) for parameter in parameters]
        self._parameters = [parameter for parameter, view in found if view is not None]
        self._views = [view for _, view in found if view is not None]
        self._outputs: tuple[Tensor, ...] = ()
        self._last_input: Tensor | None = None

    def forward(self, *inputs: Any) -> Any:
        """Return the module's outputs, detached."""
        outputs = self._run(*inputs)
        self._outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        cut = tuple(output.detach() for output in self._outputs)
        return cut if isinstance(outputs, tuple) else cut[0]

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def forward_both(self, inputs: Any, others: Any) -> tuple[Callable[[], Any], Any]:
        """Return a function that computes the outputs for the first batch, and the outputs for the second batch.

        The first batch runs when the function is called, as shared layers may have been trained in between.
        """
        with torch.no_grad():
            return (lambda: self.forward(inputs)), self._run(others)

    def backward(self, *gradients: Numbers) -> None:
        """Write the gradients of the parameters; 0 for those that do not affect the outputs."""
        lap("forward")
        self.continue_backward(*gradients)

    def continue_backward(self, *gradients: Numbers) -> None:
        """Like `backward`, for a network below layers whose backward pass has begun."""
        pairs = zip(self._outputs, gradients, strict=True)
        # outputs have no gradient if the network is frozen or detached
        learned = [(output[: len(given)], given) for output, given in pairs if output.requires_grad]
        if not self._parameters or not learned:
            for view in self._views:
                view.zero_()
            return
        found = torch.autograd.grad(
            [output for output, _ in learned],
            self._parameters,
            [given for _, given in learned],
            allow_unused=True,
            materialize_grads=True,
        )
        for view, part in zip(self._views, found, strict=True):
            view.copy_(part)


class AutogradCritics(AutogradNetwork):
    """Critics of any kind: inputs and actions to values [M, B]."""

    def forward(self, inputs: Any, actions: Tensor) -> Tensor:
        """Return values [M, B]."""
        self._last_input = actions.detach().requires_grad_()
        values: Tensor = super().forward(inputs, self._last_input)
        return values

    def action_gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to the actions [B, A], given that of the values; parameters get none."""
        assert self._last_input is not None, "forward comes first"
        return torch.autograd.grad(self._outputs, self._last_input, gradient)[0]
