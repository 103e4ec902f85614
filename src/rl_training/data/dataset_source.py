"""Batches from a dataset: alone, or mixed with those of a replay buffer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.core.blocks import Block
from rl_training.core.errors import UserError
from rl_training.core.seeding import HELD_OUT, REPLAY, generator_state, numpy_generator, set_generator_state
from rl_training.core.types import ActArrays, ObsArray, Progress, State, StepArrays, UpdateResult, tensors_of
from rl_training.data.replay_buffer import Transitions
from rl_training.data.sources import ReplaySource
from rl_training.datasets.dataset import ROWS_AT_ONCE, Dataset


class TakesStatistics(Protocol):
    """A policy with optional statistics of observations and rewards."""

    normalizer: Any
    reward_normalizer: Any

    def observe(self, obs: Any) -> None: ...


NEXT_ACTIONS, HAS_NEXT_ACTION = "next_actions", "has_next_action"
"""Columns of `Transitions.extra`: the action recorded after the transition, and whether there is one."""


class DatasetRows:
    """Draws transitions of a dataset, with replacement; some episodes are held out."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        gamma: float,
        n_step: int = 1,
        held_out: float = 0.0,
        next_actions: bool = False,
    ) -> None:
        """`held_out` is the part of the episodes that is not learned from; it is the same for every seed.

        With `next_actions`, transitions have the columns `NEXT_ACTIONS` and `HAS_NEXT_ACTION`.
        """
        self.dataset, self.gamma, self.n_step = dataset, gamma, n_step
        self._next_actions = next_actions
        num_held_out = min(round(held_out * dataset.num_episodes), dataset.num_episodes - 1)
        order = numpy_generator(0, HELD_OUT).permutation(dataset.num_episodes)
        self._held_out = _Episodes(dataset, np.sort(order[:num_held_out]))
        self._trained = _Episodes(dataset, np.sort(order[num_held_out:]))

    @property
    def num_held_out(self) -> int:
        """Number of episodes that are held out."""
        return len(self._held_out.numbers)

    def __len__(self) -> int:
        return self._trained.num_steps

    def sample(self, size: int, rng: np.random.Generator, *, held_out: bool = False) -> Transitions:
        """Return transitions [size]; with `held_out`, of the episodes that are held out."""
        steps, episodes = (self._held_out if held_out else self._trained).draw(size, rng)
        return self.transitions(steps, episodes)

    def transitions(self, steps: Any, episodes: Any) -> Transitions:
        """Return the transitions [B] with these numbers, and the episodes [B] that they belong to."""
        data = self.dataset
        last = np.minimum(steps + self.n_step, data.ends[episodes]) - 1  # a window never crosses an end
        rewards = data.rewards[steps]
        for later in range(1, self.n_step):
            place = np.minimum(steps + later, last)
            rewards += np.where(place == steps + later, self.gamma**later * data.rewards[place], 0.0)
        discounts = np.where(data.terminated[last], 0.0, self.gamma ** (last - steps + 1.0))
        return Transitions(
            obs=tensors_of(data.observations(steps + episodes)),
            actions=torch.from_numpy(data.actions[steps]),
            rewards=torch.from_numpy(rewards),
            discounts=torch.from_numpy(discounts.astype(rewards.dtype)),
            next_obs=tensors_of(data.observations(last + episodes + 1)),
            indices=torch.from_numpy(steps),
            extra=self._actions_after(last, episodes) if self._next_actions else {},
        )

    def _actions_after(self, steps: Any, episodes: Any) -> dict[str, torch.Tensor]:
        """Return the next actions [B, ...]; where an episode ends, there is none, and the last one stands for it."""
        has_next = steps + 1 < self.dataset.ends[episodes]
        actions = self.dataset.actions[steps + has_next]
        return {NEXT_ACTIONS: torch.from_numpy(actions), HAS_NEXT_ACTION: torch.from_numpy(has_next)}

    def parts(self) -> Iterator[tuple[ObsArray, Any, Any]]:
        """Yield observations, rewards and whether an episode ends, in order, of the episodes that are learned from."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            steps, episodes = self._trained.at(np.arange(start, min(start + ROWS_AT_ONCE, len(self))))
            ended = steps + 1 == self.dataset.ends[episodes]
            yield self.dataset.observations(steps + episodes), self.dataset.rewards[steps], ended


class _Episodes:
    """Some of the episodes of a dataset, as one sequence of transitions."""

    def __init__(self, dataset: Dataset, numbers: Any) -> None:
        self.numbers, lengths = numbers, dataset.lengths
        self._first = (dataset.ends - lengths)[numbers]
        self._ends = np.cumsum(lengths[numbers])
        self.num_steps = int(self._ends[-1]) if len(numbers) else 0

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """Return the numbers of random transitions [size], and of their episodes."""
        return self.at(rng.integers(0, self.num_steps, size))

    def at(self, places: Any) -> tuple[Any, Any]:
        """Return the numbers of the transitions at some places of the sequence, and of their episodes."""
        which = np.searchsorted(self._ends, places, side="right")
        before = np.where(which > 0, self._ends[which - 1], 0)
        return self._first[which] + places - before, self.numbers[which]


class DatasetSource:
    """Yields one batch of a dataset per iteration. The dataset is not part of checkpoints, only its digest is."""

    steps_per_collect = 0
    storages: Mapping[str, Any] = {}

    def __init__(
        self,
        rows: DatasetRows,
        *,
        batch_size: int,
        rng: np.random.Generator,
        scale: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """`scale` normalizes rewards."""
        self.rows, self.batch_size, self.rng, self._scale = rows, batch_size, rng, scale

    def batches(self, progress: Progress) -> Iterator[Transitions]:
        yield self.draw(self.batch_size)

    def draw(self, size: int) -> Transitions:
        """Return the next transitions [size]."""
        return self._scaled(self.rows.sample(size, self.rng))

    def held_out_batch(self, number: int) -> Transitions:
        """Return a batch of the held-out episodes; it depends on the number only."""
        rng = numpy_generator(number, HELD_OUT, 1)
        return self._scaled(self.rows.sample(self.batch_size, rng, held_out=True))

    def _scaled(self, batch: Transitions) -> Transitions:
        return batch if self._scale is None else replace(batch, rewards=self._scale(batch.rewards))

    def feedback(self, batch: Transitions, result: UpdateResult) -> None: ...
    def forget(self, rows: Sequence[int]) -> None: ...

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None: ...
    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None: ...
    def end_collect(self, acted: ActArrays) -> None: ...
    def record_block(self, block: Block) -> None: ...

    @property
    def nbytes(self) -> int:
        return self.rows.dataset.nbytes

    def state_dict(self) -> State:
        """Return the random stream, and the digest of the dataset."""
        return {"rng": generator_state(self.rng), "dataset": self.rows.dataset.digest}

    def load_state_dict(self, state: State) -> None:
        """Continue the random stream; raise if it was of another dataset. A run without one leaves it as it is."""
        if "dataset" not in state:
            return
        refuse_other_dataset(self.rows.dataset, state["dataset"])
        set_generator_state(self.rng, state["dataset_rng" if "dataset_rng" in state else "rng"])


class MixedSource:
    """Collects, and yields batches whose first rows are replayed and whose last rows come from a dataset.

    With half of each this is the symmetric sampling of RLPD, arXiv:2302.02948. The replay decides how many batches are
    due: none before `learning_starts`, as without a dataset.
    """

    def __init__(self, replay: ReplaySource, dataset: DatasetSource) -> None:
        """A batch has `replay.batch_size` rows and then `dataset.batch_size` rows."""
        self.replay, self.dataset = replay, dataset
        self.steps_per_collect, self.batch_size = (
            replay.steps_per_collect,
            replay.batch_size + dataset.batch_size,
        )
        self.record_action, self.record_outcome = replay.record_action, replay.record_outcome
        self.end_collect, self.record_block = replay.end_collect, replay.record_block
        self.feedback, self.forget = replay.feedback, replay.forget

    def batches(self, progress: Progress) -> Iterator[Transitions]:
        """Yield the batches that are due, several together."""
        for replayed in self.replay.batches(progress):
            count = len(replayed) // self.replay.batch_size
            yield _alternating(replayed, self.dataset.draw(count * self.dataset.batch_size), count)

    @property
    def storages(self) -> Mapping[str, Any]:
        return self.replay.storages

    @property
    def nbytes(self) -> int:
        """Memory of the replay buffer; the dataset has been read already."""
        return self.replay.nbytes

    def state_dict(self) -> State:
        """Return the state of the replay, and the digest and random stream of the dataset."""
        own = self.dataset.state_dict()
        return self.replay.state_dict() | {"dataset": own["dataset"], "dataset_rng": own["rng"]}

    def load_state_dict(self, state: State) -> None:
        """Restore both, after the rows of the replay."""
        self.dataset.load_state_dict(state)
        self.replay.load_state_dict(state)


def _alternating(first: Transitions, second: Transitions, count: int) -> Transitions:
    """Return `count` batches: rows of the first, then rows of the second, in each of them."""

    def joined(one: Any, other: Any) -> Any:
        if isinstance(one, dict):
            return {key: joined(part, other[key]) for key, part in one.items()}
        parts = (part.unflatten(0, (count, -1)) for part in (one, other.to(one.dtype)))
        return torch.cat(tuple(parts), 1).flatten(0, 1)

    names = ("obs", "actions", "rewards", "discounts", "next_obs", "indices")
    return Transitions(**{name: joined(getattr(first, name), getattr(second, name)) for name in names})


def shares_of(fraction: float, batch_size: int) -> tuple[int, int]:
    """Return how many rows of a batch are replayed and how many come from the dataset: at least one of each."""
    if batch_size < 2:
        raise UserError(
            f"batch_size is {batch_size}, but a batch has rows of the dataset and collected ones; use 2 or more"
        )
    from_dataset = min(max(round(fraction * batch_size), 1), batch_size - 1)
    return batch_size - from_dataset, from_dataset


def refuse_other_dataset(dataset: Dataset, digest: object) -> None:
    """Raise if a run has learned from a dataset with another digest."""
    if digest != dataset.digest:
        raise UserError(
            f"dataset '{dataset.name}' is not the one that this run has learned from (its digest is {dataset.digest}, "
            f"that of the run's is {digest}); restore its files, or start a new run"
        )


def take_statistics(policy: TakesStatistics, rows: DatasetRows) -> None:
    """Set the statistics of a new policy, if it has any, to those of the dataset; they do not change later."""
    if policy.normalizer is None and policy.reward_normalizer is None:
        return
    running = torch.zeros(1, dtype=torch.float64)
    for obs, rewards, ended in rows.parts():
        policy.observe(tensors_of(obs))
        if policy.reward_normalizer is not None:
            column, dones = (
                torch.from_numpy(np.ascontiguousarray(part))[:, None] for part in (rewards, ended)
            )
            policy.reward_normalizer.update(column, dones, torch.ones_like(dones), running)


def build_dataset(
    dataset: Dataset,
    policy: TakesStatistics,
    *,
    batch_size: int,
    gamma: float,
    n_step: int = 1,
    held_out: float = 0.0,
    next_actions: bool = False,
    seed: int,
    stream: int = REPLAY,
) -> DatasetSource:
    """Return a source of batches; the statistics of the policy become those of the dataset."""
    rows = DatasetRows(dataset, gamma=gamma, n_step=n_step, held_out=held_out, next_actions=next_actions)
    take_statistics(policy, rows)
    rng = numpy_generator(seed, stream)
    return DatasetSource(rows, batch_size=batch_size, rng=rng, scale=policy.reward_normalizer)
