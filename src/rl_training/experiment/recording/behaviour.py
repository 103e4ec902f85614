"""How recorded episodes are played: agents, weights, noise and random episodes."""

import math
from dataclasses import dataclass
from typing import Any

from gymnasium import Space, spaces

from rl_training.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Who acts in an episode, and how; episode k depends only on these settings and on k."""

    weights: tuple[float, ...]
    """Probabilities of the agents, one each, up to a factor."""
    noise: float = 0.0
    """Standard deviation of the noise on continuous actions, which are scaled to [-1, 1]."""
    random_fraction: float = 0.0
    """Probability that an episode has uniformly random actions instead of an agent's."""
    seed: int = 0
    deterministic: bool = False

    def refuse_wrong(self, num_agents: int, num_episodes: int) -> None:
        """Raise one error for everything that is wrong with the numbers."""
        found = []
        if num_episodes < 1:
            found.append(f"num_episodes is {num_episodes}; use 1 or more")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            found.append(f"noise is {self.noise}; use a number of 0 or more")
        if not 0 <= self.random_fraction <= 1:
            found.append(f"random_fraction is {self.random_fraction}; use a number from 0 to 1")
        if self.seed < 0:
            found.append(f"seed is {self.seed}; use 0 or more")
        if len(self.weights) != num_agents:
            found.append(f"there are {len(self.weights)} weights for {num_agents} agents; give one for each")
        elif not all(math.isfinite(each) and each >= 0 for each in self.weights) or not sum(self.weights) > 0:
            shown = " ".join(f"{each:g}" for each in self.weights)
            found.append(f"weights are {shown}; use numbers of 0 or more that are not all 0")
        if found:
            raise ConfigError(found, "recording")

    def refuse_noise(self, action_space: Space[Any]) -> None:
        """Raise if there is noise, but no continuous actions that it could be added to."""
        if self.noise and not isinstance(action_space, spaces.Box):
            raise ConfigError(
                [
                    f"noise is {self.noise:g}, but actions are {type(action_space).__name__}, not continuous; leave it "
                    "out, or use random_fraction"
                ],
                "recording",
            )
