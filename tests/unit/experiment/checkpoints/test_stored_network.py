"""A network larger than its stored weights is refused before it is built."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec
from rl_training.experiment.checkpoints.stored_network import refuse_larger_network

FLAT = {"model": {"network.actor_body.0.weight": torch.zeros(2)}}
ENCODED = {"model": {"network.encoder.encoder.trunks.0.0.0.weight": torch.zeros(2)}}


def spec(*shape: int) -> EnvSpec:
    return EnvSpec(spaces.Box(-1, 1, shape, np.float32), spaces.Discrete(2), 1)


def test_a_named_encoder_larger_than_what_is_stored_is_refused_before_it_is_built() -> None:
    config = TrainConfig(algo="ppo", env_id="x").with_overrides(
        encoder="nature", features_dim=2**14, hidden_sizes=()
    )
    with pytest.raises(UserError, match=r"ask for \d{9,} weights or more, and 2 are stored"):
        refuse_larger_network(Path("there"), config, ENCODED, spec(1024, 1024, 3))
