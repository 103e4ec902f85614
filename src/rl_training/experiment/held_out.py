"""Losses on episodes of a dataset that are held out: the difference to those on other episodes shows overfitting."""

import copy
from typing import Any

from rl_training.algorithms.components import Parts, StatefulLearner
from rl_training.core.protocols import Learner
from rl_training.core.seeding import global_generators, set_global_generators
from rl_training.core.types import Metrics, Progress, UpdateResult
from rl_training.data.dataset_source import DatasetSource
from rl_training.experiment.agent_copies import copied_state
from rl_training.experiment.threads import UpdatesAround
from rl_training.runtime.metrics import HELD_OUT


def with_held_out_losses(learner: Learner[Any], parts: Parts, every: int) -> Learner[Any]:
    """Return a learner that measures losses on held-out episodes, if there are any, once per `every` updates."""
    source = parts.source
    if not isinstance(source, DatasetSource) or not source.rows.num_held_out:
        return learner
    return HeldOutLosses(learner, parts.learner, source, every)


class HeldOutLosses(UpdatesAround):
    """Measures losses by an update on a batch of held-out episodes that is taken back."""

    def __init__(
        self, learner: Learner[Any], measured: StatefulLearner, source: DatasetSource, every: int
    ) -> None:
        self.learner, self._measured = learner, measured  # type: ignore[assignment]  # what has its learning rate
        self._source, self._every = source, every

    def update(self, batch: Any, progress: Progress) -> UpdateResult:
        """Update; at the end of every `every` updates, add the losses on held-out episodes to the metrics."""
        result = self.learner.update(batch, progress)
        done = progress.updates + result.updates
        if done // self._every == progress.updates // self._every:
            return result
        return UpdateResult(
            result.metrics | self._losses(progress.advanced(updates=result.updates)),
            result.priorities,
            result.updates,
        )

    def _losses(self, progress: Progress) -> Metrics:
        learner, generators = self._measured, copy.deepcopy(global_generators())
        before = copied_state(learner.state_dict())
        if learner.not_finite(before) is not None:  # the trainer raises an error
            return {}
        found = learner.update(self._source.held_out_batch(progress.updates), progress).metrics
        learner.load_state_dict(before)
        set_global_generators(generators)
        return {f"{HELD_OUT}{name}": value for name, value in found.items() if name.endswith("loss")}
