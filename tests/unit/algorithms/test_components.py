"""How images are read follows from the settings and from whether frames were made of them."""

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from rl_training.algorithms.components import BuildContext, image_reading
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.algorithms.ppo import PPOConfig
from rl_training.algorithms.sac import SACConfig
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.types import EnvSpec
from rl_training.models.images import image_leaves


def context(*shape: int, channels_first: bool = False) -> BuildContext:
    space = spaces.Box(0, 255, shape, np.uint8)
    return BuildContext(EnvSpec(space, spaces.Discrete(2), 1), 0, channels_first=channels_first)


@pytest.mark.parametrize("channels", ["auto", "last", "first"])
@pytest.mark.parametrize("shape", [(16, 10, 10), (12, 7, 7), (12, 84, 84), (5, 4, 4)])
def test_frames_have_their_channels_first_wherever_the_environment_has_them(
    shape: tuple[int, ...], channels: Any
) -> None:
    """Four frames of 10 x 10 x 4 are 16 planes, though 10 is the smaller side."""
    settings = PPOConfig(image_channels=channels)
    encoding = context(*shape, channels_first=True).encoding(settings)
    (leaf,) = image_leaves(spaces.Box(0, 255, shape, np.uint8), encoding.images).values()
    assert (leaf.channels, leaf.height, leaf.width) == shape
    assert image_reading(settings, channels_first=False).channels == channels


def test_sac_shares_an_encoder_of_images_only() -> None:
    settings = SACConfig()
    assert context(84, 84).encoding(settings, shared=settings.share_encoder).shared
    assert not context(5).encoding(settings, shared=settings.share_encoder).shared
    settings = SACConfig(share_encoder=False)
    assert not context(84, 84).encoding(settings, shared=settings.share_encoder).shared


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"encoder": "flat", "image_scale": 0.1},
            "image_scale is given, but encoder 'flat' does not use it",
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


@pytest.mark.parametrize(
    ("changes", "makes"),
    [
        ({}, False),
        ({"preprocessing": "image"}, False),
        ({"preprocessing": "image", "image_size": 4}, True),
        ({"preprocessing": "image", "grayscale": True}, True),
        ({"preprocessing": "image", "frame_stack": 2}, True),
        ({"preprocessing": "atari", "frame_stack": 1, "grayscale": False}, True),
    ],
)
def test_whoever_makes_frames_knows_where_their_channels_are(changes: dict[str, Any], makes: bool) -> None:
    assert TrainConfig(algo="ppo", env_id="E-v0", **changes).makes_frames is makes


@pytest.mark.parametrize("settings", [{"image_scale": 0.1}, {"image_channels": "last"}])
def test_what_is_said_of_images_needs_one(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(settings))} is given, but no observation is an image"):
        context(5).encoding(PPOConfig(**settings))
    assert context(84, 84).encoding(PPOConfig(**settings)).encoder is not None


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("space", "frame_stack", "frame"),
    [
        (image(4, 6, 6), 4, (1, 6, 6)),
        (image(12, 6, 6), 4, (3, 6, 6)),
        (image(4, 6), 4, (1, 6)),
        (image(4, 6, 6), 1, None),
        (image(6, 6, 3), 4, None),
        (spaces.Box(-1.0, 1.0, (4,)), 4, None),
        (spaces.Dict({"image": image(4, 6, 6)}), 4, None),
        (spaces.Discrete(4), 4, None),
    ],
)
def test_stacks_along_the_first_axis_of_a_plain_observation_share_frames(
    space: Space[Any], frame_stack: int, frame: tuple[int, ...] | None
) -> None:
    context = BuildContext(EnvSpec(space, spaces.Discrete(2), 2), 0, frame_stack=frame_stack)
    settings = DQNConfig(encoder="flat", buffer_size=100, hidden_sizes=(4,))
    source: Any = DQN.build_source(settings, context, DQN.build_actor(settings, context))
    frames = source.buffer.frames
    assert (None if frames is None else frames.shape) == frame
    assert set(source.storages) == ({"transitions"} if frame is None else {"transitions", "frames"})
