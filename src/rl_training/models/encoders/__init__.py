"""Encoders: the learnable part that turns observations into features, ours and the user's own.

`flat` is none at all: the observation's numbers side by side are the features. The table below is the whole registry.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from gymnasium import Space
from torch import nn

from rl_training.core.errors import UserError, did_you_mean
from rl_training.models.encoders.checking import check_encoder

EncoderClass: TypeAlias = Callable[..., nn.Module]
"""Called as `encoder(observation_space, features_dim, **encoder_kwargs)`; its `features_dim` is its true width."""

ENCODERS: dict[str, EncoderClass] = {}
"""Encoders by name; `auto` and `flat` are not among them, as they have nothing to build."""


def encoder_names() -> list[str]:
    """Return the names that the setting `encoder` knows, besides `module:Name`."""
    return ["auto", "flat", *ENCODERS]


def chosen_encoder(name: str, given: EncoderClass | None) -> EncoderClass | None:
    """Return the class that the setting means, None for `flat`; one of the user's own must be `given`."""
    if given is not None:
        return given
    if name in ("auto", "flat"):
        return None
    if name in ENCODERS:
        return ENCODERS[name]
    known = encoder_names()
    raise UserError(
        f"encoder is '{name}'; use one of {', '.join(known)}, or module:Name{did_you_mean(name, known)}"
    )


def make_encoder(
    encoder: EncoderClass,
    space: Space[Any],
    features_dim: int,
    arguments: Mapping[str, Any],
    generator: torch.Generator,
) -> nn.Module:
    """Return an encoder that was tried once; it acts and is evaluated with dropout off.

    It draws its weights as it likes, from torch's global generator: that one is set from ours, and put back after.
    """
    name = encoder_name(encoder)
    seed = int(torch.randint(2**62, (), generator=generator, dtype=torch.int64))
    callers = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        module = encoder(space, features_dim, **arguments)
        check_encoder(module, name, space)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"encoder {name} cannot be built: {type(error).__name__}: {error}; it is called as "
            f"encoder(observation_space, features_dim={features_dim}{''.join(f', {k}=…' for k in arguments)})"
        ) from error
    finally:
        torch.set_rng_state(callers)
    return module.eval()


def encoder_name(encoder: EncoderClass) -> str:
    """Return `module:Name` of a class or function, under which it is saved."""
    if not hasattr(encoder, "__qualname__"):
        raise UserError(
            f"encoder is {encoder!r}, which has no name to be saved under; give a class, and its arguments as "
            "encoder_kwargs"
        )
    return f"{encoder.__module__}:{encoder.__qualname__}"


__all__ = ["ENCODERS", "EncoderClass", "chosen_encoder", "encoder_name", "encoder_names", "make_encoder"]
