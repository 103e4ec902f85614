"""A wrong encoder gets one sentence that names it, before anything depends on it."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import tiny_encoders
import torch
from gymnasium import spaces
from torch import nn

from rl_training.core.errors import UserError
from rl_training.models.encoders import chosen_encoder, encoder_name, make_encoder
from rl_training.models.fast.acting import numpy_twin
from rl_training.models.inputs import ObservationInputs

VECTOR = spaces.Box(-5, 5, (4,), np.float32)


def make(encoder: Any, **arguments: Any) -> nn.Module:
    return make_encoder(encoder, ObservationInputs(VECTOR), 6, arguments, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("constructor", "cannot be built: RuntimeError: no such file: weights.pt; it is called as "
         "encoder(observation_space, features_dim=6, how=…)"),
        ("width", "returns shape [1, 6] for 1 observations; with features_dim 7 it must be [1, 7]"),
        ("no width", "has features_dim None; set self.features_dim to the number of features it returns"),
        ("nan", "returns features that are not finite for an observation of its space"),
        ("flat", "returns shape [6] for 1 observations; with features_dim 6 it must be [1, 6]"),
        ("tuple", "returns a tuple; it must return a tensor [B, 6]"),
        ("forward", "fails on inputs [1, 4]: RuntimeError: "),
    ],
)  # fmt: skip
def test_a_wrong_encoder_gets_one_sentence(how: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        make(tiny_encoders.Wrong, how=how)
    assert str(caught.value).startswith(f"encoder tiny_encoders:Wrong {sentence}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoder", [lambda space, width: "text", lambda space, width: nn.Linear])
def test_what_is_no_module_is_refused(encoder: Any) -> None:
    with pytest.raises(UserError, match=r"it must be a torch\.nn\.Module"):
        make(encoder)


def test_an_argument_too_many_is_named() -> None:
    with pytest.raises(UserError, match=r"cannot be built: TypeError: .*'colour'"):
        make(tiny_encoders.Plain, colour="red")


def test_the_trial_leaves_no_trace() -> None:
    encoder = make(tiny_encoders.Batched)
    assert not encoder.training
    assert encoder.norm.num_batches_tracked == 0  # type: ignore[union-attr]
    assert not encoder.norm.running_mean.any()  # type: ignore[union-attr, operator]


def test_layers_that_wait_for_their_first_input_are_ready_after_it() -> None:
    encoder = make(tiny_encoders.Lazy)
    assert [list(parameter.shape) for parameter in encoder.parameters()] == [[6, 4], [6]]
    again = make(tiny_encoders.Lazy)
    assert torch.equal(encoder.layer.weight, again.layer.weight)  # type: ignore[union-attr, arg-type]


def test_names_of_encoders() -> None:
    assert chosen_encoder("auto", None, VECTOR)[0] is None
    assert chosen_encoder("flat", None, VECTOR)[0] is None
    assert chosen_encoder("anything:Named", tiny_encoders.Plain, VECTOR)[0] is tiny_encoders.Plain
    with pytest.raises(UserError, match="did you mean 'flat'"):
        chosen_encoder("flatt", None, VECTOR)
    assert encoder_name(tiny_encoders.Plain) == "tiny_encoders:Plain"


@pytest.mark.parametrize(
    "layer",
    [nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ELU(alpha=0.5), nn.GELU(), nn.Identity()],
)
def test_a_network_with_a_layer_that_numpy_does_not_know_has_no_twin(layer: nn.Module) -> None:
    known = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    assert numpy_twin(known) is not None
    assert numpy_twin(nn.Sequential(nn.Linear(4, 8), layer, nn.Tanh(), nn.Linear(8, 2))) is None
    assert numpy_twin(nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh())) is None
    assert numpy_twin(nn.Sequential(nn.Tanh(), nn.Linear(4, 8))) is None


def test_parameters_of_another_type_are_refused() -> None:
    def double(space: Any, width: int) -> nn.Module:
        return tiny_encoders.Plain(space, width).double()

    with pytest.raises(UserError, match=r"fails on inputs|of type torch.float64; make it torch.float32"):
        make(double)


def test_state_that_is_no_tensor_does_no_harm() -> None:
    class Extra(tiny_encoders.Plain):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 2}

        def set_extra_state(self, state: dict[str, int]) -> None:
            assert state == {"version": 2}

    assert make(Extra).features_dim == 6


def test_what_has_no_name_cannot_be_saved() -> None:
    with pytest.raises(UserError, match=r"no name to save; pass a class, and its arguments"):
        encoder_name(partial(tiny_encoders.Plain, scale=2.0))


def test_an_encoder_that_changes_its_inputs_is_refused() -> None:
    with pytest.raises(
        UserError, match="tiny_encoders:InPlace changes its inputs in place; let it work on a copy"
    ):
        make(tiny_encoders.InPlace)


def test_numbers_that_no_file_can_hold_are_refused() -> None:
    class Rotary(tiny_encoders.Plain):
        def __init__(self, space: Any, width: int) -> None:
            super().__init__(space, width)
            self.register_buffer("turn", torch.ones(2, dtype=torch.complex64))

    with pytest.raises(UserError, match=r"has 'turn' of type torch.complex64, which cannot be saved"):
        make(Rotary)
