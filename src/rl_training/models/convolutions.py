"""Image encoders that know their own backward, on the CPU: our chains of convolutions, without a graph.

The products are those of torch, which are as fast as the processor; what is saved lies between them. Pixels are not
moved before they are read, nothing is scaled that has more numbers than the weights, gradients go straight into the
vector that the optimizer reads, and a forward pass of few images, as for acting, spares the calls of modules.
"""

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.laps import lap
from rl_training.models.cnn import AutoCNN, NatureCNN, SmallCNN
from rl_training.models.explicit import GradientOf
from rl_training.models.images import ImageLeaf, ScaledImages
from rl_training.models.kernels import computes_on_arrays, kernel

KNOWN = (AutoCNN, NatureCNN, SmallCNN)
"""Encoders whose images go through convolutions with a ReLU each, then through one linear layer with another."""


class Convolution:
    """A convolution and the ReLU after it: images [B, C, H, W] to images, with a pixel's channels side by side."""

    def __init__(self, module: nn.Conv2d, gradient_of: GradientOf | None) -> None:
        assert module.bias is not None, "all of ours have one"
        self.weight, self.bias = module.weight.detach(), module.bias.detach()
        self._gradients = _places(module, gradient_of)
        assert not isinstance(module.padding, str), "ours say how much"
        self._stride, self._padding = module.stride, module.padding

    def forward(self, images: Tensor) -> Tensor:
        """Return what the layer gives."""
        return _convolution(images, self.weight, self.bias, self._stride, self._padding).relu_()

    def backward(self, gradient: Tensor, images: Tensor) -> Tensor:
        """Write the parameters' gradients for that of the convolution itself; return the one by the images."""
        by_images, *found = _back(gradient, images, self.weight, self._stride, self._padding, further=True)
        self._write(*found)
        return by_images

    def _write(self, by_weight: Tensor, by_bias: Tensor) -> None:
        for place, part in zip(self._gradients, (by_weight, by_bias), strict=True):
            place.copy_(part)


class FirstConvolution(Convolution):
    """The one that reads images as they come, in their own type; it owes nobody a gradient by them.

    Convolutions want a pixel's channels side by side, and to bring whole planes there takes longer than to make floats
    of them. Planes can be read as they lie, though, if they are cut by the stride S: rows of W pixels are W / S pieces
    of S, so that a plane is an image [H, W / S] of S channels, and the planes [C, H, W / S] a volume of such. There a
    kernel [C, h, w] is one of [C, h, w / S] that moves on by one piece, and multiplies the same numbers as before.

    What pixels are to be multiplied by, the weights are.
    """

    def __init__(self, module: nn.Conv2d, gradient_of: GradientOf | None, leaf: ImageLeaf) -> None:
        super().__init__(module, gradient_of)
        self._offset, self._factor = leaf.offset, leaf.factor
        self._piece = self._stride[1]
        cut_evenly = leaf.width % self._piece == 0 and self.weight.shape[3] % self._piece == 0
        self._cuts = self._piece > 1 and cut_evenly and not any(self._padding)

    def floats(self, images: Tensor) -> Tensor:
        """Return images of any type as `forward` takes them: whole planes if it can read those, or pixel by pixel."""
        if not self._reads_planes(images):
            images = images.contiguous(memory_format=torch.channels_last)
        floats = images.to(self.weight.dtype)
        return floats if self._offset == 0.0 else floats - self._offset

    def forward(self, images: Tensor) -> Tensor:
        """Return what the layer gives for `floats`."""
        weight = self.weight * self._factor
        if not self._reads_planes(images):
            return _convolution(images, weight, self.bias, self._stride, self._padding).relu_()
        pieces, kernels = self._cut(images), self._cut(weight)
        return _convolution(pieces, kernels, self.bias, (1, self._stride[0], 1), (0, 0, 0)).squeeze(2).relu_()

    def finish(self, gradient: Tensor, images: Tensor) -> None:
        """Write the parameters' gradients for that of the convolution itself."""
        if self._reads_planes(images):
            pieces, kernels = self._cut(images), self._cut(self.weight)
            _, by_kernels, by_bias = _back(
                gradient.unsqueeze(2), pieces, kernels, (1, self._stride[0], 1), (0, 0, 0), further=False
            )
            by_weight = by_kernels.permute(0, 2, 3, 4, 1).reshape(self.weight.shape)
        else:
            _, by_weight, by_bias = _back(
                gradient, images, self.weight, self._stride, self._padding, further=False
            )
        self._write(by_weight.mul_(self._factor), by_bias)

    def _reads_planes(self, images: Tensor) -> bool:
        # a single image is brought into order sooner
        return self._cuts and len(images) > 1 and images.is_contiguous()

    def _cut(self, planes: Tensor) -> Tensor:
        """Return planes [N, C, H, W] as volumes [N, S, C, H, W / S], without moving a number."""
        *sides, width = planes.shape
        return planes.view(*sides, width // self._piece, self._piece).permute(0, 4, 1, 2, 3)


class Dense:
    """A linear layer and the ReLU after it: rows [B, I] to features [B, O]."""

    def __init__(self, module: nn.Linear, gradient_of: GradientOf | None) -> None:
        self.weight, self.bias = module.weight.detach(), module.bias.detach()
        self._gradients = _places(module, gradient_of)

    def forward(self, rows: Tensor) -> Tensor:
        """Return features; with few rows torch is the faster one."""
        return torch.addmm(self.bias, rows, self.weight.t()).relu_()

    def backward(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Write the parameters' gradients for that of the product; return the one by the rows."""
        numbers, (by_weight, by_bias) = gradient.numpy(), self._gradients
        np.matmul(numbers.T, rows.numpy(), out=by_weight.numpy())
        torch.sum(gradient, 0, out=by_bias)
        return torch.from_numpy(np.matmul(numbers, self.weight.numpy()))


class ExplicitEncoder:
    """Images [B, C, H, W] in their own type to features [B, D]; without `gradient_of` it is for `forward` alone."""

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
        """Write the parameters' gradients for that of the features [B, D]."""
        lap("forward")
        assert self._kept, "nothing went forward"
        *kept, rows, features = self._kept
        self._kept = []  # each is let go as soon as it was used
        by_rows = self._dense.backward(kernel.threshold_backward(gradient, features, 0), rows)
        by_images = torch.empty_like(kept[-1]).copy_(by_rows.view_as(kept[-1]))
        for layer in reversed(self._others):
            by_images = _through_relu(by_images, kept.pop())
            by_images = layer.backward(by_images, kept[-1])
        self._first.finish(_through_relu(by_images, kept.pop()), kept.pop())


def explicit_encoder(encoder: nn.Module, gradient_of: GradientOf | None = None) -> ExplicitEncoder | None:
    """Return an encoder of one plain image that knows its backward; None for any but ours on the CPU, learned whole.

    Without `gradient_of` it is for `forward` alone.
    """
    if (
        type(encoder) is not ScaledImages
        or type(encoder.encoder) not in KNOWN
        or list(encoder.images) != [""]
    ):
        return None
    parameters = list(encoder.parameters())
    if not computes_on_arrays(parameters[0].device):
        return None
    if gradient_of is not None and any(gradient_of(parameter) is None for parameter in parameters):
        return None
    return ExplicitEncoder(encoder, gradient_of)


def _places(module: nn.Conv2d | nn.Linear, gradient_of: GradientOf | None) -> list[Tensor]:
    """Return where the gradients of weight and bias are to be written."""
    if gradient_of is None:
        return []
    places = [gradient_of(parameter) for parameter in module.parameters()]
    return [place for place in places if place is not None]


def _convolution(
    images: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    """Return the convolution of images or volumes."""
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
    """Return the gradients by images (if it goes `further`), weight and bias."""
    ones, zeros = [1] * len(stride), [0] * len(stride)
    wanted = [further, True, True]
    return kernel.convolution_backward(  # type: ignore[no-any-return]  # torch says nothing of it
        gradient, images, weight, [len(weight)], stride, padding, ones, False, zeros, 1, wanted
    )


def _through_relu(gradient: Tensor, after: Tensor) -> Tensor:
    """Return the gradient by what a ReLU was given, in the place of that by what it gave."""
    return kernel.threshold_backward.grad_input(gradient, after, 0, grad_input=gradient)  # type: ignore[no-any-return]
