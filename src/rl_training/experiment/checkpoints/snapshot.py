"""Saves the state of a run in checkpoints and restores it."""

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
from rl_training.experiment.checkpoints.folders import delete_newer, prune, read_newest, write_pointer
from rl_training.experiment.checkpoints.format import Checkpoint, fitting_weights, write_checkpoint
from rl_training.experiment.checkpoints.replay import ReplayFiles
from rl_training.experiment.checkpoints.trust import Trust
from rl_training.experiment.faults import disk_fault
from rl_training.experiment.logs.metadata import surroundings
from rl_training.runtime.sampler import without_episodes


class Snapshots:
    """Writes the checkpoints of a run and restores its state from one, except replay data (see `load_replay`)."""

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
        """The name of the best checkpoint."""
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
        """Write a checkpoint, update the pointers, and delete files that are no longer needed.

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

    def restore(self, checkpoint: Checkpoint, *, resumed: bool) -> None:
        """Restore learner, source and sampler without changing files; `resumed` if the checkpoint is of this run."""
        state, by_hand = checkpoint.state, "trainer" not in checkpoint.state
        source = f"checkpoint {checkpoint.path}"
        check_spaces(source, self.config, self.spec, checkpoint.spec, for_critic=True)
        with fitting_weights(checkpoint.path):
            self.learner.load_state_dict(state)
        if not by_hand and (resumed or brings_replay(checkpoint, self.source.storages)):
            self.source.load_state_dict(state["source"])
        if self.sampler is not None:
            self._restore_sampler(self.sampler, checkpoint, resumed=resumed, by_hand=by_hand)

    def _restore_sampler(
        self, sampler: Sampler, checkpoint: Checkpoint, *, resumed: bool, by_hand: bool
    ) -> None:
        """Restore the environments of a checkpoint; start new episodes if it was saved without them."""
        if by_hand and "sampler" not in checkpoint.state:
            sampler.start()
            return
        if not by_hand:
            sampler.change_seed(checkpoint.progress.timesteps)
        saved = checkpoint.state["sampler"]
        if not resumed:  # a new run counts the episodes in its own steps
            saved = without_episodes(saved)
        lost = sampler.load_state_dict(saved)
        self.source.forget(sampler.rows.of(lost))
        if lost and resumed and sampler.resumable:
            warnings.warn(
                f"environments {lost} are not deterministic: replaying their actions led to another state. They begin "
                "a new episode, so this run differs from an uninterrupted one",
                stacklevel=2,
            )

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """Return the checkpoint folders to their state at this checkpoint: later ones are deleted."""
        self.last, self.best = checkpoint.path, checkpoint.facts["best_checkpoint"]
        delete_newer(self.checkpoints, checkpoint.path.name)
        write_pointer(self.checkpoints, "last", checkpoint.path.name)
        if self.best is not None and (self.checkpoints / self.best).is_dir():
            write_pointer(self.checkpoints, "best", self.best)
        self.replay.continue_from(checkpoint.facts["replay"])
        self.replay.prune()


def checked_state(learner: StatefulLearner, consequence: str) -> dict[str, State]:
    """Return the state of a learner; raise if a learned value is not finite."""
    state = learner.state_dict()
    culprit = learner.not_finite(state)
    if culprit is not None:
        raise RunFault(f"{consequence}: '{culprit}' holds a number that is not finite")
    return state


def older_than(checkpoint: Checkpoint, run_dir: Path, damage: UserError) -> Checkpoint:
    """Return the newest older checkpoint of a run and warn about the damage; raise `damage` if there is none."""
    try:
        older = read_newest(
            run_dir, Trust(checkpoint.algorithm, checkpoint.modules_trusted), before=checkpoint.path.name
        )
    except UserError:
        raise damage from None
    warnings.warn(f"{damage}; falling back to {older.path.name}", stacklevel=3)
    return older


def brings_replay(checkpoint: Checkpoint, storages: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint of another run has the replay data that this run needs."""
    return bool(checkpoint.facts["replay"]) or not storages
