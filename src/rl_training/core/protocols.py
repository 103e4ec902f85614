"""Protocols between the trainer, the sampler and the parts they use, independent of the algorithm."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from rl_training.core.blocks import Block
from rl_training.core.columns import Column
from rl_training.core.rows import Rows
from rl_training.core.types import (
    ActArrays,
    Array,
    Collected,
    EnvSpec,
    Evaluation,
    ObsArray,
    PolicyState,
    Progress,
    State,
    StepArrays,
    UpdateResult,
)

BatchT = TypeVar("BatchT")
BatchT_contra = TypeVar("BatchT_contra", contravariant=True)


class EnvStepper(Protocol):
    """Environments behind one record `out` of N rows, which every step overwrites; `rows` names each row's owner.

    Call `reset()`, then `step(action)` repeatedly, and read `out` in between. `restart(envs)` begins new episodes in
    the environments of a mask [E] and leaves the others alone. `restart_streams` makes the next reset begin with the
    first episodes again; `change_seed` continues with other episodes where a state cannot be restored.

    `statistics()` returns the running statistics of the environments' wrappers, one entry per environment, and
    `use_statistics` applies such a list from the next reset on; `frozen` statistics no longer change.

    `resume` restores a saved state. It returns the environments that did not come back to the same place: all of them
    if the stepper is not `resumable`. `notices` are hints for the user, to be shown before training.
    """

    spec: EnvSpec
    rows: Rows
    out: StepArrays
    notices: list[str]

    @property
    def resumable(self) -> bool: ...
    def reset(self) -> None: ...
    def step(self, action: Array) -> None: ...
    def restart(self, envs: Array) -> None: ...
    def restart_streams(self) -> None: ...
    def change_seed(self, *stream: int) -> None: ...
    def statistics(self) -> list[Any]: ...
    def use_statistics(self, statistics: list[Any], *, frozen: bool = True) -> None: ...
    def state_dict(self) -> State: ...
    def resume(self, state: State) -> list[int]: ...
    def close(self) -> None: ...


class Policy(Protocol):
    """Acts, for predict and evaluate; independent of rewards, losses and buffers.

    The caller keeps the hidden state: `initial_state(rows)`, then `act` takes a state and returns the next one. The
    initial state is zero, so a caller restarts rows by setting them to 0.
    """

    def initial_state(self, rows: int) -> PolicyState: ...
    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]: ...


class Explorer(Protocol):
    """The behaviour policy; it writes its outputs into `acted`.

    Per step: `act(step.obs, acted, progress)`, the environments step, `after_step(step, acted)`; after the last step
    `end_collect(step, acted)`. `forget(rows)` drops the memory of rows whose episode does not continue. `columns`
    declare additional outputs in `acted.extra`, which are stored with each step.
    """

    columns: tuple[Column, ...]

    def act(self, obs: ObsArray, acted: ActArrays, progress: Progress) -> None: ...
    def after_step(self, step: StepArrays, acted: ActArrays) -> None: ...
    def end_collect(self, step: StepArrays, acted: ActArrays) -> None: ...
    def forget(self, rows: Sequence[int]) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class Acting(Protocol):
    """The parts that act: the policy, which is a torch module, and the explorer that samples from it."""

    @property
    def policy(self) -> Any: ...
    @property
    def explorer(self) -> Explorer: ...


class Sampler(Protocol):
    """Collects experience in environments: in this process, in others, or on other machines.

    It owns the environments and the explorer, and saves and restores both. Transitions go to a recorder; `collect`
    returns step counts and finished episodes.

    `start` begins the first episodes of a new run. `load_state_dict` continues from a saved state instead and returns
    the environments that could not be restored, which begin a new episode; `rows` are those of `EnvStepper`, and so are
    `resumable`, `change_seed`, `statistics` and `use_statistics`. `watch` has every step passed to a function, as a
    `runtime.steps.StepContext`, counted on from `timesteps`. `metrics` returns what it measured since the last call.
    """

    @property
    def rows(self) -> Rows: ...
    @property
    def resumable(self) -> bool: ...
    def start(self) -> None: ...
    def watch(self, on_step: Callable[[Any], None], timesteps: int) -> None: ...
    def collect(self, num_steps: int, progress: Progress) -> Collected: ...
    def metrics(self) -> dict[str, float]: ...
    def change_seed(self, *stream: int) -> None: ...
    def statistics(self) -> list[Any]: ...
    def use_statistics(self, statistics: list[Any], *, frozen: bool = True) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> list[int]: ...


class Engine(Protocol):
    """Where a run collects: makes its sampler, and replaces the environments after a fault.

    `spec` and `notices` describe the environments before there is a sampler. An engine that collects nothing makes no
    sampler and has a budget `total_updates`, so that the run counts updates instead of timesteps.
    """

    @property
    def spec(self) -> EnvSpec: ...
    @property
    def notices(self) -> list[str]: ...
    @property
    def total_updates(self) -> int | None: ...
    def make_sampler(self, actor: Acting, source: "ExperienceSource[Any]") -> Sampler | None: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...


class Recorder(Protocol):
    """The half of an experience source that the sampler sees: records steps one by one, or a block of them at once.

    Per step: `record_action` before the environments overwrite the observations, then `record_outcome`; after the last
    step `end_collect`. `record_block` has the same result as recording the steps of the block.
    """

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None: ...
    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None: ...
    def end_collect(self, acted: ActArrays) -> None: ...
    def record_block(self, block: Block) -> None: ...


class ExperienceSource(Recorder, Protocol[BatchT]):
    """Turns recorded steps into batches: the only place where algorithm families differ.

    Per iteration: `steps_per_collect` steps are recorded, then every batch of `batches(progress)` goes to the
    learner and its result comes back by `feedback`. `nbytes` is the memory that it uses when
    full; `storages` are the rows that outlive an update, saved in segments beside the checkpoints; `forget(rows)` drops
    unfinished transitions of rows whose episode does not continue.
    """

    steps_per_collect: int

    @property
    def storages(self) -> Mapping[str, Any]: ...
    @property
    def nbytes(self) -> int: ...
    def forget(self, rows: Sequence[int]) -> None: ...
    def batches(self, progress: Progress) -> Iterator[BatchT]: ...
    def feedback(self, batch: BatchT, result: UpdateResult) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class Learner(Protocol[BatchT_contra]):
    """An update rule: `update(batch, progress)`. No environment, file, logger or clock.

    `fixed_learning_rate` replaces the learning rate of the settings and its schedule, unless it is None.
    """

    fixed_learning_rate: float | None

    def update(self, batch: BatchT_contra, progress: Progress) -> UpdateResult: ...


class LiveAgent(Protocol):
    """The acting side of a run that is being trained, as its callbacks see it."""

    @property
    def timesteps(self) -> int: ...
    def predict(self, obs: Any, *, deterministic: bool = True) -> Array: ...
    def evaluate(self, num_episodes: int = 10, *, deterministic: bool | None = None) -> dict[str, Any]: ...
    def save(self, path: str | PathLike[str]) -> Path: ...


class Logger(Protocol):
    """Receives one row of metrics per log interval, and the run's clock."""

    def log(self, metrics: dict[str, float], clock: int) -> None: ...


class Evaluate(Protocol):
    """Plays a fixed number of episodes with the current policy."""

    def __call__(self) -> Evaluation: ...


class SaveCheckpoint(Protocol):
    """Writes everything down; called at update boundaries only."""

    def __call__(self, progress: Progress, *, evaluation: dict[str, Any] | None, best: bool) -> None: ...
