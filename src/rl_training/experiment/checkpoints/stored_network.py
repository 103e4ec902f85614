"""Checks the size of a checkpoint's network against its stored weights before the network is built."""

from collections.abc import Mapping
from operator import mul
from pathlib import Path

from rl_training.algorithms.components import BuildContext, image_reading
from rl_training.algorithms.teams import state_of_team, team_specs
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.spaces.as_data import MAX_NUMBERS
from rl_training.core.spaces.layout import num_choices, num_features
from rl_training.core.state import split_state
from rl_training.core.types import EnvSpec, State
from rl_training.models.encoders import chosen_encoder, encoder_size


def refuse_larger_network(path: Path, config: TrainConfig, state: Mapping[str, State], spec: EnvSpec) -> None:
    """Raise if the network would have more weights than are stored: a forged config could exhaust the memory."""
    if spec.game is not None and len(spec.game.teams) > 1:
        for name, (own, _) in team_specs(spec).items():
            refuse_larger_network(path, config, state_of_team(state, name), own)
        return
    settings = config.algorithm
    weights = split_state({group: state.get(group, {}) for group in ("model", "critics")})[0].values()
    widths = getattr(settings, "hidden_sizes", ())
    foreign = {*widths, *(getattr(settings, "critic_hidden_sizes", None) or ())}
    foreign = foreign.difference(*(tensor.shape for tensor in weights))
    space = spec.observation_space
    for read in (space, spec.critic_space):
        if read is not None and num_features(read) > MAX_NUMBERS:
            raise UserError(f"{path}: an observation of {num_features(read)} numbers is too large")
    sizes, beside = (*widths, num_choices(spec.action_space)), 0
    if ":" not in settings.encoder:
        reading = image_reading(settings, channels_first=config.makes_frames)
        chosen = chosen_encoder(settings.encoder, None, space, reading)
        features, beside = encoder_size(*chosen, space, settings.features_dim, settings.encoder_kwargs)
        sizes = (features, *sizes)
    beside += _weights_for_entries(config, spec)
    needed, stored = beside + sum(map(mul, sizes, sizes[1:])), sum(tensor.numel() for tensor in weights)
    if foreign:
        problem = f"hidden_sizes are {list(widths)}, and no stored weight has a side of {max(foreign)}"
    elif needed > stored:
        problem = f"hidden_sizes and spaces ask for {needed} weights or more, and {stored} are stored"
    else:
        return
    raise UserError(f"{path} does not fit the network's settings: {problem}")


def _weights_for_entries(config: TrainConfig, spec: EnvSpec) -> int:
    """Return how many weights what only the critic reads needs: those of its encoder, and of the layer after that."""
    space, settings = spec.critic_space, config.algorithm
    if space is None:
        return 0
    found = BuildContext(spec, 0, channels_first=config.makes_frames).entries_encoding(settings)
    features, weights = encoder_size(found.encoder, found.images, space, found.features_dim, found.arguments)
    given = getattr(settings, "critic_hidden_sizes", None)
    widths = tuple(getattr(settings, "hidden_sizes", ()) if given is None else given)
    return weights + features * int(getattr(settings, "core_size", 0) or next(iter(widths), 1))
