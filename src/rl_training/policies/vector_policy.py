"""What policies on feature vectors share: encoding, normalisation, and acting in NumPy on the CPU."""

import torch
from torch import Tensor, nn

from rl_training.core.types import Array, EnvSpec, Obs, ObsArray
from rl_training.models.encoder import VectorEncoder
from rl_training.models.mlp import ActivationName
from rl_training.models.normalizer import ObservationNormalizer, RewardNormalizer
from rl_training.models.numpy_forward import NumpyMLP


class VectorPolicy(nn.Module):
    """Encoder, optional normalisers and one network [B, D] -> [B, P]; how outputs become actions is the subclass's.

    Everything that acting needs, and everything that is saved for it.
    """

    network: nn.Module
    activation: ActivationName

    def __init__(
        self, spec: EnvSpec, *, normalize_obs: bool, reward_normalizer: RewardNormalizer | None
    ) -> None:
        super().__init__()
        self.encoder = VectorEncoder(spec.observation_space)
        self.normalizer = ObservationNormalizer(self.encoder.continuous) if normalize_obs else None
        self.reward_normalizer = reward_normalizer
        self._numpy: NumpyMLP | None = None

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device

    def features(self, obs: Obs) -> Tensor:
        """Return network inputs [B, D]: encoded, normalised by the statistics of this moment."""
        encoded = self.encoder.encode(obs)
        return encoded if self.normalizer is None else self.normalizer(encoded)

    def features_numpy(self, obs: ObsArray) -> Array:
        """The same [N, D] in NumPy, for acting."""
        encoded = self.encoder.encode_numpy(obs)
        if self.normalizer is None:
            return encoded
        if self.device.type != "cpu":
            return self.normalizer(torch.from_numpy(encoded).to(self.device)).cpu().numpy()  # type: ignore[no-any-return]
        return self.normalizer.forward_numpy(encoded)

    def observe(self, obs: ObsArray) -> None:
        """Merge observations [N, ...] into the statistics, if there are any."""
        if self.normalizer is not None:
            self.normalizer.update(torch.from_numpy(self.encoder.encode_numpy(obs)))

    def outputs_numpy(self, obs: ObsArray) -> Array:
        """Return the network's outputs [N, P], without gradients."""
        features = self.features_numpy(obs)
        if self._numpy is None or not self._numpy.current:
            self._numpy = self._numpy_network()
        if self._numpy is not None:
            return self._numpy.forward(features)
        return self._outputs_on_device(features)

    def _numpy_network(self) -> NumpyMLP | None:
        """Return views of the parameters; None if they are not in main memory or the network is no plain chain."""
        network = self.network
        if self.device.type != "cpu" or not isinstance(network, nn.Sequential):
            return None
        return NumpyMLP(network, self.activation)

    @torch.no_grad()
    def _outputs_on_device(self, features: Array) -> Array:
        outputs: Array = self.network(torch.from_numpy(features).to(self.device)).cpu().numpy()
        return outputs
