"""Steps the environments with an explorer, records every step, and returns step counts and finished episodes."""

from collections.abc import Sequence

import numpy as np

from rl_training.core.columns import allocated
from rl_training.core.protocols import EnvStepper, Explorer, Recorder
from rl_training.core.spaces.layout import action_layout, float_dtype
from rl_training.core.types import ActArrays, Collected, EpisodeStats, Progress, State
from rl_training.runtime.episodes import RunningEpisodes


class LocalSampler:
    """Collects `num_steps` vector steps at a time in this process; the same two records serve the whole run."""

    def __init__(self, stepper: EnvStepper, explorer: Explorer, recorder: Recorder) -> None:
        self.stepper = stepper
        self.explorer = explorer
        self.recorder = recorder
        self.running = RunningEpisodes(stepper.rows)
        n = len(stepper.rows)
        shape, dtype = action_layout(stepper.spec.action_space)
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
        step, acted = self.stepper.out, self.acted
        timesteps, episodes = 0, list[EpisodeStats]()
        for _ in range(num_steps):
            self.explorer.act(step.obs, acted, progress)
            self.recorder.record_action(step.obs, acted)  # a copy: the environments overwrite step.obs
            self.stepper.step(acted.action)
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
