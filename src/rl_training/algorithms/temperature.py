"""How much entropy counts in soft actor-critic, learned towards a target or given."""

import torch
from torch import Tensor, nn

from rl_training.algorithms.optim import FlatAdam
from rl_training.core.types import Numbers


class Temperature:
    """The weight alpha of the entropy, kept as its logarithm."""

    def __init__(
        self, initial: float, *, learned: bool, target_entropy: float, device: torch.device, on_arrays: bool
    ) -> None:
        self.learned, self.target_entropy, self._on_arrays = learned, target_entropy, on_arrays
        self.log_alpha = nn.Parameter(torch.tensor(initial, device=device).log())
        self.optimizer = FlatAdam([self.log_alpha], eps=1e-8)
        # one that is given is not learned, and its logarithm may be infinite
        self.log_alpha.requires_grad_(learned)

    def alpha(self) -> Numbers:
        """Return the weight."""
        return self._number(self.log_alpha.detach().exp())

    def train(self, mean_logprob: Numbers, learning_rate: Tensor) -> Numbers:
        """One step down -log(alpha) * (mean logprob + target entropy); return that loss."""
        slope = -(mean_logprob + self.target_entropy)
        loss = self.log_alpha.detach() * slope
        self.optimizer.gradient.fill_(slope)
        self.optimizer.descend(learning_rate)
        return self._number(loss)

    def _number(self, value: Tensor) -> Numbers:
        return value.item() if self._on_arrays else value
