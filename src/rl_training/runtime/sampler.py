"""Steps the environments with an explorer, records every step, and returns step counts and finished episodes."""

from collections.abc import Callable
from typing import Any

from rl_training.core.columns import act_arrays
from rl_training.core.protocols import EnvStepper, Explorer, Recorder
from rl_training.core.rows import Rows
from rl_training.core.types import Collected, EpisodeStats, Progress, State, WatchedStep
from rl_training.runtime.episodes import RunningEpisodes
from rl_training.runtime.steps import StepContext, StepWatcher


class LocalSampler:
    """Collects in this process; the same two records are overwritten during the whole run."""

    def __init__(self, stepper: EnvStepper, explorer: Explorer, recorder: Recorder) -> None:
        self.stepper = stepper
        self.explorer = explorer
        self.recorder = recorder
        self.running = RunningEpisodes(stepper.rows, stepper.out.info)
        self.acted = act_arrays(stepper.spec, explorer.columns)

    @property
    def rows(self) -> Rows:
        return self.stepper.rows

    @property
    def resumable(self) -> bool:
        return self.stepper.resumable

    def start(self) -> None:
        self.stepper.reset()

    def watch(self, on_step: Callable[[StepContext], None], timesteps: int) -> None:
        """Pass every step to `on_step`; `timesteps` is the number of those before the next one."""
        watched = self.stepper.out.watched = WatchedStep()
        self.recorder = StepWatcher(self.recorder, watched, on_step, timesteps)

    def collect(self, num_steps: int, progress: Progress) -> Collected:
        """Take `num_steps` vector steps; return the number of valid transitions and the finished episodes."""
        step, acted = self.stepper.out, self.acted
        timesteps, episodes, ended_at = 0, list[EpisodeStats](), list[int]()
        for row in range(num_steps):
            self.explorer.act(step.obs, acted, progress)
            self.recorder.record_action(step.obs, acted)  # a copy: the environments overwrite step.obs
            self.stepper.step(acted.action)
            self.explorer.after_step(step, acted)
            self.recorder.record_outcome(step, acted)
            if finished := self.running.record(step):
                episodes += finished
                ended_at += [row] * len(finished)
            timesteps += step.num_valid
        self.explorer.end_collect(step, acted)
        self.recorder.end_collect(acted)
        return Collected(timesteps, episodes, frozenset(step.info_names), ended_at)

    def metrics(self) -> dict[str, float]:
        """Return those of an explorer that has opponents; it never waits, and the policy that acts is the learner's."""
        measured: Callable[[], dict[str, float]] = getattr(self.explorer, "metrics", dict)
        return measured()

    def change_seed(self, *stream: int) -> None:
        self.stepper.change_seed(*stream)

    def statistics(self) -> list[Any]:
        return self.stepper.statistics()

    def use_statistics(self, statistics: list[Any], *, frozen: bool = True) -> None:
        self.stepper.use_statistics(statistics, frozen=frozen)

    def state_dict(self) -> State:
        """Return the state of the environments, the explorer and the episodes in progress."""
        return {
            "envs": self.stepper.state_dict(),
            "explorer": self.explorer.state_dict(),
            "episodes": self.running.state_dict(),
        }

    def load_state_dict(self, state: State) -> list[int]:
        """Continue from a saved state; return the environments that could not be restored and begin a new episode.

        Without `episodes`, returns and lengths are counted from here. If the environments were divided into groups, all
        of them begin new episodes.
        """
        if len(groups := saved_groups(state)) > 1:
            self.start()
            return list(range(self.rows.num_envs))
        state = groups[0]  # of one group with a lag, or the state itself
        self.explorer.load_state_dict(state["explorer"])
        lost = self.stepper.resume(state["envs"])
        self.explorer.forget(self.rows.of(lost))
        if "episodes" in state:
            self.running.load_state_dict(state["episodes"], lost=lost)
        return lost


def saved_envs(state: State) -> list[State]:
    """Return the state of the environments in a checkpoint's state, one entry per group; [] if it has none."""
    return [group.get("envs", {}) for group in saved_groups(state.get("sampler", {}))]


def saved_groups(state: State) -> list[State]:
    """Return the states of the groups in a sampler's state; that of a `LocalSampler` is a single group."""
    if "groups" not in state:
        return [state] if state else []
    groups = state["groups"]
    return [groups[str(number)] for number in range(len(groups))]


def without_episodes(state: State) -> State:
    """Return a sampler's state without the returns and lengths of the running episodes."""
    own = {name: part for name, part in state.items() if name != "episodes"}
    if "groups" in own:
        own["groups"] = {number: without_episodes(group) for number, group in own["groups"].items()}
    return own
