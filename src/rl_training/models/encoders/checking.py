"""Checks an encoder with a trial run, and raises a clear error for an invalid one."""

import copy
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import leaf_dtype, observation_leaves
from rl_training.core.types import Obs, joined, moved
from rl_training.models.images import ScaledImages
from rl_training.models.inputs import ObservationInputs

ROWS = 3
LARGEST = 10.0


def check_encoder(module: Any, name: str, inputs: ObservationInputs) -> nn.Module:
    """Raise an error unless it is a module with a `features_dim` that returns finite features [B, features_dim].

    The trial uses one row in eval mode, then several in training mode. The returned module also scales images.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"encoder {name} creates a {type(module).__name__}; it must be a torch.nn.Module")
    width = getattr(module, "features_dim", None)
    if not isinstance(width, Integral) or width < 1:
        raise UserError(
            f"encoder {name} has features_dim {width!r}; set self.features_dim to the number of features it returns"
        )
    whole = (ScaledImages(module, inputs.images) if inputs.images else module).eval()
    _try(whole, name, int(width), inputs, rows=1)
    wanted = torch.get_default_dtype()
    for key, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != wanted:
            raise UserError(
                f"encoder {name} has a parameter '{key}' of type {parameter.dtype}; make it {wanted}"
            )
    for key, part in module.state_dict().items():
        if isinstance(part, Tensor) and part.is_complex():
            raise UserError(
                f"encoder {name} has '{key}' of type {part.dtype}, which cannot be saved; keep its real and imaginary "
                "part, or register it with persistent=False"
            )
    before = copy.deepcopy(module.state_dict())
    whole.train()
    _try(whole, name, int(width), inputs, rows=ROWS)
    # undo changes by the trial, such as batch statistics
    module.load_state_dict(before)
    return whole


def learns_from_one_row(module: nn.Module, inputs: ObservationInputs) -> bool:
    """Return whether an encoder can be trained on a single row; one with batch statistics cannot."""
    before, training = copy.deepcopy(module.state_dict()), module.training
    device = next(module.parameters(), torch.zeros(0)).device
    try:
        with torch.no_grad():
            module.train()(moved(sampled_inputs(inputs, 1), device))
    except ValueError:
        return False
    finally:
        module.load_state_dict(before)
        module.train(training)
    return True


def treats_rows_separately(module: nn.Module, inputs: ObservationInputs) -> bool:
    """Return whether the features of a row depend on that row only, and a pass leaves all buffers as they are.

    This is not so for batch statistics. The module is tried in its present mode; random numbers, as in dropout, are
    the same in each trial.
    """
    before, generator = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    device = next(module.parameters(), torch.zeros(0)).device
    trial = sampled_inputs(inputs, 2 * ROWS)
    features = []
    try:
        for other in (
            slice(ROWS, None),
            slice(None, ROWS),
        ):  # the first rows with themselves, and with others
            parts = _parts(trial)
            both = [torch.cat([part[:ROWS], part[other]]) for part in parts]
            given: Obs = dict(zip(trial, both, strict=True)) if isinstance(trial, dict) else both[0]
            torch.manual_seed(0)
            with torch.no_grad():
                features.append(module(moved(given, device))[:ROWS])
        after = module.state_dict()
        unchanged = all(torch.equal(after[name], tensor) for name, tensor in before.items())
        return unchanged and torch.allclose(*features)
    finally:
        module.load_state_dict(before)
        torch.set_rng_state(generator)


def sampled_inputs(inputs: ObservationInputs, rows: int) -> Obs:
    """Return inputs [rows, ...] from random observations of the space, clipped to moderate values."""
    found = {}
    for key, leaf in observation_leaves(inputs.space).items():
        own = copy.deepcopy(leaf)
        own.seed(0)
        drawn = np.stack([np.asarray(own.sample()) for _ in range(rows)])
        found[key] = torch.from_numpy(drawn.astype(leaf_dtype(leaf), copy=False))
    obs: Obs = joined(found)
    return inputs.arranged(inputs.vector(obs).clamp(-LARGEST, LARGEST), obs)


def _try(module: nn.Module, name: str, width: int, inputs: ObservationInputs, *, rows: int) -> None:
    trial = sampled_inputs(inputs, rows)
    before = copy.deepcopy(trial)
    try:
        with torch.no_grad():
            features = module(trial)
    except Exception as error:
        raise UserError(
            f"encoder {name} fails on inputs {shapes(trial)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(features, Tensor):
        raise UserError(
            f"encoder {name} returns a {type(features).__name__}; it must return a tensor [B, {width}]"
        )
    if features.shape != (rows, width):
        raise UserError(
            f"encoder {name} returns shape {list(features.shape)} for {rows} observations; with features_dim "
            f"{width} it must be {[rows, width]}"
        )
    if not bool(torch.isfinite(features).all()):
        raise UserError(
            f"encoder {name} returns features that are not finite for an observation of its space"
        )
    pairs = zip(_parts(trial), _parts(before), strict=True)
    if not all(torch.equal(now, then) for now, then in pairs):
        raise UserError(f"encoder {name} changes its inputs in place; let it work on a copy")


def _parts(inputs: Obs) -> list[Tensor]:
    return list(inputs.values()) if isinstance(inputs, dict) else [inputs]


def shapes(inputs: Obs) -> str:
    """Return the shapes of inputs as text."""
    if isinstance(inputs, Tensor):
        return str(list(inputs.shape))
    return "{" + ", ".join(f"{key}: {list(part.shape)}" for key, part in inputs.items()) + "}"
