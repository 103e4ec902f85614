"""What only a critic reads: from the entries of a rollout to inputs of its network."""

from typing import Any

from gymnasium import Space
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import space_text
from rl_training.core.types import Array, Obs, ObsArray
from rl_training.models.images import ImageLeaf
from rl_training.models.inputs import ObservationInputs
from rl_training.models.normalizer import ObservationNormalizer


class CriticEntries(nn.Module):
    """The inputs of `EnvSpec.critic_space`: one vector [B, C], or entries for an encoder if some are images.

    They are normalised like observations, with statistics of their own.
    """

    def __init__(self, space: Space[Any], images: dict[str, ImageLeaf], *, normalize: bool) -> None:
        super().__init__()
        self.inputs = ObservationInputs(space, images)
        if not self.inputs.size and not images:
            raise UserError(
                f"what only the critic reads, {space_text(space)}, contains no numbers; leave it out, or add an entry"
            )
        normalize = normalize and self.inputs.size > 0
        self.normalizer = ObservationNormalizer(self.inputs.continuous) if normalize else None

    def inputs_of(self, entries: Obs) -> Obs:
        """Return a vector [B, C], or with images the arranged inputs of an encoder."""
        vector = self.inputs.vector(entries)
        if self.normalizer is not None:
            vector = self.normalizer(vector)
        return self.inputs.arranged(vector, entries) if self.inputs.images else vector

    def vector_numpy(self, entries: ObsArray) -> Array:
        """Return the vector [N, C] in NumPy, where nothing is an image."""
        vector = self.inputs.vector_numpy(entries)
        return vector if self.normalizer is None else self.normalizer.forward_numpy(vector)

    def observe(self, entries: Obs, valid: Tensor | None) -> None:
        """Merge entries [B, ...] into the statistics, if there are any."""
        if self.normalizer is not None:
            vector = self.inputs.vector(entries)
            self.normalizer.update(vector if valid is None else vector[valid])
