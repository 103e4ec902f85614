"""Which observations replay splits into frames."""

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from rl_training.algorithms.components import BuildContext
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.core.types import EnvSpec


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
