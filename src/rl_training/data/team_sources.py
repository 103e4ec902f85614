"""Experience of several policies in one game: a source for each team."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.core.blocks import Block
from rl_training.core.protocols import ExperienceSource
from rl_training.core.types import ActArrays, Progress, State, StepArrays, UpdateResult


@dataclass(frozen=True)
class TeamBatch:
    """A batch for the learner of one team."""

    team: str
    rows: Any

    def __len__(self) -> int:
        return len(self.rows)


class TeamSources:
    """The sources of all teams by name; `rows` are those of each in a step."""

    def __init__(self, sources: Mapping[str, ExperienceSource[Any]], rows: Mapping[str, slice]) -> None:
        self.sources, self._rows = dict(sources), rows
        self.steps_per_collect = min(source.steps_per_collect for source in sources.values())

    def record_action(self, obs: Any, acted: ActArrays) -> None:
        for name, source in self.sources.items():
            source.record_action(obs[name], acted.teams[name])

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        for name, source in self.sources.items():
            source.record_outcome(step.teams[name], acted.teams[name])

    def end_collect(self, acted: ActArrays) -> None:
        for name, source in self.sources.items():
            source.end_collect(acted.teams[name])

    def record_block(self, block: Block) -> None:
        """Blocks come from other processes, which several policies do not use."""
        raise ValueError("blocks have no teams; collect in this process")

    def batches(self, progress: Progress) -> Iterator[TeamBatch]:
        """Yield the batches of one team after another."""
        for name, source in self.sources.items():
            for rows in source.batches(progress):
                yield TeamBatch(name, rows)

    def feedback(self, batch: TeamBatch, result: UpdateResult) -> None:
        self.sources[batch.team].feedback(batch.rows, result)

    @property
    def storages(self) -> Mapping[str, Any]:
        return {
            f"{name}_{kind}": storage
            for name, source in self.sources.items()
            for kind, storage in source.storages.items()
        }

    @property
    def nbytes(self) -> int:
        return sum(source.nbytes for source in self.sources.values())

    def forget(self, rows: Sequence[int]) -> None:
        """Drop the unfinished transitions of rows of the whole step."""
        for name, source in self.sources.items():
            own = self._rows[name]
            source.forget([row - own.start for row in rows if own.start <= row < own.stop])

    def state_dict(self) -> State:
        return {name: source.state_dict() for name, source in self.sources.items()}

    def load_state_dict(self, state: State) -> None:
        for name, source in self.sources.items():
            source.load_state_dict(state[name])
