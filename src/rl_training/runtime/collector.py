"""Steps the environments with an explorer and hands every step to a recorder."""

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from rl_training.core.protocols import EnvStepper, Explorer, Recorder
from rl_training.core.spaces import action_layout, float_dtype
from rl_training.core.types import ActArrays, EpisodeStats, Progress, State, StepArrays


class EpisodeRecorder:
    """Counts raw returns and lengths, and keeps the last episodes that ended."""

    def __init__(self, num_envs: int, window: int = 100) -> None:
        self.recent: deque[EpisodeStats] = deque(maxlen=window)
        self.total_episodes = 0
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._started = np.full(num_envs, time.monotonic())

    def record(self, step: StepArrays) -> int:
        """Add one step; return how many of its rows were valid transitions."""
        self._returns += step.reward
        self._lengths += step.valid
        if step.any_ended:
            now = time.monotonic()
            for row in np.flatnonzero(step.ended):
                seconds = now - float(self._started[row])
                self.recent.append(EpisodeStats(float(self._returns[row]), int(self._lengths[row]), seconds))
                self.total_episodes += 1
            self._returns[step.ended] = 0.0
            self._lengths[step.ended] = 0
            self._started[step.ended] = now
        return step.num_valid

    def means(self) -> dict[str, float]:
        """Return mean return and length of the recent episodes; nothing before the first has ended."""
        if not self.recent:
            return {}
        return {
            "rollout/ep_rew_mean": float(np.mean([episode.total_reward for episode in self.recent])),
            "rollout/ep_len_mean": float(np.mean([episode.length for episode in self.recent])),
        }

    def state_dict(self) -> State:
        """Return the recent episodes and the returns and lengths of the unfinished ones."""
        return {
            "recent": [[e.total_reward, e.length, e.seconds] for e in self.recent],
            "total_episodes": self.total_episodes,
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
        }

    def load_state_dict(self, state: State, *, lost: Sequence[int] = ()) -> None:
        """Restore them; the unfinished episodes of the environments in `lost` are forgotten."""
        self.recent.clear()
        self.recent.extend(EpisodeStats(float(r), int(n), float(s)) for r, n, s in state["recent"])
        self.total_episodes = int(state["total_episodes"])
        if len(state["returns"]) == len(self._returns):
            self._returns[:] = state["returns"]
            self._lengths[:] = state["lengths"]
            self._returns[list(lost)] = 0.0
            self._lengths[list(lost)] = 0


class Collector:
    """Collects `num_steps` vector steps at a time; the same two records serve the whole run."""

    def __init__(self, env: EnvStepper, explorer: Explorer, recorder: Recorder) -> None:
        self.env = env
        self.explorer = explorer
        self.recorder = recorder
        self.episodes = EpisodeRecorder(env.spec.num_envs)
        n = env.spec.num_envs
        shape, dtype = action_layout(env.spec.action_space)
        real = float_dtype()
        self.acted = ActArrays(
            action=np.zeros((n, *shape), dtype),
            logprob=np.zeros(n, real),
            value=np.zeros(n, real),
            final_value=np.zeros(n, real),
            last_value=np.zeros(n, real),
        )

    def collect(self, num_steps: int, progress: Progress) -> int:
        """Take `num_steps` vector steps; return the number of valid transitions."""
        step, acted = self.env.out, self.acted
        counted = 0
        for _ in range(num_steps):
            self.explorer.act(step.obs, acted, progress)
            self.recorder.record_action(step.obs, acted)  # a copy: env.step overwrites step.obs
            self.env.step(acted.action)
            self.explorer.after_step(step, acted)
            self.recorder.record_outcome(step, acted)
            counted += self.episodes.record(step)
        self.explorer.end_collect(step, acted)
        self.recorder.end_collect(acted)
        return counted
