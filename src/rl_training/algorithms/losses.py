"""Losses: functions that users may replace, differentiated by hand if they have a gradient, otherwise by autograd."""

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from rl_training.core.errors import UserError
from rl_training.core.types import Numbers, StepMetrics
from rl_training.models.fast.backend import Backend

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm

LossFunction: TypeAlias = Callable[..., Any]
"""(columns of a minibatch, settings by keyword) -> the loss as a 0-d tensor, or a dict of `loss` and other parts."""
Gradient: TypeAlias = Callable[..., tuple[Any, ...]]
"""Takes what the loss takes, and the backend of the columns. Returns the parts of the loss, then its gradients."""


@dataclass(frozen=True)
class Loss:
    """A loss and, if there is one, its hand-written gradient, which a test holds equal to autograd."""

    function: LossFunction
    gradient: Gradient | None = None
    of: str | None = field(default=None, compare=False)
    """Digest of the function that the gradient belongs to: who edits the function's source gets autograd."""
    _in_module: tuple[bool, bool] = field(init=False, repr=False, compare=False)
    """Whether function and gradient were attributes of their modules when this loss was made."""

    def __post_init__(self) -> None:
        found = (_named_like(self.function), _named_like(self.gradient))
        in_module = (found[0] is self.function, found[1] is self.gradient)
        object.__setattr__(self, "_in_module", in_module)

    def differentiate(
        self, columns: Mapping[str, Numbers], by: Sequence[str], backend: Backend, **settings: Any
    ) -> tuple[StepMetrics, list[Numbers]]:
        """Return the parts of the loss, and its gradients with respect to the columns named in `by`.

        A hand-written gradient may return None for a column that the loss does not use.
        """
        if self.gradient is not None:
            parts, *gradients = self.gradient(columns, backend=backend, **settings)
            return parts, gradients
        tensors = {name: None if part is None else torch.as_tensor(part) for name, part in columns.items()}
        leaves = {name: torch.as_tensor(columns[name]).detach().requires_grad_() for name in by}
        parts = self.parts(tensors | leaves, **settings)
        found = self.autograd(parts["loss"], list(leaves.values()))
        return {name: part.detach() for name, part in parts.items()}, [backend.view(part) for part in found]

    def parts(self, columns: Mapping[str, Any], **settings: Any) -> dict[str, Tensor]:
        """Return `loss` and its other parts, which become metrics."""
        try:
            found = self.function(columns, **settings)
        except TypeError:
            self._check_arguments(columns, settings)
            raise
        parts: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {"loss": found}
        loss = parts.get("loss")
        if not isinstance(loss, Tensor) or loss.ndim:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(found)[:80]
            raise UserError(
                f"loss {function_name(self.function)} returned {got}; return a tensor with one number, such as "
                "a mean, or a dict with such a tensor as 'loss'"
            )
        return {name: torch.as_tensor(part) for name, part in parts.items()}

    def _check_arguments(self, columns: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Raise an error if the function cannot be called with these arguments."""
        try:
            inspect.signature(self.function).bind(columns, **settings)
        except TypeError as error:
            names = ", ".join(["minibatch", *settings])
            raise UserError(
                f"loss {function_name(self.function)} cannot be called with ({names}): {error}; define it as "
                "def loss(minibatch, **settings)"
            ) from error

    def autograd(self, loss: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the gradients of a loss with respect to its inputs; 0 for those that it does not use."""
        if not loss.requires_grad:
            raise UserError(
                f"loss {function_name(self.function)} returned a number without a gradient; compute it from the "
                "minibatch with torch, without detach, item or no_grad"
            )
        return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)

    def current(self) -> "Loss":
        """Return the functions that now have these names in their modules: somebody may have patched them.

        A function that has only the name of one in a module, such as a closure or a wrapper, stays what it is. A
        gradient that was not patched together with its loss belongs to another loss, so there is none.
        """
        function = (self._in_module[0] and _named_like(self.function)) or self.function
        gradient = (self._in_module[1] and _named_like(self.gradient)) or self.gradient
        is_old = (function is not self.function or self.is_edited) and gradient is self.gradient
        return Loss(function, None if is_old else gradient)

    @property
    def is_edited(self) -> bool:
        """Whether the source of the function is not the one that the gradient was written for."""
        return self.of is not None and source_digest(self.function) not in (None, self.of)


@cache
def source_digest(function: LossFunction) -> str | None:
    """Return a short hash of a function's code without docstring, comments and layout; None if there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    (definition,) = tree.body
    if isinstance(definition, ast.FunctionDef) and ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:]
    return hashlib.sha256(ast.unparse(definition).encode()).hexdigest()[:12]


def _named_like(function: Any) -> Any:
    """Return what a module now holds under the name of a function that it defines; None if there is nothing."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    return getattr(module, getattr(function, "__name__", ""), None)


def named_parts(name: str, parts: StepMetrics) -> StepMetrics:
    """Return the parts of a loss as metrics: the loss under its name, and all others under their own."""
    return {name if part == "loss" else part: number for part, number in parts.items()}


def resolved_losses(
    algorithm: "type[Algorithm]", settings: Any, given: Mapping[str, LossFunction]
) -> dict[str, Loss]:
    """Return the losses that train: the ones that the user passed, those of the class, or the built-in ones."""
    return {
        name: _resolved(algorithm, name, built_in, given.get(name))
        for name, built_in in algorithm.losses(settings).items()
    }


def _resolved(algorithm: "type[Algorithm]", name: str, built_in: Loss, given: LossFunction | None) -> Loss:
    current = built_in.current()
    own = checked_loss(name, _attribute(algorithm, name), inspect.getattr_static(algorithm, name, None))
    if own is built_in.function:
        own = None
    if given is not None and given is not (own or current.function):
        kept = None if built_in.is_edited else built_in.gradient
        return Loss(given, kept) if given is built_in.function else Loss(given)
    gradient = _own_gradient(algorithm, name, built_in.gradient)
    if own is not None:
        return Loss(own, gradient)
    if gradient is not None and current.function is built_in.function:
        return replace(current, gradient=gradient)
    return current


def _attribute(algorithm: "type[Algorithm]", name: str) -> Any:
    """Return a class attribute; None if it is that of a parent, and a child overrides `losses`."""
    for part in algorithm.__mro__:
        if name in vars(part):
            return getattr(algorithm, name)
        if "losses" in vars(part):
            return None
    return None


def _own_gradient(algorithm: "type[Algorithm]", name: str, built_in: Gradient | None) -> Gradient | None:
    """Return the gradient of a user's class, unless a subclass of that class has another loss."""
    key = f"{name}_gradient"
    owner = next((part for part in algorithm.__mro__ if key in vars(part)), None)
    gradient: Gradient | None = _attribute(algorithm, key)
    if owner is None or gradient is built_in:
        return None
    return gradient if getattr(owner, name, None) is getattr(algorithm, name, None) else None


def checked_loss(name: str, function: Any, declared: Any = None) -> LossFunction | None:
    """Return a user's loss; raise if it cannot be called, or if it is a method that expects `self`."""
    if function is None:
        return None
    if not callable(function):
        raise UserError(f"{name} is {function!r}; use a function of a minibatch that returns a tensor")
    if inspect.isfunction(declared) and next(iter(inspect.signature(declared).parameters), "") == "self":
        raise UserError(
            f"{name} is the method {function.__qualname__}; make it a static method without self: "
            f"@staticmethod def {name}(minibatch, ...)"
        )
    found: LossFunction = function
    return found


def replaced_losses(
    algorithm: "type[Algorithm]", settings: Any, losses: Mapping[str, Loss]
) -> dict[str, str]:
    """Return `module:name` of each loss and gradient that is not built in; checkpoints store these names."""
    found = {}
    for name, built_in in algorithm.losses(settings).items():
        loss = losses[name]
        if loss.function is not built_in.function:
            found[name] = function_name(loss.function)
        elif built_in.is_edited:
            found[name] = f"{function_name(loss.function)}#{source_digest(loss.function)}"
        if loss.gradient not in (None, built_in.gradient):
            found[f"{name}_gradient"] = function_name(loss.gradient)
    return found


def function_name(function: Any) -> str:
    """Return `module:name` of a function, or of the class of a callable object."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"
