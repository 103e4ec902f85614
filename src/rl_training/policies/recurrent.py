"""The recurrent actor-critic policy and its explorer."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.recurrent_state import EPISODE_STARTS, state_column, state_columns
from rl_training.core.spaces.layout import float_dtype, take_rows
from rl_training.core.spaces.masks import split_mask
from rl_training.core.spaces.stored import split_critic
from rl_training.core.state import Owners
from rl_training.core.types import (
    ActArrays,
    Array,
    EnvSpec,
    Obs,
    ObsArray,
    PolicyState,
    Progress,
    State,
    StepArrays,
    leaves,
    moved,
    tensors_of,
)
from rl_training.models.cores import CoreName, Memory
from rl_training.models.encoded_network import WithCriticEntries, layers_after_encoder
from rl_training.models.fast.acting import NumpyRecurrent
from rl_training.models.recurrent import LSTMActorCritic
from rl_training.policies.actor_critic import ActorCriticPolicy, Rows
from rl_training.policies.base import NetworkPolicy
from rl_training.policies.explorers import ActorCriticExplorer
from rl_training.policies.noise import ExplorationMatrices


class SequenceRows(Rows, Protocol):
    """Rows [L * B, ...] of B sequences in time order, and the state before them."""

    @property
    def extra(self) -> dict[str, Tensor]: ...
    @property
    def memory(self) -> Memory: ...


class RecurrentPolicy(ActorCriticPolicy):
    """An actor-critic policy with a recurrent core."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        core: CoreName | None,
        core_size: int,
        core_layers: int,
        share_core: bool,
        **settings: Any,
    ) -> None:
        """`settings` are those of `ActorCriticPolicy`."""
        network = partial(
            LSTMActorCritic, core=core, core_size=core_size, core_layers=core_layers, share_core=share_core
        )
        memory_size = None if core is None else core_size
        super().__init__(spec, make_network=network, memory_size=memory_size, **settings)
        self.memory_sizes = self._layers.memory_sizes

    @property
    def _layers(self) -> LSTMActorCritic:
        return cast(LSTMActorCritic, layers_after_encoder(self.network))

    def initial_state(self, rows: int) -> PolicyState:
        return tuple(np.zeros((rows, size), float_dtype()) for size in self.memory_sizes)

    def run(self, rows: SequenceRows) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # of sequences
        """Return action parameters [L * B, P] and values [L * B], with gradients."""
        params, values, _ = self.network(rows.obs, memory=rows.memory, starts=rows.extra[EPISODE_STARTS])
        return params, values

    def features(self, rows: SequenceRows) -> tuple[Tensor, ...]:  # type: ignore[override]  # of sequences
        """Return the outputs of the cores, [L * B, H], with gradients."""
        plain = self.encoding.encoder is None and self.entries is None
        seen: Any = (rows.obs,) if plain else self.encoded(rows)
        return self._layers.core_outputs(*seen, memory=rows.memory, starts=rows.extra[EPISODE_STARTS])[0]

    @property
    def last_layers(self) -> nn.Module:
        return self._layers.network

    def log_prob(
        self, obs: Obs, actions: Tensor, state: Memory | None = None, episode_starts: Tensor | None = None
    ) -> Tensor:
        """Return log-probabilities [L * B] of actions given observations of B sequences in time order, with gradients.

        `state` holds the parts [B, ...] before the first step; by default every row is the first step of an episode.
        `episode_starts` [L * B] marks the steps before which the state is reset.
        """
        device = self.device
        seen, mask = split_mask(moved(obs, device))
        if state is None:
            state = tuple(torch.from_numpy(part) for part in self.initial_state(len(actions)))
        if episode_starts is None:
            episode_starts = torch.zeros(len(actions), dtype=torch.bool)
        memory = tuple(part.to(device) for part in state)
        starts = episode_starts.to(device)
        if isinstance(self.network, WithCriticEntries):
            inputs = self.prepare(split_critic(seen)[0])
            params, _ = self.network.params(inputs, memory=memory, starts=starts)
        else:
            params, _, _ = self.network(self.prepare(seen), memory=memory, starts=starts)
        return self.log_prob_entropy(params, actions.to(device), mask)[0]

    def outputs(self, obs: ObsArray) -> tuple[Array, Array]:
        """Return action parameters [N, P] and values [N] for the first step of an episode."""
        rows = len(next(iter(leaves(obs)))[1])
        return self.step(obs, self.initial_state(rows))[:2]

    def step(self, obs: ObsArray, memory: PolicyState) -> tuple[Array, Array, PolicyState]:
        """Return action parameters [N, P], with the mask applied, values [N] and the next state."""
        seen, mask = split_mask(obs)
        twin = self._current_twin()
        if isinstance(twin, NumpyRecurrent):
            if self.entries is None:
                params, values, after = twin(self._read_numpy(seen), memory)
            else:
                actor, critic = self._read_both(seen)
                params, values, after = twin(actor, memory, critic)
            self._finite((params, values))
        else:
            params, values, after = self._step_on_device(seen, memory)
        return self.head.masked(params, mask), values, after

    @torch.no_grad()
    def _step_on_device(self, obs: ObsArray, memory: PolicyState) -> tuple[Array, Array, PolicyState]:
        inputs, named = self._on_device(obs, memory)
        params, values, after = self.network(inputs, **named)
        outputs = self._finite((params.cpu().numpy(), values.cpu().numpy()))
        return *outputs, tuple(part.cpu().numpy() for part in after)

    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]:
        params, after = self.params_and_memory(obs, state)
        return self.head.mode(params) if deterministic else self.head.sample(params, rng)[0], after

    def params_and_memory(self, obs: ObsArray, memory: PolicyState) -> tuple[Array, PolicyState]:
        """Return action parameters [N, P], with the mask applied, and the next state.

        What only the critic reads is ignored, and then the state of its core stays as it is.
        """
        if self.entries is None:
            params, _, after = self.step(obs, memory)
            return params, after
        seen, mask = split_mask(obs)
        seen, twin = split_critic(seen)[0], self._current_twin()
        if isinstance(twin, NumpyRecurrent):
            params, after = twin.params(self._read_numpy(seen), memory)
        else:
            params, after = self._params_on_device(seen, memory)
        return self.head.masked(self._finite(params), mask), after

    @torch.no_grad()
    def _params_on_device(self, obs: ObsArray, memory: PolicyState) -> tuple[Array, PolicyState]:
        assert isinstance(self.network, WithCriticEntries)
        inputs, named = self._on_device(obs, memory)
        params, after = self.network.params(inputs, **named)
        return params.cpu().numpy(), tuple(part.cpu().numpy() for part in after)

    def _on_device(self, obs: ObsArray, memory: PolicyState) -> tuple[Obs, dict[str, Any]]:
        """Return the inputs of the network for one step."""
        device, rows = self.device, len(next(iter(leaves(obs)))[1])
        before = tuple(torch.from_numpy(part).to(device) for part in memory)
        starts = torch.zeros(rows, dtype=torch.bool, device=device)
        return self.prepare(moved(tensors_of(obs), device)), {"memory": before, "starts": starts}


class RunningMemory:
    """The hidden state of the running episodes, and which of them have just begun."""

    def __init__(self, policy: NetworkPolicy, num_envs: int) -> None:
        self.parts = policy.initial_state(num_envs)
        self.starts = np.ones(num_envs, np.bool_)

    def restart(self, rows: Any) -> None:
        """Reset rows, given as a mask or numbers: new episodes begin there."""
        for part in self.parts:
            part[rows] = 0.0
        self.starts[rows] = True

    def state_dict(self) -> State:
        parts = {str(number): torch.from_numpy(part.copy()) for number, part in enumerate(self.parts)}
        return {"parts": parts, "starts": torch.from_numpy(self.starts.copy())}

    def load_state_dict(self, state: State) -> None:
        """Restore the state; that of another number of environments is ignored."""
        if len(state["starts"]) != len(self.starts):
            return
        self.starts[:] = state["starts"].numpy()
        for number, part in enumerate(self.parts):
            saved = state["parts"][str(number)].numpy()
            if saved.shape != part.shape:
                raise ValueError(f"memory {number} has shape {saved.shape} instead of {part.shape}")
            part[:] = saved


class RecurrentExplorer(ActorCriticExplorer):
    """Samples actions and carries the hidden state, which is reset at the end of an episode, not at a lost life."""

    policy: RecurrentPolicy

    def __init__(
        self,
        policy: RecurrentPolicy,
        rng: np.random.Generator,
        *,
        matrices: ExplorationMatrices | None = None,
    ) -> None:
        super().__init__(policy, rng, matrices=matrices)
        self.memory = RunningMemory(policy, policy.spec.num_envs)
        self.columns = state_columns(policy.memory_sizes)

    def act(self, obs: ObsArray, acted: ActArrays, progress: Progress) -> None:
        """Fill action, logprob, value and the state before the step; then advance the state."""
        memory = self.memory
        acted.extra[EPISODE_STARTS][:] = memory.starts
        for number, part in enumerate(memory.parts):
            acted.extra[state_column(number)][:] = part
        params, acted.value[:], memory.parts = self.policy.step(obs, memory.parts)
        acted.action[:], acted.logprob[:] = self.sampled(params)
        memory.starts[:] = False

    def after_step(self, step: StepArrays, acted: ActArrays) -> None:
        """Fill final_value where a time limit cut an episode, with the state of that episode; then reset ended rows.

        An episode also begins after an invalid row of a next-step autoreset. Of rows that may wait, it begins with the
        first own action: before that a row remembers nothing, and from then on what it sees while it waits, too.
        """
        acted.final_value[:] = 0.0
        if step.any_ended:
            if step.truncated.any():
                rows = np.flatnonzero(step.truncated)
                memory = tuple(part[rows] for part in self.memory.parts)
                acted.final_value[rows] = self.policy.step(take_rows(step.final_obs, rows), memory)[1]
            self.memory.restart(step.ended)
        if step.num_valid < len(step.valid):
            fresh = acted.extra[EPISODE_STARTS] if self.policy.spec.turns else True
            self.memory.restart(~step.valid & fresh)

    def end_collect(self, step: StepArrays, acted: ActArrays) -> None:
        """Fill last_value without advancing the state; nan for rows that wait."""
        acted.last_value[:] = self.policy.step(step.obs, self.memory.parts)[1]
        self._mark_waiting(step, acted)
        self.begin_rollout()

    def forget(self, rows: Sequence[int]) -> None:
        """Clear the memory of rows whose episode does not continue."""
        self.memory.restart(list(rows))

    @property
    def owners(self) -> Owners:
        return {**super().owners, "memory": self.memory}
