"""What the weights of a checkpoint tell of its network, before that is built."""

from collections.abc import Mapping
from operator import mul
from pathlib import Path

from rl_training.algorithms.components import image_reading
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.spaces.as_data import MAX_NUMBERS
from rl_training.core.spaces.layout import num_choices, num_features, observation_leaves
from rl_training.core.state import split_state
from rl_training.core.types import EnvSpec, State
from rl_training.models.encoders import chosen_encoder, encoder_size


def with_flat_images(config: TrainConfig, state: Mapping[str, State], spec: EnvSpec | None) -> TrainConfig:
    """Return the config with `flat` for `auto` if the network has no encoder where it would get one now.

    Earlier versions took an image of floats for numbers.
    """
    names = split_state({"model": state["model"]})[0]
    encoded = any(".encoder." in f".{name}" for name in names)
    if encoded or config.algorithm.encoder != "auto":
        return config
    leaves = {} if spec is None else observation_leaves(spec.observation_space)
    # without looking for channels, which nobody had to tell then
    images = spec is None or any(len(leaf.shape or ()) in (2, 3) for leaf in leaves.values())
    return config.with_overrides(encoder="flat") if images else config


def refuse_larger_network(
    path: Path, config: TrainConfig, state: Mapping[str, State], spec: EnvSpec | None
) -> None:
    """Refuse a network that has more weights than are stored, before it is built: it may be larger than the memory."""
    settings = config.algorithm
    weights = split_state({group: state.get(group, {}) for group in ("model", "critics")})[0].values()
    widths = getattr(settings, "hidden_sizes", ())
    foreign = {*widths, *(getattr(settings, "critic_hidden_sizes", None) or ())}
    foreign = foreign.difference(*(tensor.shape for tensor in weights))
    sizes, beside = (*widths,), 0
    if spec is not None:
        space = spec.observation_space
        if num_features(space) > MAX_NUMBERS:
            raise UserError(f"{path}: an observation of {num_features(space)} numbers is too large")
        sizes = (*widths, num_choices(spec.action_space))
        if ":" not in settings.encoder:
            reading = image_reading(settings, channels_first=config.makes_frames)
            chosen = chosen_encoder(settings.encoder, None, space, reading)
            features, beside = encoder_size(*chosen, space, settings.features_dim, settings.encoder_kwargs)
            sizes = (features, *sizes)
    needed, stored = beside + sum(map(mul, sizes, sizes[1:])), sum(tensor.numel() for tensor in weights)
    if foreign:
        problem = f"hidden_sizes are {list(widths)}, and no stored weight has a side of {max(foreign)}"
    elif needed > stored:
        problem = f"hidden_sizes and spaces ask for {needed} weights or more, and {stored} are stored"
    else:
        return
    raise UserError(f"{path} does not fit the network's settings: {problem}")
