"""An encoder is tried before anything depends on it, and a wrong one gets one sentence."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.types import Obs
from rl_training.models.inputs import ObservationInputs

ROWS = 3


def check_encoder(module: Any, name: str, inputs: ObservationInputs) -> None:
    """Refuse what is no module, does not say its width, or does not make finite features [B, features_dim] of inputs.

    It is tried as it acts, on one row, and as it learns, on several.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"encoder {name} gives a {type(module).__name__}; it must be a torch.nn.Module")
    width = getattr(module, "features_dim", None)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise UserError(
            f"encoder {name} has features_dim {width!r}; set self.features_dim to the number of features it returns"
        )
    module.eval()
    _try(module, name, width, inputs, rows=1)
    wanted = torch.get_default_dtype()
    for key, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != wanted:
            raise UserError(
                f"encoder {name} has a parameter '{key}' of type {parameter.dtype}; make it {wanted}"
            )
    before = copy.deepcopy(module.state_dict())
    module.train()
    _try(module, name, width, inputs, rows=ROWS)
    # whatever the trial changed, such as statistics of batches, is as it was
    module.load_state_dict(before)


def learns_from_one_row(module: nn.Module, inputs: ObservationInputs) -> bool:
    """Tell whether an encoder can be trained on a single row; one with batch statistics cannot."""
    before, training = copy.deepcopy(module.state_dict()), module.training
    device = next(module.parameters(), torch.zeros(0)).device
    try:
        with torch.no_grad():
            module.train()(inputs.arranged(torch.zeros(1, inputs.size, device=device)))
    except ValueError:
        return False
    finally:
        module.load_state_dict(before)
        module.train(training)
    return True


def _try(module: nn.Module, name: str, width: int, inputs: ObservationInputs, *, rows: int) -> None:
    trial = inputs.arranged(torch.zeros(rows, inputs.size))
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
        raise UserError(f"encoder {name} returns features that are not finite for an observation of zeros")


def shapes(inputs: Obs) -> str:
    """Return the shapes of inputs as text."""
    if isinstance(inputs, Tensor):
        return str(list(inputs.shape))
    return "{" + ", ".join(f"{key}: {list(part.shape)}" for key, part in inputs.items()) + "}"
