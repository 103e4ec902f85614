"""The base of the off-policy algorithms: settings of replay and network, the update, and the source."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.components import Actor, BuildContext, encoder_problems
from rl_training.algorithms.learner import BaseLearner, as_metrics, refuse_single_rows, scalar
from rl_training.config import AlgorithmConfig
from rl_training.config.schedules import Schedule, ScheduledSetting
from rl_training.core.errors import UserError
from rl_training.core.seeding import DATASET, REPLAY, numpy_generator
from rl_training.core.spaces.stored import stored_space
from rl_training.core.types import Numbers, Progress, StepMetrics, UpdateResult
from rl_training.data.dataset_source import DatasetSource, MixedSource, build_dataset, shares_of
from rl_training.data.replay_buffer import ReplayBuffer, Transitions
from rl_training.data.sources import ReplaySource
from rl_training.models.fast.backend import Backend
from rl_training.models.mlp import ActivationName
from rl_training.policies.base import NetworkPolicy


@dataclass(frozen=True, kw_only=True)
class BatchConfig(AlgorithmConfig):
    """Settings of every algorithm that learns from batches of transitions."""

    takes_dataset: ClassVar[bool] = True

    learning_rate: float = 3e-4
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule = "constant"
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int = 256
    """Transitions in one update."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    activation: ActivationName = "relu"
    """Activation function of the hidden layers."""

    def problems(self, num_envs: int) -> list[str]:
        return [
            *self.not_positive("learning_rate"),
            *self.outside("batch_size", 1, 2**28),
            *self.bad_sizes("hidden_sizes"),
            *encoder_problems(self),
        ]

    def rows_at_once(self, num_envs: int) -> tuple[int, str]:
        return 2 * self.batch_size, "use a smaller batch_size"  # observations and next observations

    def rows_per_step(self, num_envs: int) -> int:
        return self.batch_size


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(BatchConfig):
    """Settings of every algorithm that learns from replayed transitions."""

    buffer_size: int = 1_000_000
    """Capacity of the replay buffer, in transitions; new transitions replace the oldest."""
    learning_starts: int = 100
    """Transitions collected with random actions before the first update."""
    train_freq: int = 1
    """Number of transitions, summed over environments, between rounds of updates."""
    gradient_steps: int = 1
    """Updates per train_freq transitions; the ratio of the two is the update-to-data ratio, and -1 makes it 1."""
    gamma: float = 0.99
    """Discount factor, in [0, 1]."""
    n_step: int = 1
    """Number of rewards that are summed before bootstrapping; a window never crosses the end of an episode."""

    def problems(self, num_envs: int) -> list[str]:
        found = [
            *super().problems(num_envs),
            *self.not_positive("train_freq"),
            *self.outside("buffer_size", 1, 2**40),
            *self.outside("n_step", 1, 10_000),
            *self.negative("learning_starts"),
            *self.outside("gamma", 0, 1),
        ]
        if self.gradient_steps < 1 and self.gradient_steps != -1:
            found.append(f"gradient_steps is {self.gradient_steps}; use 1 or more, or -1 for train_freq")
        return found

    def probable_mistakes(self, total_timesteps: int, num_envs: int) -> list[str]:
        """Report a run that is too short for its first update."""
        found = []
        if self.learning_starts >= total_timesteps:
            found.append(
                f"learning_starts is {self.learning_starts:,} and total_timesteps {total_timesteps:,}: the run ends "
                "before its first update"
            )
        if self.train_freq > total_timesteps:
            found.append(
                f"train_freq is {self.train_freq:,} and total_timesteps {total_timesteps:,}: the run takes as many "
                "steps as its first update needs"
            )
        return found


class OffPolicyLearner(BaseLearner):
    """Updates on several batches of transitions, which are prepared together.

    An algorithm defines `_train_batch` for one batch, and optionally `_begin`, which runs before the first.
    """

    backend: Backend
    """NumPy on the CPU if `models.fast` supports the networks, otherwise torch; selected at construction."""

    def __init__(self, config: BatchConfig, actor: Actor[NetworkPolicy]) -> None:
        # cached: looking up the device of a module takes as long as a layer
        self.device = actor.policy.device
        self._inputs_of = actor.policy.inputs_of
        refuse_single_rows(actor.policy, config.batch_size, "use a larger batch_size")
        self._rate = ScheduledSetting("learning_rate", config.learning_rate, config.learning_rate_schedule)
        self._batch_size = config.batch_size
        self.owners = {"model": actor.policy}

    def update(self, batch: Transitions, progress: Progress) -> UpdateResult:
        """Train on rows [K * B] of K batches, one after the other."""
        learning_rate = self.learning_rate(progress)
        history: list[StepMetrics] = []
        priorities: list[Numbers | None] = []
        with self.learning():
            rows = self._begin(self.prepared(batch), progress)
            for part in rows.split(self._batch_size) if len(batch) > self._batch_size else [rows]:
                measured, errors = self._train_batch(part, progress.updates + len(history), learning_rate)
                history.append(measured)
                priorities.append(errors)
        metrics = as_metrics(history)
        metrics["learning_rate"] = learning_rate
        metrics["explicit"] = scalar(float(self.update_path != "autograd"))
        found = [torch.as_tensor(errors) for errors in priorities if errors is not None]
        return UpdateResult(metrics, torch.cat(found) if found else None, updates=len(history))

    def _begin(self, rows: Transitions, progress: Progress) -> Transitions:
        """Return the prepared rows of all batches; called once before the first batch."""
        return rows

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[StepMetrics, Numbers | None]:
        """Train on one batch [B]; return metrics, and errors [B] for priorities, if there are any.

        `rows` hold the networks' inputs; `updates` is the number of previous updates in the run.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define _train_batch")

    def prepared(self, batch: Transitions) -> Transitions:
        """Return the rows on the device and in the backend of the networks, with inputs in place of observations."""
        rows = batch if self.device.type == "cpu" else batch.to(self.device)
        with torch.no_grad():
            rows = replace(rows, obs=self._inputs_of(rows.obs), next_obs=self._inputs_of(rows.next_obs))
        return self.backend.rows(rows)


def dataset_source(
    settings: BatchConfig,
    context: BuildContext,
    actor: Actor[NetworkPolicy],
    *,
    gamma: float,
    n_step: int = 1,
    next_actions: bool = False,
    collects: bool = False,
) -> DatasetSource:
    """Return batches of the dataset; the statistics of the policy become those of the dataset.

    With `next_actions`, they also have the action that was recorded after each transition.
    """
    assert context.dataset is not None, "the config names a dataset"
    alone = context.dataset_fraction == 1.0
    if not alone and not collects:
        raise UserError(
            "dataset_fraction is below 1, but the algorithm learns from recorded data alone; leave it out"
        )
    rows = settings.batch_size
    return build_dataset(
        context.dataset,
        actor.policy,
        batch_size=rows if alone else shares_of(context.dataset_fraction, rows)[1],
        gamma=gamma,
        n_step=n_step,
        held_out=context.held_out_fraction if alone else 0.0,
        next_actions=next_actions,
        seed=context.seed,
        stream=REPLAY if alone else DATASET,
    )


def build_replay(
    settings: ReplayConfig,
    context: BuildContext,
    actor: Actor[NetworkPolicy],
    *,
    prioritized: bool = False,
    priority_alpha: float = 0.6,
    priority_beta: float = 1.0,
) -> ReplaySource | DatasetSource | MixedSource:
    """Return what the policy learns from: replay, a dataset, or both in every batch."""
    dataset, rows = None, settings.batch_size
    if context.dataset is not None:
        _refuse_beside_dataset(context, actor, prioritized=prioritized)
        dataset = dataset_source(
            settings, context, actor, gamma=settings.gamma, n_step=settings.n_step, collects=True
        )
        if context.dataset_fraction == 1.0:
            return dataset
        rows = shares_of(context.dataset_fraction, rows)[0]
    spec, policy = context.spec, actor.policy
    shape, frames = spec.observation_space.shape, context.frame_stack
    is_stack = frames > 1 and shape is not None and len(shape) > 1 and shape[0] % frames == 0
    is_stack &= not spec.turns  # rows that wait do not see one new frame per transition
    buffer = ReplayBuffer.for_spaces(
        stored_space(spec),
        spec.action_space,
        capacity=settings.buffer_size,
        num_envs=spec.num_envs,
        n_step=settings.n_step,
        gamma=settings.gamma,
        prioritized=prioritized,
        priority_alpha=priority_alpha,
        frame_stack=frames if is_stack else None,
        extra=actor.explorer.columns,
        turns=spec.turns,
    )
    replay = ReplaySource(
        buffer,
        batch_size=rows,
        train_freq=settings.train_freq,
        gradient_steps=settings.gradient_steps,
        learning_starts=settings.learning_starts,
        rng=numpy_generator(context.seed, REPLAY),
        beta=priority_beta,
        reward_scaler=policy.reward_normalizer,
        observe=policy.observe if policy.normalizer is not None else None,
    )
    return replay if dataset is None else MixedSource(replay, dataset)


def _refuse_beside_dataset(context: BuildContext, actor: Actor[NetworkPolicy], *, prioritized: bool) -> None:
    """Raise for what the rows of a dataset do not have."""
    if prioritized:
        raise UserError("prioritized is true, but batches of a dataset are drawn uniformly; set it to false")
    if context.spec.masked:
        raise UserError("a dataset has no action masks; set use_action_masks to off")
    if actor.explorer.columns:
        names = ", ".join(column.name for column in actor.explorer.columns)
        raise UserError(
            f"the explorer records {names}, which a dataset does not have; use a dataset_fraction of 1"
        )
