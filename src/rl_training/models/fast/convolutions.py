"""Our convolutional encoders with a hand-written backward pass, on the CPU, without a graph.

Torch computes the convolutions; the time saved lies between them. Pixels are not reordered before they are read, the
weights are scaled instead of the pixels, gradients go directly into the optimizer's vector, and no modules are called.
"""

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.autograd_network import GradientOf
from rl_training.models.cnn import AutoCNN, NatureCNN, SmallCNN
from rl_training.models.fast.activations import kernel
from rl_training.models.fast.backend import NUMPY, Backend
from rl_training.models.images import ImageLeaf, ScaledImages

Operands: TypeAlias = tuple[Tensor, Tensor, tuple[int, ...], tuple[int, ...]]
"""Images or volumes, weight, stride and padding."""
KNOWN = (AutoCNN, NatureCNN, SmallCNN)
"""Encoders with convolutions and one linear layer, each followed by a ReLU."""


class Convolution:
    """A convolution and the ReLU after it: images [B, C, H, W] to images, in channels-last memory format.

    `backward` cuts rows into pieces of the stride S where possible: an image becomes [S * C, H, W / S], and a kernel
    [C, h, w] becomes [S * C, h, w / S] with a horizontal stride of 1. The products are the same, in a tenth less time.
    """

    def __init__(self, module: nn.Conv2d, gradient_of: GradientOf | None) -> None:
        assert module.bias is not None, "all of ours have one"
        assert not isinstance(module.padding, str), "ours say how much"
        self.weight, self.bias = module.weight.detach(), module.bias.detach()
        self._gradients = _places(module, gradient_of)
        self._stride, self._padding = module.stride, module.padding
        self._piece = self._stride[1]
        self._kernels_can_be_cut = (
            self._piece > 1 and self.weight.shape[3] % self._piece == 0 and not any(self._padding)
        )

    def forward(self, images: Tensor) -> Tensor:
        return _convolution(images, self.weight, self._stride, self._padding, self.bias).relu_()

    def backward(self, gradient: Tensor, images: Tensor) -> Tensor:
        """Write the gradients of the parameters, given that of the convolution; return that of the images."""
        by_images, *found = _back(gradient, *self._cut(images, self.weight), further=True)
        self._write(*found)
        # undo the cut
        rows, channels, height, width = images.shape
        return by_images.permute(0, 2, 3, 1).reshape(rows, height, width, channels).permute(0, 3, 1, 2)

    def _cut(self, images: Tensor, weight: Tensor) -> Operands:
        """Return images and weight, cut into pieces if possible, with the stride and padding to use."""
        if not (self._rows_can_be_cut(images) and images.is_contiguous(memory_format=torch.channels_last)):
            return images, weight, self._stride, self._padding
        rows, channels, height, width = images.shape
        pieces = images.permute(0, 2, 3, 1).view(rows, height, width // self._piece, self._piece * channels)
        kernels = _in_pieces(weight, self._piece).flatten(1, 2)
        return pieces.permute(0, 3, 1, 2), kernels, (self._stride[0], 1), self._padding

    def _rows_can_be_cut(self, images: Tensor) -> bool:
        return self._kernels_can_be_cut and images.shape[3] % self._piece == 0

    def _write(self, by_kernels: Tensor, by_bias: Tensor) -> None:
        """Write gradients; that of the kernels may be cut into pieces: [O, S, C, h, w / S] or [O, S * C, h, w / S]."""
        out, channels, height, width = self.weight.shape
        pieces = width // by_kernels.shape[-1]
        parts = by_kernels.reshape(out, pieces, channels, height, width // pieces)
        self._gradients[0].view(out, channels, height, width // pieces, pieces).copy_(
            parts.permute(0, 2, 3, 4, 1)
        )
        self._gradients[1].copy_(by_bias)


class FirstConvolution(Convolution):
    """The first convolution, which reads images in their own type and computes no gradient of them.

    Convolutions are faster in channels-last memory format, but converting planes to it takes longer than converting
    bytes to floats. So planes are read directly: with rows cut into pieces of the stride S they are a volume
    [C, H, W / S] with S channels, and a kernel is one of [C, h, w / S]. The weights are scaled instead of the pixels.
    """

    def __init__(self, module: nn.Conv2d, gradient_of: GradientOf | None, leaf: ImageLeaf) -> None:
        super().__init__(module, gradient_of)
        self._offset, self._factor = leaf.offset, leaf.factor

    def floats(self, images: Tensor) -> Tensor:
        """Return images of any type as floats for `forward`: as planes if it can read those, or channels last."""
        if not self._reads_planes(images):
            images = images.contiguous(memory_format=torch.channels_last)
        floats = images.to(self.weight.dtype)
        return floats if self._offset == 0.0 else floats - self._offset

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs for `floats`."""
        weight = self.weight * self._factor
        if not self._reads_planes(images):
            return _convolution(images, weight, self._stride, self._padding, self.bias).relu_()
        return _convolution(*self._cut(images, weight), self.bias).squeeze(2).relu_()

    def finish(self, gradient: Tensor, images: Tensor) -> None:
        operands = self._cut(images, self.weight)
        gradient = gradient.unsqueeze(2) if operands[0].dim() == 5 else gradient
        _, by_kernels, by_bias = _back(gradient, *operands, further=False)
        self._write(by_kernels.mul_(self._factor), by_bias)

    def _cut(self, images: Tensor, weight: Tensor) -> Operands:
        """Return planes and their kernels as volumes; other images like the base class."""
        if not self._reads_planes(images):
            return super()._cut(images, weight)
        volumes, kernels = (_in_pieces(part, self._piece) for part in (images, weight))
        return volumes, kernels, (1, self._stride[0], 1), (0, 0, 0)

    def _reads_planes(self, images: Tensor) -> bool:
        # for a single image, reordering is faster
        return len(images) > 1 and images.is_contiguous() and self._rows_can_be_cut(images)


class Dense:
    """A linear layer and the ReLU after it: rows [B, I] to features [B, O]."""

    def __init__(self, module: nn.Linear, gradient_of: GradientOf | None) -> None:
        self.weight, self.bias = module.weight.detach(), module.bias.detach()
        self._gradients = _places(module, gradient_of)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.addmm(self.bias, rows, self.weight.t()).relu_()  # with few rows faster than NumPy

    def backward(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Write the gradients of the parameters, given that of the product; return that of the rows."""
        numbers, (by_weight, by_bias) = gradient.numpy(), self._gradients
        np.matmul(numbers.T, rows.numpy(), out=by_weight.numpy())
        torch.sum(gradient, 0, out=by_bias)
        return torch.from_numpy(np.matmul(numbers, self.weight.numpy()))


class ExplicitEncoder:
    """Images [B, C, H, W] in their own type to features [B, D]; without `gradient_of` it only runs `forward`."""

    def __init__(self, encoder: ScaledImages, gradient_of: GradientOf | None = None) -> None:
        convolutions, _, dense, _ = encoder.encoder.trunks[0]  # type: ignore[index]  # one of those in KNOWN
        first, *others = (module for module in convolutions if isinstance(module, nn.Conv2d))
        self._first = FirstConvolution(first, gradient_of, encoder.images[""])
        self._others = [Convolution(module, gradient_of) for module in others]
        self._dense = Dense(dense, gradient_of)
        self._learns = gradient_of is not None
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return features, and keep what `backward` needs."""
        self._kept = []
        floats = self._first.floats(images)
        seen = [floats, self._first.forward(floats)]
        for layer in self._others:
            seen.append(layer.forward(seen[-1]))
            if not self._learns:
                del seen[:-1]
        rows = seen[-1].flatten(1)
        features = self._dense.forward(rows)
        if self._learns:
            self._kept = [*seen, rows, features]
        return features

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> None:
        """Write the gradients of the parameters, given that of the features [B, D]."""
        assert self._kept, "forward comes first"
        *kept, rows, features = self._kept
        self._kept = []  # each tensor is freed as soon as it has been used
        by_rows = self._dense.backward(kernel.threshold_backward(gradient, features, 0), rows)
        by_images = torch.empty_like(kept[-1]).copy_(by_rows.view_as(kept[-1]))
        for layer in reversed(self._others):
            by_images = _through_relu(by_images, kept.pop())
            by_images = layer.backward(by_images, kept[-1])
        self._first.finish(_through_relu(by_images, kept.pop()), kept.pop())


def explicit_encoder(
    encoder: nn.Module, gradient_of: GradientOf | None = None, backend: Backend = NUMPY
) -> ExplicitEncoder | None:
    """Return an encoder in `KNOWN` of a single image with a hand-written backward pass, on the CPU.

    None for any other encoder, or if a parameter is frozen. Without `gradient_of` it only runs `forward`.
    """
    if (
        backend is not NUMPY
        or type(encoder) is not ScaledImages
        or type(encoder.encoder) not in KNOWN
        or list(encoder.images) != [""]
    ):
        return None
    if gradient_of is not None and any(gradient_of(parameter) is None for parameter in encoder.parameters()):
        return None
    return ExplicitEncoder(encoder, gradient_of)


def _places(module: nn.Conv2d | nn.Linear, gradient_of: GradientOf | None) -> list[Tensor]:
    """Return views of the gradients of weight and bias."""
    if gradient_of is None:
        return []
    places = [gradient_of(parameter) for parameter in module.parameters()]
    return [place for place in places if place is not None]


def _in_pieces(planes: Tensor, piece: int) -> Tensor:
    """Return planes [N, C, H, W] as volumes [N, S, C, H, W / S], as a view."""
    *sides, width = planes.shape
    return planes.view(*sides, width // piece, piece).permute(0, 4, 1, 2, 3)


def _convolution(
    images: Tensor, weight: Tensor, stride: tuple[int, ...], padding: tuple[int, ...], bias: Tensor
) -> Tensor:
    ones, zeros = [1] * len(stride), [0] * len(stride)
    return torch.convolution(images, weight, bias, stride, padding, ones, False, zeros, 1)


def _back(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    *,
    further: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of images (if `further`), weight and bias."""
    ones, zeros = [1] * len(stride), [0] * len(stride)
    wanted = [further, True, True]
    return kernel.convolution_backward(  # type: ignore[no-any-return]  # untyped in torch
        gradient, images, weight, [len(weight)], stride, padding, ones, False, zeros, 1, wanted
    )


def _through_relu(gradient: Tensor, after: Tensor) -> Tensor:
    """Overwrite the gradient of the outputs of a ReLU with that of its inputs, and return it."""
    return kernel.threshold_backward.grad_input(gradient, after, 0, grad_input=gradient)  # type: ignore[no-any-return]
