"""What observations of very many categories take, told and checked before a network is built for them."""

from collections.abc import Callable

import numpy as np
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.spaces import float_dtype, num_features, observation_leaves
from rl_training.core.types import EnvSpec
from rl_training.experiment.memory import refuse_too_large, size_text

WORTH_TELLING = 10**9
"""Bytes: less is what many runs take."""
COPIES_OF_WEIGHTS = 8
"""Weights, gradients and two moments, of an actor and a critic: at least, as some learners have more networks."""


def tell_one_hots(config: TrainConfig, spec: EnvSpec, notice: Callable[[str], None]) -> None:
    """Say what one-hots take while a run learns, if that is much; refuse what is not there.

    Buffers keep categories as whole numbers; one-hots are made of the rows of an update, and the first layer has
    weights for each of their numbers. That layer is counted where the observation's numbers go into it directly.
    """
    leaves = observation_leaves(spec.observation_space).values()
    if not any(isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for leaf in leaves):
        return
    numbers, settings = num_features(spec.observation_space), config.algorithm
    per_row = numbers * np.dtype(float_dtype()).itemsize
    rows, remedy = settings.rows_at_once(config.num_envs)
    update, layers = rows * per_row, 0
    if settings.encoder in ("auto", "flat"):
        width = next(iter(getattr(settings, "hidden_sizes", ())), 0)
        layers = COPIES_OF_WEIGHTS * width * per_row
    if update + layers < WORTH_TELLING:
        return
    refuse_too_large(
        update + layers,
        f"an observation of {numbers:,} numbers (categories are read one-hot)",
        f"{remedy}, or show it in other numbers, such as coordinates, by a wrapper",
    )
    weights = f", and the first layers of the networks about {size_text(layers)}" if layers else ""
    notice(
        f"an observation becomes {numbers:,} numbers, as categories are read one-hot: an update takes about "
        f"{size_text(update)} of memory for them{weights}"
    )
