"""What the weights of a checkpoint tell: agents from before images, and networks larger than what is stored."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec
from rl_training.experiment.checkpoints.stored_network import refuse_larger_network, with_flat_images

FLAT = {"model": {"network.actor_body.0.weight": torch.zeros(2)}}
ENCODED = {"model": {"network.encoder.encoder.trunks.0.0.0.weight": torch.zeros(2)}}


def spec(*shape: int) -> EnvSpec:
    return EnvSpec(spaces.Box(-1, 1, shape, np.float32), spaces.Discrete(2), 1)


@pytest.mark.parametrize(
    ("state", "shape", "encoder"),
    [
        (FLAT, (8, 8), "flat"),
        (FLAT, (8, 8, 3), "flat"),
        (FLAT, (8, 8, 8), "flat"),  # nobody had to say where its channels are
        (FLAT, (4,), "auto"),
        (ENCODED, (8, 8, 3), "auto"),
    ],
)
def test_an_agent_without_an_encoder_reads_images_as_numbers_as_it_did(
    state: Any, shape: tuple[int, ...], encoder: str
) -> None:
    config = TrainConfig(algo="ppo", env_id="x")
    assert with_flat_images(config, state, spec(*shape)).algorithm.encoder == encoder


def test_a_named_encoder_larger_than_what_is_stored_is_refused_before_it_is_built() -> None:
    config = TrainConfig(algo="ppo", env_id="x").with_overrides(
        encoder="nature", features_dim=2**14, hidden_sizes=()
    )
    with pytest.raises(UserError, match=r"ask for \d{9,} weights or more, and 2 are stored"):
        refuse_larger_network(Path("there"), config, ENCODED, spec(1024, 1024, 3))
