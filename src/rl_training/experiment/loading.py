"""Creates agents, new or from disk. Loading builds no environment: the spaces are in the checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.losses import LossFunction
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.state import not_finite
from rl_training.core.types import Progress
from rl_training.envs.factory import EnvFactory
from rl_training.envs.stepper_factory import probe_spec
from rl_training.experiment.agent import Agent, check_spaces
from rl_training.experiment.building import (
    NO_OBJECTS,
    UserObjects,
    build_actor,
    build_parts,
    custom_algorithm_name,
    with_masks,
)
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.format import Checkpoint, fitting_weights, restoring
from rl_training.experiment.checkpoints.snapshot import checked_state
from rl_training.experiment.checkpoints.stored_network import refuse_larger_network
from rl_training.experiment.checkpoints.trust import Permission
from rl_training.models.encoders import EncoderClass
from rl_training.policies.base import NetworkPolicy


def new_agent(config: TrainConfig, given: UserObjects = NO_OBJECTS) -> Agent:
    """Return an agent with initial weights."""
    config = with_masks(config, given)
    spec = probe_spec(config, given.factory)
    return Agent(
        config,
        spec,
        build_actor(config, spec, given).policy,
        # the same seed gives the same initial weights
        state=lambda: checked_state(build_parts(config, spec, given).learner, "the agent was not saved"),
        progress=Progress,
        given=given,
    )


def load_agent(
    path: str | PathLike[str],
    *,
    algorithm: type[Algorithm] | None = None,
    env: EnvFactory | str | None = None,
    encoder: EncoderClass | None = None,
    losses: Mapping[str, LossFunction] | None = None,
    trust_modules: bool = False,
    overrides: Mapping[str, Any] | None = None,
    probe: bool = True,
) -> Agent:
    """Return the agent at `path`: a saved folder, a run, a checkpoint, or `last`/`best` of one.

    `algorithm` is its class if that overrides a builder, `encoder` the class of its encoder. `env` replaces the
    environment: an id, or a function that builds one; with `probe`, one is built at once to compare the spaces.
    `overrides` are settings of the run or the algorithm. A module that the checkpoint names is imported only if this
    user wrote the checkpoint, or with `trust_modules`.
    """
    checkpoint = open_checkpoint(path)
    given = UserObjects(algorithm, None if isinstance(env, str) else env, encoder, losses or {})
    check_algorithm(checkpoint, given)
    changes = dict(overrides or {}) | ({"env_id": env} if isinstance(env, str) else {})
    env = changes.get("env_id") if env is None else env
    checkpoint = replace(checkpoint, config=given.name_encoder(checkpoint.config.with_overrides(**changes)))
    source, config = checkpoint.path, checkpoint.config
    named = (changes.keys() - {"encoder"}) | given.settings
    permission = Permission(source, checkpoint.signed or trust_modules, frozenset(named))
    if checkpoint.facts["algorithm"] is None:
        refuse_larger_network(source, config, checkpoint.state, checkpoint.spec)
    permission.refuse_encoder(config)
    spec = checkpoint.spec
    if env is not None and probe:
        permission.refuse_wrappers(config)
        spec = probe_spec(config, given.factory)
        check_spaces(f"checkpoint {source}", config, spec, checkpoint.spec)
    return Agent(
        config,
        spec,
        _with_weights(build_actor(config, spec, given).policy, checkpoint),
        state=lambda: checkpoint.state,
        progress=lambda: checkpoint.progress,
        given=given,
        path=source,
        env_factory=checkpoint.env_factory and not isinstance(env, str),
        permission=permission,
    )


def _with_weights(policy: NetworkPolicy, checkpoint: Checkpoint) -> NetworkPolicy:
    with restoring(checkpoint.path), fitting_weights(checkpoint.path):
        policy.load_state_dict(checkpoint.state["model"])
    culprit = not_finite({"model": policy}, {"model": policy.state_dict()})
    if culprit is not None:
        raise UserError(
            f"checkpoint {checkpoint.path} cannot be used: '{culprit}' holds a number that is not finite"
        )
    return policy


def check_algorithm(checkpoint: Checkpoint, given: UserObjects) -> None:
    """Raise if another algorithm class than the one that trained the agent would load it."""
    face, built_by = ALGORITHMS[checkpoint.config.algo], checkpoint.facts["algorithm"]
    if given.algorithm is not None and not issubclass(given.algorithm, face):
        raise UserError(
            f"{checkpoint.path} holds a {checkpoint.config.algo} agent; load it with {face.__name__}.load"
        )
    if built_by is not None and built_by != custom_algorithm_name(checkpoint.config, given):
        name = built_by.rpartition(":")[2]
        raise UserError(
            f"{checkpoint.path} was trained by the custom class {built_by}; load it in Python with {name}.load(path), "
            f"or resume it with resume(path, algorithm={name})"
        )
