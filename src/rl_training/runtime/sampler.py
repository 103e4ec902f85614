"""Steps the environments with an explorer, hands every step to a recorder, and says what came of it."""

import time
from collections.abc import Sequence

import numpy as np

from rl_training.core.columns import allocated
from rl_training.core.protocols import EnvStepper, Explorer, Recorder
from rl_training.core.spaces.layout import action_layout, float_dtype
from rl_training.core.types import ActArrays, Collected, EpisodeStats, Progress, State, StepArrays


class RunningEpisodes:
    """Adds up raw returns and lengths of the episodes that go on, one per environment."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._started = np.full(num_envs, time.monotonic())

    def record(self, step: StepArrays) -> list[EpisodeStats]:
        """Add one step; return the episodes that ended with it."""
        self._returns += step.reward
        self._lengths += step.valid
        if not step.any_ended:
            return []
        now = time.monotonic()
        finished = [
            EpisodeStats(
                float(self._returns[row]),
                int(self._lengths[row]),
                now - float(self._started[row]),
                None if np.isnan(step.success[row]) else float(step.success[row]),
            )
            for row in np.flatnonzero(step.ended)
        ]
        self._returns[step.ended] = 0.0
        self._lengths[step.ended] = 0
        self._started[step.ended] = now
        return finished

    def state_dict(self) -> State:
        """Return the returns and lengths so far."""
        return {"returns": self._returns.tolist(), "lengths": self._lengths.tolist()}

    def load_state_dict(self, state: State, *, lost: Sequence[int] = ()) -> None:
        """Restore them; those of another number of environments, and of the `lost` ones, are forgotten."""
        if len(state["returns"]) == len(self._returns):
            self._returns[:] = state["returns"]
            self._lengths[:] = state["lengths"]
            self._returns[list(lost)] = 0.0
            self._lengths[list(lost)] = 0


class LocalSampler:
    """Collects `num_steps` vector steps at a time in this process; the same two records serve the whole run."""

    def __init__(self, env: EnvStepper, explorer: Explorer, recorder: Recorder) -> None:
        self.env = env
        self.explorer = explorer
        self.recorder = recorder
        self.running = RunningEpisodes(env.spec.num_envs)
        n = env.spec.num_envs
        shape, dtype = action_layout(env.spec.action_space)
        real = float_dtype()
        self.acted = ActArrays(
            action=np.zeros((n, *shape), dtype),
            logprob=np.zeros(n, real),
            value=np.zeros(n, real),
            final_value=np.zeros(n, real),
            last_value=np.zeros(n, real),
            extra=allocated(explorer.columns, n),
        )

    def collect(self, num_steps: int, progress: Progress) -> Collected:
        """Take `num_steps` vector steps; return how many transitions and which finished episodes they were."""
        step, acted = self.env.out, self.acted
        timesteps, episodes = 0, list[EpisodeStats]()
        for _ in range(num_steps):
            self.explorer.act(step.obs, acted, progress)
            self.recorder.record_action(step.obs, acted)  # a copy: env.step overwrites step.obs
            self.env.step(acted.action)
            self.explorer.after_step(step, acted)
            self.recorder.record_outcome(step, acted)
            episodes += self.running.record(step)
            timesteps += step.num_valid
        self.explorer.end_collect(step, acted)
        self.recorder.end_collect(acted)
        return Collected(timesteps, episodes)

    def state_dict(self) -> State:
        """Return what is known of the episodes that go on."""
        return self.running.state_dict()

    def load_state_dict(self, state: State, *, lost: Sequence[int] = ()) -> None:
        """Restore it; the episodes of the environments in `lost` are forgotten."""
        self.running.load_state_dict(state, lost=lost)
