"""Behaviour policies: how actions are chosen while collecting."""

import numpy as np

from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.spaces import take_rows
from rl_training.core.types import ActArrays, ObsArray, Progress, State, StepArrays
from rl_training.policies.actor_critic import ActorCriticPolicy


class ActorCriticExplorer:
    """Samples the policy, and records values while the network runs anyway."""

    def __init__(self, policy: ActorCriticPolicy, rng: np.random.Generator) -> None:
        self.policy = policy
        self.rng = rng

    def act(self, obs: ObsArray, acted: ActArrays, progress: Progress) -> None:
        """Fill action, logprob and value for observations [N, ...]."""
        params, acted.value[:] = self.policy.forward_numpy(obs)
        acted.action[:], acted.logprob[:] = self.policy.head.sample(params, self.rng)

    def after_step(self, step: StepArrays, acted: ActArrays) -> None:
        """Fill final_value: the true last observation is worth something only where the clock stopped it."""
        acted.final_value[:] = 0.0
        if step.any_ended and step.truncated.any():
            rows = np.flatnonzero(step.truncated)
            acted.final_value[rows] = self.policy.values_numpy(take_rows(step.final_obs, rows))

    def end_collect(self, step: StepArrays, acted: ActArrays) -> None:
        """Fill last_value: what follows the last recorded step."""
        acted.last_value[:] = self.policy.values_numpy(step.obs)

    def state_dict(self) -> State:
        """Return the random state."""
        return {"rng": generator_state(self.rng)}

    def load_state_dict(self, state: State) -> None:
        """Continue the random stream."""
        set_generator_state(self.rng, state["rng"])
