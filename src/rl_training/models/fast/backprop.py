"""How a learner runs its networks: forwards to outputs, backwards from the gradient of a loss by these outputs.

Two interchangeable ways, with the same results: explicit, for plain chains of linear layers (and for memories, in
`recurrent_backprop`), on arrays on the CPU; and by autograd for everything else, on tensors. Which one it is follows
from the network and its device alone.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.timing import lap
from rl_training.core.types import Numbers
from rl_training.models.ensemble import EnsembleMLP
from rl_training.models.fast.chain import (
    Chain,
    ChainAndFeatures,
    GradientOf,
    ensemble_chain,
    linear_chain,
    plain_chain,
)
from rl_training.models.mlp import MLPActorCritic
from rl_training.models.q_network import QNetwork

ROWS_AT_ONCE = 512


class Backprop(Protocol):
    """A network as learners run it: `forward`, then `backward` for the first rows of what it gave.

    Outputs are valid until the next `forward`. `explicit` ones take arrays on the CPU, the others tensors.
    """

    explicit: bool

    def forward(self, *inputs: Any) -> Any: ...
    def backward(self, *gradients: Numbers) -> None: ...


class AutogradNetwork:
    """Any network: its graph is kept from `forward` to `backward`."""

    explicit = False

    def __init__(
        self, run: Callable[..., Any], parameters: Iterable[nn.Parameter], gradient_of: GradientOf
    ) -> None:
        """`run` is the module, or whatever calls it; its result is a tensor or a tuple of them."""
        self._run = run
        found = [(parameter, gradient_of(parameter)) for parameter in parameters]
        self._parameters = [parameter for parameter, view in found if view is not None]
        self._views = [view for _, view in found if view is not None]
        self._outputs: tuple[Tensor, ...] = ()
        self._last_input: Tensor | None = None

    def forward(self, *inputs: Any) -> Any:
        """Return what the module says, cut off from its graph."""
        outputs = self._run(*inputs)
        self._outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        cut = tuple(output.detach() for output in self._outputs)
        return cut if isinstance(outputs, tuple) else cut[0]

    @property
    def num_outputs(self) -> int:
        """How many tensors the last `forward` gave."""
        return len(self._outputs)

    def forward_both(self, inputs: Any, others: Any) -> tuple[Callable[[], Any], Any]:
        """Return outputs for two batches: of the second at once and without a graph, of the first when asked for them.

        What they share with other networks may have been learned on in between.
        """
        with torch.no_grad():
            return (lambda: self.forward(inputs)), self._run(others)

    def backward(self, *gradients: Numbers) -> None:
        """Write the parameters' gradients; 0 for those that the outputs do not depend on."""
        lap("forward")
        self.go_on_back(*gradients)

    def go_on_back(self, *gradients: Numbers) -> None:
        """The same below layers from which the way back has begun."""
        pairs = zip(self._outputs, gradients, strict=True)
        # a network may be frozen, or look without gradients
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
        """Return the gradient by the actions [B, A] for that of the values; no parameter's is written."""
        assert self._last_input is not None, "nothing went forward"
        return torch.autograd.grad(self._outputs, self._last_input, gradient)[0]


class ExplicitMLP:
    """Inputs [B, I] to outputs [B, O]."""

    explicit = True

    def __init__(self, chain: Chain | ChainAndFeatures) -> None:
        self._chain = chain
        self._stacked: Numbers = None

    def forward(self, inputs: Numbers, noise: Any = None) -> Numbers:
        """Return outputs; there is no noise in such a chain."""
        return self._chain.forward(inputs)

    __call__ = forward

    def forward_both(self, inputs: Numbers, others: Numbers) -> tuple[Callable[[], Numbers], Numbers]:
        """Return outputs for two batches of B rows, gone through in one pass; `backward` is for the first of them."""
        rows = len(inputs)
        if self._stacked is None or len(self._stacked) != 2 * rows:
            self._stacked = empty_like(inputs, (2 * rows, inputs.shape[1]))
        self._stacked[:rows], self._stacked[rows:] = inputs, others
        outputs = self._chain.forward(self._stacked)
        return (lambda: outputs[:rows]), outputs[rows:]

    def backward(self, gradient: Numbers) -> None:
        """Write the parameters' gradients."""
        lap("forward")
        self._chain.backward(gradient)

    def by_inputs(self, gradient: Numbers) -> Numbers:
        """Write the parameters' gradients; return the one by the inputs [B, I]."""
        return self._chain.input_gradient(gradient, parameters=True)


class SeenRows(Protocol):
    """Rows of a batch, of which a network reads what was seen [B, I]."""

    @property
    def obs(self) -> Any: ...


class ExplicitActorCritic:
    """Rows to action parameters [B, P] and values [B]; with a body that both read, or without."""

    explicit = True

    def __init__(self, actor: Chain | ChainAndFeatures, critic: Chain, body: Chain | None) -> None:
        self._actor, self._critic, self._body = actor, critic, body

    def forward(self, rows: SeenRows) -> tuple[Numbers, Numbers]:
        """Return action parameters and values."""
        return self.read(rows, rows.obs, rows.obs)

    def read(self, rows: SeenRows, features: Numbers, critic_features: Numbers) -> tuple[Numbers, Numbers]:
        """The same for features [B, I] of the rows, which may be others for the critic, unless both read one body."""
        if self._body is not None:
            features = critic_features = self._body.forward(features)
        return self._actor.forward(features), self._critic.forward(critic_features)[:, 0]

    def backward(self, params_gradient: Numbers, values_gradient: Numbers) -> None:
        """Write the parameters' gradients."""
        lap("forward")
        if self._body is None:
            self._actor.backward(params_gradient)
            self._critic.backward(values_gradient[:, None])
        else:
            self._body.backward(sum(self._by_inputs(params_gradient, values_gradient)))

    def by_features(self, params_gradient: Numbers, values_gradient: Numbers) -> list[Numbers]:
        """Write the parameters' gradients; return those by the features of actor and critic, or of the one body."""
        found = self._by_inputs(params_gradient, values_gradient)
        return found if self._body is None else [self._body.input_gradient(sum(found), parameters=True)]

    def _by_inputs(self, params_gradient: Numbers, values_gradient: Numbers) -> list[Numbers]:
        return [
            self._actor.input_gradient(params_gradient, parameters=True),
            self._critic.input_gradient(values_gradient[:, None], parameters=True),
        ]


class ExplicitCritics:
    """Inputs [B, I] and actions [B, A] to values [M, B]."""

    explicit = True

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._pairs: Numbers = None
        self._size = 0

    def forward(self, inputs: Numbers, actions: Numbers) -> Numbers:
        """Return values."""
        rows, self._size = inputs.shape
        if self._pairs is None or len(self._pairs) != rows:
            self._pairs = empty_like(inputs, (rows, self._size + actions.shape[1]))
        self._pairs[:, : self._size] = inputs
        self._pairs[:, self._size :] = actions
        return self._chain.forward(self._pairs)[..., 0]

    __call__ = forward

    def backward(self, gradient: Numbers) -> None:
        """Write the parameters' gradients for that of the values [M, B]."""
        lap("forward")
        self._chain.backward(gradient[..., None])

    def action_gradient(self, gradient: Numbers) -> Numbers:
        """Return the gradient by the actions [B, A] for that of the values; no parameter's is written."""
        actions = slice(self._size, None)
        if (
            isinstance(gradient, np.ndarray)
            and np.count_nonzero(gradient) <= gradient.shape[1] < gradient.size
        ):
            return self._chain.sparse_input_gradient(gradient[..., None], actions)
        return self._chain.input_gradient(gradient[..., None], actions, parameters=False).sum(0)


def empty_like(numbers: Numbers, shape: tuple[int, ...]) -> Numbers:
    """Return memory of the same kind in another shape."""
    return np.empty(shape, numbers.dtype) if isinstance(numbers, np.ndarray) else numbers.new_empty(shape)


def in_parts(run: Callable[[Numbers], Numbers], inputs: Numbers) -> Numbers:
    """Return outputs for any number of rows, some at a time: what lies between two layers stays in the cache."""
    first = run(inputs[:ROWS_AT_ONCE])
    if len(inputs) <= ROWS_AT_ONCE:
        return first
    outputs = empty_like(first, (len(inputs), *first.shape[1:]))
    outputs[:ROWS_AT_ONCE] = first
    for start in range(ROWS_AT_ONCE, len(inputs), ROWS_AT_ONCE):
        outputs[start : start + ROWS_AT_ONCE] = run(inputs[start : start + ROWS_AT_ONCE])
    return outputs


def explicit_actor_critic(network: nn.Module, gradient_of: GradientOf) -> ExplicitActorCritic | None:
    """Return a network of action parameters and values that knows its backward; None for any but our plain one."""
    if type(network) is not MLPActorCritic:
        return None
    shared = network.critic_body is None and len(network.actor_body) > 0
    layers = [] if shared else [*network.actor_body]
    actor = linear_chain([*layers, network.actor_head], gradient_of)
    critic = plain_chain([*(network.critic_body or []), network.critic_head], gradient_of)
    body = plain_chain(network.actor_body, gradient_of) if shared else None
    if actor is None or critic is None or (shared and body is None):
        return None
    return ExplicitActorCritic(actor, critic, body)


def explicit_mlp(network: nn.Module, gradient_of: GradientOf | None = None) -> ExplicitMLP | None:
    """Return a plain chain of layers, or a network of one value per action, that knows its backward; None for others.

    Without `gradient_of` it is for `forward` alone.
    """
    if type(network) is QNetwork:
        if network.value is not None or network.noisy:
            return None
        chain = linear_chain([*network.body, *network.advantage.interleaved()], gradient_of)
    else:
        chain = linear_chain(network, gradient_of) if type(network) is nn.Sequential else None
    return None if chain is None else ExplicitMLP(chain)


def explicit_critics(
    network: nn.Module, gradient_of: GradientOf | None = None, *, members: int | None = None
) -> ExplicitCritics | None:
    """Return an ensemble of critics, or its first members, that knows its backward; None for any but our plain one."""
    chain = ensemble_chain(network, gradient_of, members=members) if type(network) is EnsembleMLP else None
    return None if chain is None else ExplicitCritics(chain)
