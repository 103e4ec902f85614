"""One observation space and one action space of every supported kind."""

import numpy as np
from gymnasium import spaces

OBSERVATIONS = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "discrete": spaces.Discrete(4, start=1),
    "multidiscrete": spaces.MultiDiscrete([3, 2]),
    "multibinary": spaces.MultiBinary(4),
    "dict": spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,), np.float64), "gear": spaces.Discrete(3)}),
    "nested": spaces.Dict(
        {
            "arm": spaces.Dict(
                {"angle": spaces.Box(-1.0, 1.0, (2, 2), np.float32), "on": spaces.MultiBinary(2)}
            ),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 9, (1,), np.int64))),
        }
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "discrete_from_2": spaces.Discrete(3, start=2),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multibinary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 0.5], np.float32)),
}
