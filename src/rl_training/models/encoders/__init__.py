"""Encoders: the learnable part that turns observations into features, ours and custom ones.

`flat` has no encoder: the features are all numbers of the observation, concatenated.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from gymnasium import Space
from torch import nn

from rl_training.core.errors import UserError, did_you_mean
from rl_training.core.spaces.layout import num_features
from rl_training.models.cnn import AutoCNN, ImpalaCNN, NatureCNN, SmallCNN
from rl_training.models.encoders.checking import check_encoder
from rl_training.models.images import READING, ImageReading, encoder_space, image_leaves
from rl_training.models.inputs import ObservationInputs

EncoderClass: TypeAlias = Callable[..., nn.Module]
"""Called as `encoder(observation_space, features_dim, **encoder_kwargs)`; its `features_dim` is its true width."""

ENCODERS: dict[str, EncoderClass] = {"nature": NatureCNN, "impala": ImpalaCNN, "small": SmallCNN}
"""Encoders by name; `auto` selects one of them, and `flat` has none."""


def encoder_names() -> list[str]:
    """Return the valid names of the setting `encoder`, besides `module:Name`."""
    return ["auto", "flat", *ENCODERS]


def chosen_encoder(
    name: str, given: EncoderClass | None, space: Space[Any], reading: ImageReading = READING
) -> tuple[EncoderClass | None, ImageReading]:
    """Return the class for the setting (None for `flat`), and which entries are images.

    A custom encoder is `given`; it reads a Box of rank 2 unchanged.
    """
    if given is not None:
        return given, replace(reading, any_size=True, planes=False)
    if name == "auto":
        return (AutoCNN if image_leaves(space, reading) else None), reading
    if name == "flat":
        return None, reading
    if name not in ENCODERS:
        known = encoder_names()
        raise UserError(
            f"encoder is '{name}'; use one of {', '.join(known)}, or module:Name{did_you_mean(name, known)}"
        )
    reading = replace(reading, any_size=True)
    if not image_leaves(space, reading):
        raise UserError(f"encoder '{name}' reads images, and {space} has none; use encoder auto or flat")
    return ENCODERS[name], reading


def make_encoder(
    encoder: EncoderClass,
    inputs: ObservationInputs,
    features_dim: int,
    arguments: Mapping[str, Any],
    generator: torch.Generator,
) -> nn.Module:
    """Return an encoder in eval mode, after a trial run.

    It initialises its weights from torch's global generator, which is seeded from `generator` and restored afterwards.
    """
    name = encoder_name(encoder)
    seed = int(torch.randint(2**62, (), generator=generator, dtype=torch.int64))
    callers = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        with _explained(name, features_dim, arguments):
            module = encoder(encoder_space(inputs.space, inputs.images), features_dim, **arguments)
            whole = check_encoder(module, name, inputs)
    finally:
        torch.set_rng_state(callers)
    return whole.eval()


@contextlib.contextmanager
def _explained(name: str, features_dim: int, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Turn an error of an encoder's constructor into one that shows the call."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"encoder {name} cannot be built: {type(error).__name__}: {error}; it is called as "
            f"encoder(observation_space, features_dim={features_dim}{''.join(f', {k}=…' for k in arguments)})"
        ) from error


def encoder_size(
    encoder: EncoderClass | None,
    reading: ImageReading,
    space: Space[Any],
    features_dim: int,
    arguments: Mapping[str, Any],
) -> tuple[int, int]:
    """Return the number of features and of weights of one of our encoders, without allocating memory."""
    if encoder is None:
        return num_features(space), 0
    with _explained(encoder_name(encoder), features_dim, arguments), torch.device("meta"):
        module = encoder(encoder_space(space, image_leaves(space, reading)), features_dim, **arguments)
    return int(module.features_dim), sum(part.numel() for part in module.parameters())  # type: ignore[arg-type]  # ours


def is_ours(encoder: EncoderClass | None) -> bool:
    """Return whether an encoder is one of ours; others initialise their own weights."""
    return encoder in (AutoCNN, *ENCODERS.values())


def encoder_name(encoder: EncoderClass) -> str:
    """Return `module:Name` of a class or function, which is saved in checkpoints."""
    if not hasattr(encoder, "__qualname__"):
        raise UserError(
            f"encoder is {encoder!r}, which has no name to save; pass a class, and its arguments as "
            "encoder_kwargs"
        )
    return f"{encoder.__module__}:{encoder.__qualname__}"
