"""How images are read follows from the settings and from whether frames are stacked."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.algorithms.parts import BuildContext, image_reading
from rl_training.algorithms.ppo import PPOConfig
from rl_training.algorithms.sac import SACConfig
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.types import EnvSpec
from rl_training.models.images import image_leaves


def context(frame_stack: int, *shape: int) -> BuildContext:
    space = spaces.Box(0, 255, shape, np.uint8)
    return BuildContext(EnvSpec(space, spaces.Discrete(2), 1), 0, frame_stack=frame_stack)


@pytest.mark.parametrize("channels", ["auto", "last", "first"])
@pytest.mark.parametrize("shape", [(16, 10, 10), (12, 7, 7), (12, 84, 84)])
def test_a_stack_has_its_channels_first_wherever_the_environment_has_them(
    shape: tuple[int, ...], channels: Any
) -> None:
    """Four frames of 10 x 10 x 4 are 16 planes, though 10 is the smaller side."""
    settings = PPOConfig(image_channels=channels)
    encoding = context(4, *shape).encoding(settings)
    (leaf,) = image_leaves(spaces.Box(0, 255, shape, np.uint8), encoding.images).values()
    assert (leaf.channels, leaf.height, leaf.width) == shape
    assert image_reading(settings, 1).channels == channels


def test_sac_shares_an_encoder_of_images_only() -> None:
    settings = SACConfig()
    assert context(1, 84, 84).encoding(settings, shared=settings.share_encoder).shared
    assert not context(1, 5).encoding(settings, shared=settings.share_encoder).shared
    settings = SACConfig(share_encoder=False)
    assert not context(1, 84, 84).encoding(settings, shared=settings.share_encoder).shared


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"encoder": "flat", "image_scale": 0.1},
            "image_scale is given, but encoder 'flat' has no use for it",
        ),
        ({"encoder": "flat", "image_channels": "last"}, "image_channels is given, but encoder 'flat'"),
        ({"image_scale": -1.0}, "image_scale is -1"),
        (
            {"image_channels": "last", "preprocessing": "atari"},
            "image_channels is given, but preprocessing 'atari'",
        ),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        TrainConfig(algo="ppo", env_id="x").with_overrides(**settings)
