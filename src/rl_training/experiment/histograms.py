"""Histograms of weights, gradients and activations, for TensorBoard."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.components import StatefulLearner
from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.core.seeding import callers_generators_kept
from rl_training.core.types import Array, Obs, Progress, State, UpdateResult, moved
from rl_training.policies.base import NetworkPolicy
from rl_training.runtime.callbacks import Callback, TrainingContext
from rl_training.runtime.trainer import Trigger

ROWS = 256
"""Rows of a batch for which activations are computed."""
NETWORKS = {"model": "", "critics/online": "critics."}
"""The learner's networks, and how the names of their parameters begin."""


class HistogramLog(Callback):
    """Writes histograms after the first update at or after each multiple of `every` timesteps."""

    def __init__(
        self, every: int, learner: StatefulLearner, write: Callable[[Mapping[str, Array], int], None]
    ) -> None:
        self.trigger, self.learner, self.write = Trigger(every), learner, write
        self._batch: Any = None
        self._resumed = False

    def on_start(self, context: TrainingContext) -> None:
        """Count from where the run begins, unless it is resumed."""
        if not self._resumed:
            self.trigger.due(context.start.clock)

    def on_rollout(self, batch: Any) -> None:
        self._batch = batch

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        """Write the histograms if they are due."""
        if self.trigger.due(progress.clock):
            self.write(network_numbers(self.learner, self._batch), progress.clock)
        self._batch = None

    def state_dict(self) -> State:
        return {"fired": self.trigger.fired}

    def load_state_dict(self, state: State) -> None:
        self.trigger.fired, self._resumed = int(state["fired"]), True


def network_numbers(learner: StatefulLearner, batch: Any) -> dict[str, Array]:
    """Return the learner's weights, last gradients, and activations for rows of a batch, by name.

    Nothing that is learned changes: between updates the networks are in evaluation mode, and the random generators are
    restored.
    """
    owners: Mapping[str, Any] = getattr(learner, "owners", {})
    networks = {NETWORKS[name]: owners[name] for name in NETWORKS if isinstance(owners.get(name), nn.Module)}
    optimizers = [owner for owner in owners.values() if isinstance(owner, FlatOptimizer)]
    weights, gradients = dict[str, Tensor](), dict[str, Tensor]()
    for prefix, network in networks.items():
        for name, parameter in network.named_parameters():
            weights[f"weights/{prefix}{name}"] = parameter
            for optimizer in optimizers:
                if (gradient := optimizer.gradient_of(parameter)) is not None:
                    gradients[f"gradients/{prefix}{name}"] = gradient
    found = weights | gradients
    if isinstance(owners.get("model"), NetworkPolicy):
        found |= _activations(owners["model"], getattr(learner, "critics", None), batch)
    return {name: tensor.detach().cpu().numpy().ravel() for name, tensor in found.items()}


def _activations(policy: NetworkPolicy, critics: nn.Module | None, batch: Any) -> dict[str, Tensor]:
    """Return the outputs of all layers of the policy and of the critics, if there are any."""
    rows = torch.linspace(0, len(batch) - 1, min(ROWS, len(batch))).long()
    found: dict[str, Tensor] = {}
    with callers_generators_kept(), torch.no_grad():
        inputs = policy.prepare(moved(_taken(batch.obs, rows), policy.device))
        with _watched(policy.network, "activations/network", found):
            policy.network(inputs, **_memory(policy, len(rows)))
        if critics is not None:
            actions = batch.actions[rows].to(policy.device)
            with _watched(critics, "activations/critics", found):
                critics(inputs, actions)
    return found


def _memory(policy: NetworkPolicy, rows: int) -> dict[str, Any]:
    """Return the arguments of a network with memory: every row is the first step of an episode."""
    state = policy.initial_state(rows)
    if not state:
        return {}
    memory = tuple(torch.from_numpy(part).to(policy.device) for part in state)
    return {"memory": memory, "starts": torch.ones(rows, dtype=torch.bool, device=policy.device)}


@contextlib.contextmanager
def _watched(network: nn.Module, name: str, found: dict[str, Tensor]) -> Iterator[None]:
    """Copy the outputs of a network's layers to `found`; a layer that is used twice has two entries."""

    def keep(called: str, outputs: Any) -> None:
        while isinstance(outputs, tuple | list) and outputs:
            outputs = outputs[0]
        if isinstance(outputs, Tensor) and outputs.is_floating_point():
            uses = sum(other == called or other.startswith(f"{called}#") for other in found)
            found[f"{called}#{uses + 1}" if uses else called] = outputs.clone()

    parts = network.named_modules()
    layers = [(part, module) for part, module in parts if next(module.children(), None) is None]
    hooks = [
        module.register_forward_hook(
            lambda _, __, outputs, called=f"{name}.{part}" if part else name: keep(called, outputs)
        )
        for part, module in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _taken(obs: Obs, rows: Tensor) -> Obs:
    return {key: part[rows] for key, part in obs.items()} if isinstance(obs, dict) else obs[rows]
