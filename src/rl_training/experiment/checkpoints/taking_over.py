"""Agents of one algorithm that another one continues: learned from a dataset, then fine-tuned online."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.lookup import algorithm_name, config_for
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.state import join_state, split_state
from rl_training.core.types import State
from rl_training.experiment.building import UserObjects, build_learner
from rl_training.experiment.checkpoints.format import Checkpoint, fitting_weights, restoring
from rl_training.experiment.checkpoints.trust import Permission
from rl_training.models.encoders import EncoderClass

TAKES_OVER: dict[str, tuple[str, ...]] = {
    "td3": ("td3_bc", "rebrac"),
    "sac": ("cql", "iql", "awac"),
    "awac": ("iql",),
}
"""For each algorithm, those whose networks it takes over. Any algorithm continues its own agents and its parents'."""
LOG_STD = "head.log_std"
"""The learned log deviation of a normal that does not depend on the observation, in the state of a policy."""


def takes_over(algorithm: type[Algorithm], checkpoint: Checkpoint) -> bool:
    """Return whether an algorithm can start from a checkpoint of another one."""
    there = algorithm_name(checkpoint.algorithm)
    return there in TAKES_OVER.get(algorithm_name(algorithm), ())


def for_algorithm(
    checkpoint: Checkpoint,
    algorithm: type[Algorithm],
    *,
    encoder: EncoderClass | None = None,
    granted: bool | None = None,
    given: frozenset[str] = frozenset(),
) -> Checkpoint:
    """Return the checkpoint as one that `algorithm` can start from; raise if it cannot.

    Settings and networks that both algorithms have are taken over; everything else is as in a new run. `granted` and
    `given` are those of a `Permission`.
    """
    if issubclass(algorithm, checkpoint.algorithm):
        return replace(checkpoint, config=config_for(algorithm, checkpoint.config))
    if not takes_over(algorithm, checkpoint):
        raise UserError(_refusal(checkpoint, algorithm))
    config = _settings_for(algorithm, checkpoint.config)
    permission = Permission(checkpoint.path, checkpoint.trusted if granted is None else granted, given)
    permission.refuse_encoder(config)
    permission.refuse_schedules(config)
    learner = build_learner(config, checkpoint.spec, UserObjects(algorithm, encoder=encoder), {})
    with restoring(checkpoint.path), fitting_weights(checkpoint.path):
        learner.load_learned(_overlaid(learner.learned_state(), checkpoint.state))
    kept = {name: checkpoint.state[name] for name in ("sampler",) if name in checkpoint.state}
    return replace(checkpoint, config=config, state=learner.state_dict() | kept, algorithm=algorithm)


def _settings_for(algorithm: type[Algorithm], config: TrainConfig) -> TrainConfig:
    names = {item.name for item in fields(algorithm.config_class)}
    own = config.algorithm
    shared = {item.name: getattr(own, item.name) for item in fields(own) if item.name in names}
    return replace(config, algo=algorithm_name(algorithm), algorithm=algorithm.config_class(**shared))


def _overlaid(new: Mapping[str, State], saved: Mapping[str, State]) -> dict[str, State]:
    """Return the learned state of a new learner, with all that the saved one has in its place."""
    found: dict[str, State] = {}
    for group, content in new.items():
        tensors, plain = split_state(content)
        before, _ = split_state(saved.get(group, {}))
        if group == "model" and LOG_STD in before and LOG_STD not in tensors:
            before = _as_squashed_normal(before, tensors)
        for name in tensors:
            online = name.replace("target/", "online/", 1)  # not every algorithm has target networks
            if name in before or online in before:
                tensors[name] = before[name if name in before else online]
            elif group in ("model", "critics"):
                raise KeyError(f"there is no {group}/{name}")
        found[group] = join_state(tensors, plain)
    return found


def _as_squashed_normal(saved: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return an actor [.., A] whose log deviation is learned apart as one with outputs for both [.., 2A].

    The half for the mean is that of the actor, so deterministic actions are the same. The half for the log deviation
    does not depend on the observation at first: its weights are 0, and its bias is the learned log deviation.
    """
    log_std, found = saved[LOG_STD], dict(saved)
    for name, tensor in new.items():
        before: Any = saved.get(name)
        if before is None or before.shape == tensor.shape or len(tensor) != 2 * len(log_std):
            continue
        half = log_std.to(before.dtype) if before.dim() == 1 else torch.zeros_like(before)
        found[name] = torch.cat([before, half])
    return found


def _refusal(checkpoint: Checkpoint, algorithm: type[Algorithm]) -> str:
    there, here = algorithm_name(checkpoint.algorithm), algorithm_name(algorithm)
    known = [name for name, sources in TAKES_OVER.items() if there in sources]
    return (
        f"{checkpoint.path} is for {there}, not for {here}; start from a run of "
        f"{' or '.join([here, *TAKES_OVER.get(here, ())])}, or train {' or '.join([there, *known])}"
    )
