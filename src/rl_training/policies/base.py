"""The base of all policies: inputs, statistics, encoder and network. On the CPU they act in NumPy if possible."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.errors import RunFault, UserError
from rl_training.core.spaces.layout import space_text
from rl_training.core.spaces.stored import split_critic, with_critic
from rl_training.core.types import Array, EnvSpec, Obs, ObsArray, PolicyState, moved, tensors_of
from rl_training.models.critic_entries import CriticEntries
from rl_training.models.encoded_network import Encoded, layers_after_encoder
from rl_training.models.encoders import EncoderClass, encoder_name, make_encoder
from rl_training.models.fast.acting import NumpyActorCritic, NumpyMLP, Twin, numpy_twin
from rl_training.models.fast.convolutions import ExplicitEncoder, explicit_encoder
from rl_training.models.images import READING, ImageReading, image_leaves
from rl_training.models.inputs import ObservationInputs
from rl_training.models.normalizer import ObservationNormalizer, RewardNormalizer


@dataclass(frozen=True)
class Encoding:
    """Which encoder a policy has; None is `flat`, which concatenates all numbers of the observation."""

    encoder: EncoderClass | None = None
    features_dim: int = 256
    arguments: dict[str, Any] = field(default_factory=dict)
    shared: bool = True
    """Whether actor and critic share one encoder."""
    images: ImageReading = READING
    """Which entries are images; `flat` treats none as an image."""


FLAT = Encoding()


class NetworkPolicy(nn.Module):
    """Inputs, optional normalizers and one network; a subclass defines what the outputs mean.

    It holds everything that acting needs, and is saved as a whole. `network` has all trainable layers and the encoder.
    """

    network: nn.Module
    entries: CriticEntries | None
    """What only a critic reads, in policies that have such a critic."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        encoding: Encoding,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None,
        other_numbers: int = 0,
    ) -> None:
        """`other_numbers` is how many a subclass normalizes besides those of the observation."""
        super().__init__()
        self.spec, self.encoding = spec, encoding
        self.entries = None
        images = {} if encoding.encoder is None else image_leaves(spec.observation_space, encoding.images)
        self.inputs = ObservationInputs(spec.observation_space, images)
        if not self.inputs.size and not images:
            raise UserError(
                f"observation space {space_text(spec.observation_space)} contains no numbers, so there is nothing to "
                "learn from; if that is intended, add an entry that is always 0"
            )
        if normalize_obs and not self.inputs.size and not other_numbers:
            raise UserError(
                "normalize_obs is true, but observations are images, which are scaled by their bounds; set it to false"
            )
        normalize = normalize_obs and self.inputs.size > 0
        self.normalizer = ObservationNormalizer(self.inputs.continuous) if normalize else None
        self.reward_normalizer = reward_normalizer
        self._twin: Twin | None = None
        self._image_encoder: ExplicitEncoder | None = None
        self._any_parameter: list[nn.Parameter] = []

    def new_encoder(self, generator: torch.Generator) -> nn.Module | None:
        """Return a new encoder; None for `flat`."""
        encoding = self.encoding
        if encoding.encoder is None:
            return None
        return make_encoder(
            encoding.encoder, self.inputs, encoding.features_dim, encoding.arguments, generator
        )

    def features_size(self, encoder: nn.Module | None) -> int:
        """Return the number of features that the layers after the encoder read."""
        return self.inputs.size if encoder is None else int(encoder.features_dim)  # type: ignore[arg-type]  # checked

    @property
    def device(self) -> torch.device:
        if not self._any_parameter:  # cached: walking through all modules takes as long as a layer
            self._any_parameter.append(next(self.parameters()))
        return self._any_parameter[0].device

    @torch.no_grad()
    def prepare(self, obs: Obs) -> Obs:
        """Return the network's inputs for observations [B, ...], normalised with the current statistics."""
        return self.inputs_of(obs)

    def inputs_of(self, obs: Obs) -> Obs:
        """Like `prepare`, for callers that have disabled gradients.

        What only a critic reads stays in reserved entries, if `obs` has it.
        """
        extra = None
        if self.entries is not None:
            obs, extra = split_critic(obs)
        vector = self.inputs.vector(obs)
        if self.normalizer is not None:
            vector = self.normalizer(vector)
        inputs = vector if self.encoding.encoder is None else self.inputs.arranged(vector, obs)
        if self.entries is None or extra is None:
            return inputs
        return with_critic(inputs, self.entries.inputs_of(extra))

    @torch.no_grad()
    def observe(self, obs: Obs, valid: Tensor | None = None) -> None:
        """Merge observations [B, ...] into the statistics, if there are any; `valid` [B] selects rows."""
        if self.entries is not None:
            obs, entries = split_critic(obs)
            if entries is not None:
                self.entries.observe(entries, valid)
        if self.normalizer is not None:
            vector = self.inputs.vector(obs)
            self.normalizer.update(vector if valid is None else vector[valid])

    def initial_state(self, rows: int) -> PolicyState:
        """Return the state at the beginning of an episode; empty for a policy without memory."""
        return ()

    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]:
        """Return actions [N, ...] in the policy's units, and the next state."""
        raise NotImplementedError(f"{type(self).__name__} does not define act")

    def outputs(self, obs: ObsArray) -> Any:
        """Return the network's outputs for observations [N, ...], in NumPy and without gradients."""
        twin = self._current_twin()
        if isinstance(twin, NumpyMLP | NumpyActorCritic):
            return self._finite(twin(self._read_numpy(obs)))
        return self._outputs_on_device(obs)

    def _current_twin(self) -> Twin | None:
        """Return the layers after the encoder in NumPy, rebuilt if the parameters have moved.

        None if `models.fast` does not support these layers or the encoder; the policy then acts in torch.
        """
        if self._twin is None or not self._twin.current:
            twin, network = numpy_twin(layers_after_encoder(self.network)), self.network
            known = twin is not None and type(network) is Encoded
            self._image_encoder = explicit_encoder(network.encoder) if known else None  # type: ignore[arg-type]  # of an Encoded
            self._twin = twin if self._reads_numpy() else None
        return self._twin

    def _reads_numpy(self) -> bool:
        """Return whether `_read_numpy` supports the observations."""
        return self.encoding.encoder is None or self._image_encoder is not None

    def _read_numpy(self, obs: ObsArray) -> Array:
        """Return the twin's inputs for observations: numbers [N, D], or the encoder's features."""
        if self._image_encoder is not None:
            images = self.prepare(tensors_of(obs))
            assert isinstance(images, Tensor), "a known encoder reads one plain image"
            seen: Array = self._image_encoder.forward(images).numpy()
            return seen
        vector = self.inputs.vector_numpy(obs)
        return vector if self.normalizer is None else self.normalizer.forward_numpy(vector)

    @torch.no_grad()
    def _outputs_on_device(self, obs: ObsArray, *others: Any) -> Any:
        outputs = self.network(self.prepare(moved(tensors_of(obs), self.device)), *others)
        if isinstance(outputs, tuple):
            return self._finite(tuple(part.cpu().numpy() for part in outputs))
        return self._finite(outputs.cpu().numpy())

    def _finite(self, outputs: Any) -> Any:
        """Return the outputs; raise an error if a network with an encoder returns values that are not finite."""
        if self.encoding.encoder is not None:
            parts = outputs if isinstance(outputs, tuple) else (outputs,)
            if not all(np.isfinite(part).all() for part in parts):
                name = encoder_name(self.encoding.encoder)
                raise RunFault(
                    f"the network with encoder {name} returned values that are not finite while acting"
                )
        return outputs
