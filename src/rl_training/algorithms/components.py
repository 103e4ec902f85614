"""The components of an algorithm, and the part of a run's settings that its builders see."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from rl_training.algorithms.losses import Loss
from rl_training.config import AlgorithmConfig, UpdatePath
from rl_training.config.plain_data import PLAIN, is_plain
from rl_training.core.errors import UserError, did_you_mean
from rl_training.core.protocols import ExperienceSource, Explorer, Learner
from rl_training.core.types import EnvSpec, State
from rl_training.datasets.dataset import Dataset
from rl_training.models.encoders import EncoderClass, chosen_encoder, encoder_names
from rl_training.models.images import ImageReading, image_leaves
from rl_training.models.normalizer import RewardNormalizer
from rl_training.policies.base import Encoding, NetworkPolicy

PolicyT_co = TypeVar("PolicyT_co", bound=NetworkPolicy, covariant=True)


@dataclass(frozen=True)
class BuildContext:
    """The part of a run's config that builders may use, and the generator of initial weights.

    Weights are drawn in the order of construction: the actor's, then the learner's.
    """

    spec: EnvSpec
    seed: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    normalize_obs: bool = False
    normalize_reward: bool = False
    encoder: EncoderClass | None = None
    """The class of a custom encoder (`module:Name`)."""
    frame_stack: int = 1
    """Number of frames that are stacked along the first axis of an observation; replay stores each frame once."""
    channels_first: bool = False
    """Whether images have their channels first; otherwise the settings apply."""
    losses: Mapping[str, Loss] = field(default_factory=dict)
    """The losses that train, by name; see `Algorithm.losses`."""
    losses_read: set[str] = field(default_factory=set)
    """The losses that the builders asked for."""
    update_path: UpdatePath = "auto"
    dataset: Dataset | None = None
    """The dataset to learn from, if there is one."""
    dataset_fraction: float = 1.0
    """Part of every batch that comes from the dataset."""
    held_out_fraction: float = 0.0
    """Part of its episodes that is not learned from."""
    stale: bool = False
    """Whether rollouts may come from an older policy, so that on-policy algorithms correct for that."""
    weights: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.weights.manual_seed(self.seed)

    def loss(self, name: str, built_in: Loss) -> Loss:
        """Return the loss of this name: the user's, if there is one, or else the built-in one."""
        self.losses_read.add(name)
        loss = self.losses.get(name) or built_in.current()
        return Loss(loss.function) if self.update_path == "autograd" else loss

    def encoding(self, settings: AlgorithmConfig, *, shared: bool | None = True) -> Encoding:
        """Return the encoder of the settings; `shared` by actor and critic, where None shares encoders of images."""
        space = self.spec.observation_space
        reading = image_reading(settings, channels_first=self.channels_first)
        encoder, images = chosen_encoder(settings.encoder, self.encoder, space, reading)
        for name, usual in (("image_scale", None), ("image_channels", "auto")):
            if encoder is None and getattr(settings, name) != usual:
                raise UserError(f"{name} is given, but no observation is an image; leave it out")
        if shared is None:
            shared = encoder is not None and bool(image_leaves(space, images))
        return Encoding(encoder, settings.features_dim, dict(settings.encoder_kwargs), shared, images)

    def entries_encoding(self, settings: AlgorithmConfig) -> Encoding:
        """Return how a critic reads `spec.critic_space`: images by the encoder of the settings, or by `auto`.

        Encoders of users are not asked to read it.
        """
        space = self.spec.critic_space
        if space is None or settings.encoder == "flat":
            return Encoding()
        custom = ":" in settings.encoder
        name, arguments = ("auto", {}) if custom else (settings.encoder, dict(settings.encoder_kwargs))
        reading = image_reading(settings, channels_first=self.channels_first)
        if name != "auto" and not image_leaves(space, replace(reading, any_size=True)):
            return Encoding()
        encoder, images = chosen_encoder(name, None, space, reading)
        return Encoding(encoder, settings.features_dim, arguments, images=images)

    def policy_settings(self, settings: Any, *, shared: bool | None = True) -> dict[str, Any]:
        """Return the arguments that all policies share; `shared` is that of `encoding`."""
        return {
            "hidden_sizes": settings.hidden_sizes,
            "activation": settings.activation,
            "encoding": self.encoding(settings, shared=shared),
            "normalize_obs": self.normalize_obs,
            "reward_normalizer": RewardNormalizer(settings.gamma) if self.normalize_reward else None,
            "generator": self.weights,
        }


def image_reading(settings: AlgorithmConfig, *, channels_first: bool) -> ImageReading:
    """Return how images are read; `channels_first` overrides the settings, which describe the raw environment."""
    return ImageReading(settings.image_scale, "first" if channels_first else settings.image_channels)


@dataclass(frozen=True)
class Actor(Generic[PolicyT_co]):
    """The parts for sampling, predicting and evaluating."""

    policy: PolicyT_co
    explorer: Explorer


class StatefulLearner(Learner[Any], Protocol):
    """A learner whose state is grouped by file; `model` is everything that acting needs.

    `not_finite` names a learned value in a state that is nan or infinite. `learned_state` is networks and weights only,
    which `load_learned` copies into another learner. `update_path` says how gradients are computed.
    """

    @property
    def update_path(self) -> str: ...

    def not_finite(self, state: Mapping[str, State]) -> str | None: ...
    def state_dict(self) -> dict[str, State]: ...
    def load_state_dict(self, state: Mapping[str, State]) -> None: ...
    def learned_state(self) -> dict[str, State]: ...
    def load_learned(self, state: Mapping[str, State]) -> None: ...


@dataclass(frozen=True)
class Parts:
    """The parts of a run, besides its environments."""

    actor: Actor[Any]
    source: ExperienceSource[Any]
    learner: StatefulLearner


def sde_problems(*, use_sde: bool, sde_sample_freq: int) -> list[str]:
    """Return the problems of the settings for state-dependent exploration."""
    if not use_sde and sde_sample_freq != -1:
        return [
            f"sde_sample_freq is {sde_sample_freq}, but use_sde is false; leave it out, or set use_sde to true"
        ]
    if sde_sample_freq < 1 and sde_sample_freq != -1:
        return [
            f"sde_sample_freq is {sde_sample_freq}; use 1 or more, or -1 for one draw per phase of collecting"
        ]
    return []


def encoder_problems(settings: AlgorithmConfig) -> list[str]:
    """Return the problems of the encoder settings that are visible before the encoder is built."""
    found = settings.outside("features_dim", 1, 2**14)
    if settings.image_scale is not None:
        found += settings.not_positive("image_scale")
    for name, usual in (("image_scale", None), ("image_channels", "auto"), ("encoder_kwargs", {})):
        if settings.encoder == "flat" and getattr(settings, name) != usual:
            found.append(f"{name} is given, but encoder 'flat' does not use it; leave one of them out")
    if not is_plain(settings.encoder_kwargs):
        found.append(f"encoder_kwargs cannot be saved as they are; use {PLAIN}")
    name, known = settings.encoder, encoder_names()
    module, separator, attribute = name.partition(":")
    if name not in known and not (separator and module and attribute):
        found.append(
            f"encoder is '{name}'; use one of {', '.join(known)}, or module:Name{did_you_mean(name, known)}"
        )
    return found
