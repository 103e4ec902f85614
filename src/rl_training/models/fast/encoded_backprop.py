"""How a learner runs networks that read features: explicitly, whatever the features come from.

An encoder of ours knows its own backward; any other, and every memory, is left to autograd.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.timing import lap
from rl_training.core.types import Numbers
from rl_training.models.encoded_network import Encoded, EncodedPair
from rl_training.models.fast.backprop import ExplicitMLP, SeenRows, explicit_mlp
from rl_training.models.fast.chain import GradientOf
from rl_training.models.fast.convolutions import ExplicitEncoder, explicit_encoder


class Features(Protocol):
    """What makes features of rows of tensors: one tensor [B, D] for all who read them, or one for each."""

    @property
    def num_outputs(self) -> int: ...
    def forward(self, rows: Any) -> tuple[Tensor, ...]: ...
    def go_on_back(self, *gradients: Tensor) -> None: ...


class FeatureReader(Protocol):
    """A network that knows its backward, and may read features in the place of observations."""

    def read(self, rows: Any, features: Numbers, critic_features: Numbers) -> tuple[Numbers, Numbers]: ...
    def by_features(self, params_gradient: Numbers, values_gradient: Numbers) -> list[Numbers]: ...


class ExplicitFeatures:
    """Features of encoders that know their backward."""

    def __init__(self, encoders: Sequence[ExplicitEncoder]) -> None:
        self._encoders = encoders
        self.num_outputs = len(encoders)

    def forward(self, rows: SeenRows) -> tuple[Tensor, ...]:
        """Return the features that each encoder sees in the images of rows."""
        return tuple(encoder.forward(rows.obs) for encoder in self._encoders)

    def go_on_back(self, *gradients: Tensor) -> None:
        """Write the parameters' gradients, on the way back from those who read the features."""
        for encoder, gradient in zip(self._encoders, gradients, strict=True):
            encoder.backward(gradient)


class ExplicitReader:
    """Features of any kind, and an explicit network that reads them."""

    explicit = True

    def __init__(self, features: Features, network: FeatureReader) -> None:
        """`features` are one tensor for actor and critic, or two."""
        self._below, self._network = features, network

    def forward(self, rows: Any) -> tuple[Numbers, Numbers]:
        """Return action parameters and values."""
        arrays = isinstance(rows.actions, np.ndarray)
        features = self._below.forward(rows.tensors() if arrays else rows)
        read = [part.numpy() if arrays else part for part in features]
        return self._network.read(rows, read[0], read[-1])

    def backward(self, params_gradient: Numbers, values_gradient: Numbers) -> None:
        """Write the gradients of all parameters."""
        lap("forward")
        found = self._network.by_features(params_gradient, values_gradient)
        if self._below.num_outputs < len(found):
            found = [sum(found)]
        self._below.go_on_back(*(torch.as_tensor(part) for part in found))


class ExplicitEncoded:
    """Images [B, C, H, W] to outputs [B, O]."""

    explicit = True

    def __init__(self, encoder: ExplicitEncoder, network: ExplicitMLP) -> None:
        self._encoder, self._network = encoder, network

    def forward(self, images: Numbers, noise: Any = None) -> Numbers:
        """Return outputs; there is no noise in such a network."""
        return self._network.forward(self._encoder.forward(torch.as_tensor(images)).numpy())

    __call__ = forward

    def backward(self, gradient: Numbers) -> None:
        """Write the parameters' gradients."""
        lap("forward")
        self._encoder.backward(torch.as_tensor(self._network.by_inputs(gradient)))


def explicit_features(network: nn.Module, gradient_of: GradientOf) -> ExplicitFeatures | None:
    """Return the encoders of a network that knows their backward; None if it has none, or one is not known."""
    if type(network) is Encoded:
        encoders = [network.encoder]
    elif type(network) is EncodedPair:
        encoders = [network.encoder, network.critic_encoder]
    else:
        return None
    found = [explicit_encoder(encoder, gradient_of) for encoder in encoders]
    known = [encoder for encoder in found if encoder is not None]
    return ExplicitFeatures(known) if len(known) == len(found) else None


def explicit_outputs(
    network: nn.Module, gradient_of: GradientOf | None = None
) -> ExplicitMLP | ExplicitEncoded | None:
    """Return a network of one row of outputs, with or without an encoder, that knows its backward; None for others.

    Without `gradient_of` it is for `forward` alone.
    """
    if type(network) is not Encoded:
        return explicit_mlp(network, gradient_of)
    encoder, layers = (
        explicit_encoder(network.encoder, gradient_of),
        explicit_mlp(network.network, gradient_of),
    )
    return None if encoder is None or layers is None or network.detach else ExplicitEncoded(encoder, layers)
