"""The state of a run: gathered into a checkpoint, and restored from one."""

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_training.algorithms.components import Parts, StatefulLearner
from rl_training.config import TrainConfig
from rl_training.core.errors import RunFault, UserError
from rl_training.core.protocols import Sampler
from rl_training.core.seeding import global_generators
from rl_training.core.types import EnvSpec, Progress, State
from rl_training.experiment.agent import check_spaces
from rl_training.experiment.building import UserObjects, build_parts
from rl_training.experiment.checkpoints.folders import delete_newer, prune, read_newest, write_pointer
from rl_training.experiment.checkpoints.format import Checkpoint, fitting_weights, restoring, write_checkpoint
from rl_training.experiment.checkpoints.replay import ReplayFiles, load_replay
from rl_training.experiment.faults import disk_fault
from rl_training.experiment.logs.metadata import surroundings
from rl_training.experiment.resources import check_memory, report_one_hot_memory, size_text


class Snapshots:
    """The checkpoints of one run: `save` writes the next one, `restore` loads one into the parts.

    Replay data is restored earlier, by `load_replay`.
    """

    def __init__(
        self,
        config: TrainConfig,
        checkpoints: Path,
        parts: Parts,
        sampler: Sampler | None,
        spec: EnvSpec,
        agent_facts: Mapping[str, Any],
    ) -> None:
        self.config, self.checkpoints, self.agent_facts = config, checkpoints, agent_facts
        self.learner, self.source, self.sampler, self.spec = parts.learner, parts.source, sampler, spec
        self.replay = ReplayFiles(checkpoints, parts.source.storages)
        self.last: Path | None = None
        """The newest checkpoint."""
        self.best: str | None = None
        """The name of the best one."""
        self.cost = {"time/checkpoint_seconds": 0.0, "time/checkpoint_bytes": 0.0}

    def save(
        self,
        progress: Progress,
        *,
        trainer: State,
        log_positions: Callable[[], dict[str, int]],
        evaluation: dict[str, Any] | None,
        best: bool,
    ) -> None:
        """Write a checkpoint, point to it, and delete what no kept one needs.

        `log_positions` returns the sizes of the metric files after flushing them to disk.
        """
        started, written = time.monotonic(), self.replay.bytes_written
        name = f"step_{progress.clock}"
        if best:
            self.best = name
        state: dict[str, State] = checked_state(self.learner, f"checkpoint {name} was not written") | {
            "source": self.source.state_dict(),
            "trainer": trainer,
            "generators": global_generators(),
        }
        if self.sampler is not None:
            state["sampler"] = self.sampler.state_dict()
        facts = {
            **self.agent_facts,
            "evaluation": evaluation,
            "best_checkpoint": self.best,
            "surroundings": surroundings(self.config),
        }
        try:
            self.checkpoints.mkdir(exist_ok=True)
            facts["log_positions"] = log_positions()
            facts["replay"] = self.replay.save(name)  # first: a manifest lists only what is there
            folder = self.checkpoints / name
            size = write_checkpoint(folder, config=self.config, progress=progress, state=state, facts=facts)
            write_pointer(self.checkpoints, "last", name)
            if best:
                write_pointer(self.checkpoints, "best", name)
            prune(self.checkpoints, self.config.keep_checkpoints)
            self.replay.prune()
        except OSError as error:
            raise disk_fault(error, f"checkpoint {name}", self.checkpoints.parent) from error
        self.last = folder
        self.cost["time/checkpoint_seconds"] += time.monotonic() - started
        self.cost["time/checkpoint_bytes"] += size + self.replay.bytes_written - written

    def restore(self, checkpoint: Checkpoint, *, own: bool) -> None:
        """Put the state of a checkpoint, the run's `own` or another's, into the parts and the sampler.

        Nothing on disk is changed.
        """
        state, by_hand = checkpoint.state, "trainer" not in checkpoint.state
        check_spaces(f"checkpoint {checkpoint.path}", self.config, self.spec, checkpoint.spec)
        with fitting_weights(checkpoint.path):
            self.learner.load_state_dict(state)
        if not by_hand and (own or _brings_replay(checkpoint, self.source.storages)):
            self.source.load_state_dict(state["source"])
        if self.sampler is not None:
            self._restore_sampler(self.sampler, checkpoint, own=own, by_hand=by_hand)

    def _restore_sampler(self, sampler: Sampler, checkpoint: Checkpoint, *, own: bool, by_hand: bool) -> None:
        """Continue in the environments of a checkpoint, or begin new episodes if it was saved without them."""
        if by_hand and "sampler" not in checkpoint.state:
            sampler.start()
            return
        if not by_hand:
            sampler.change_seed(checkpoint.progress.timesteps)
        saved = checkpoint.state["sampler"]
        if not own:  # a new run counts the episodes in its own steps
            saved = {name: part for name, part in saved.items() if name != "episodes"}
        lost = sampler.load_state_dict(saved)
        self.source.forget(sampler.rows.of(lost))
        if lost and own and sampler.resumable:
            warnings.warn(
                f"environments {lost} are not deterministic: replaying their actions led to another state. They begin "
                "a new episode, so this run differs from an uninterrupted one",
                stacklevel=2,
            )

    def go_on_after(self, checkpoint: Checkpoint) -> None:
        """Return the run's folder to its state at the checkpoint: whatever came later is repeated."""
        self.last, self.best = checkpoint.path, checkpoint.facts["best_checkpoint"]
        delete_newer(self.checkpoints, checkpoint.path.name)
        write_pointer(self.checkpoints, "last", checkpoint.path.name)
        if self.best is not None and (self.checkpoints / self.best).is_dir():
            write_pointer(self.checkpoints, "best", self.best)
        self.replay.go_on_after(checkpoint.facts["replay"])
        self.replay.prune()


def checked_state(learner: StatefulLearner, consequence: str) -> dict[str, State]:
    """Return the state of a learner, gathered once; raise an error if a learned value in it is not finite."""
    state = learner.state_dict()
    culprit = learner.not_finite(state)
    if culprit is not None:
        raise RunFault(f"{consequence}: '{culprit}' holds a number that is not finite")
    return state


def parts_with_replay(
    config: TrainConfig,
    spec: EnvSpec,
    given: UserObjects,
    checkpoint: Checkpoint | None,
    *,
    own: bool = False,
    fall_back_in: Path | None = None,
    notice: Callable[[str], None] | None = None,
) -> tuple[Parts, Checkpoint | None]:
    """Return new parts with the replay data of a checkpoint in them, and the checkpoint.

    With `notice`, the size of the buffer is reported, and an error is raised if it does not fit into memory. A resumed
    run has its `own` checkpoint; if that is damaged, an older one in the folder `fall_back_in` is used.
    """
    if notice is not None:
        report_one_hot_memory(config, spec, notice)
    parts = build_parts(config, spec, given)
    needed = parts.source.nbytes
    if notice is not None and parts.source.storages:
        check_memory(needed, "the replay buffer", "use a smaller buffer_size")
        notice(f"the replay buffer takes {size_text(needed)} of memory when full")
    elif notice is not None:
        check_memory(needed, "a rollout", "use fewer num_steps or num_envs")
    while checkpoint is not None and (own or _brings_replay(checkpoint, parts.source.storages)):
        try:
            with restoring(checkpoint.path):
                load_replay(parts.source.storages, checkpoint.path, checkpoint.facts["replay"])
            break
        except UserError as damage:
            if fall_back_in is None:
                raise
            checkpoint = older_than(checkpoint, fall_back_in, damage)
            parts = build_parts(config, spec, given)
    return parts, checkpoint


def older_than(checkpoint: Checkpoint, run_dir: Path, damage: UserError) -> Checkpoint:
    """Return the newest older checkpoint of a run and warn about the damage; raise `damage` if there is none."""
    try:
        older = read_newest(run_dir, before=checkpoint.path.name)
    except UserError:
        raise damage from None
    warnings.warn(f"{damage}; falling back to {older.path.name}", stacklevel=3)
    return older


def _brings_replay(checkpoint: Checkpoint, storages: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint of another run has replay data for this one; an agent saved by hand has none."""
    return bool(checkpoint.facts["replay"]) or not storages
