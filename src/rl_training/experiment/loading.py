"""Creates agents, new or from disk. Loading builds no environment: the spaces are in the checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.lookup import algorithm_name, config_for
from rl_training.algorithms.losses import LossFunction
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.state import not_finite
from rl_training.core.types import EnvSpec, Progress
from rl_training.envs.factory import EnvFactory
from rl_training.envs.stepper_factory import probe_spec
from rl_training.experiment.agent import Agent, check_spaces
from rl_training.experiment.building import (
    NO_OBJECTS,
    UserObjects,
    build_actor,
    build_parts,
    with_masks,
)
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.format import Checkpoint, fitting_weights, restoring
from rl_training.experiment.checkpoints.snapshot import checked_state
from rl_training.experiment.checkpoints.stored_network import refuse_larger_network
from rl_training.experiment.checkpoints.taking_over import for_algorithm, takes_over
from rl_training.experiment.checkpoints.trust import Permission, Trust
from rl_training.experiment.run_data import data_spec, open_data, settle_environment
from rl_training.models.encoders import EncoderClass
from rl_training.policies.base import NetworkPolicy


def new_agent(config: TrainConfig, given: UserObjects = NO_OBJECTS) -> Agent:
    """Return an agent with initial weights."""
    dataset = open_data(config, given)
    if dataset is not None:
        config = settle_environment(config, given, dataset)
    if dataset is not None and config.offline:
        spec = data_spec(config, dataset)
    else:
        config = with_masks(config, given)
        spec = probe_spec(config, given.factory)
    return Agent(
        config,
        spec,
        build_actor(config, spec, given).policy,
        # the same seed gives the same initial weights
        state=lambda: checked_state(
            build_parts(config, spec, given, dataset).learner, "the agent was not saved"
        ),
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
    for_new_run: bool = False,
) -> Agent:
    """Return the agent at `path`: a saved folder, a run, a checkpoint, or `last`/`best` of one.

    `algorithm` is its class, or a parent or child of it, or with `for_new_run` one that takes over its networks;
    `encoder` is the class of its encoder. `env` replaces the environment: an id, or a function that builds
    one; with `probe`, one is built at once to compare the spaces. `overrides` are settings of the run or the algorithm,
    or losses. Modules that it names are imported only if this user wrote it, or with `trust_modules`.
    """
    checkpoint = _opened(path, algorithm, encoder, trust_modules, for_new_run=for_new_run)
    algorithm = loading_class(checkpoint, algorithm)
    changes = dict(overrides or {}) | ({"env_id": env} if isinstance(env, str) else {})
    losses = dict(losses or {}) | algorithm.take_losses(changes)
    given = UserObjects(algorithm, None if isinstance(env, str) else env, encoder, losses)
    config = config_for(algorithm, checkpoint.config).with_overrides(**changes)
    env = changes.get("env_id") if env is None else env
    source, named = checkpoint.path, frozenset(changes.keys() - {"encoder"}) | given.settings
    permission = Permission(source, checkpoint.trusted, named)
    config = permission.without_outputs(given.name_encoder(config))
    if ":" not in checkpoint.config.algo:
        refuse_larger_network(source, config, checkpoint.state, checkpoint.spec)
    permission.refuse_encoder(config)
    spec = checkpoint.spec
    if env is not None and probe:
        permission.refuse_wrappers(config)
        permission.refuse_arguments(config)
        spec = _probed(checkpoint, config, given)
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
        losses=checkpoint.losses,
    )


def _probed(checkpoint: Checkpoint, config: TrainConfig, given: UserObjects) -> EnvSpec:
    """Return the spaces of another environment, which must be those of the checkpoint.

    It need not have what only the critic reads.
    """
    found = probe_spec(config, given.factory, for_critic=False)
    check_spaces(f"checkpoint {checkpoint.path}", config, found, checkpoint.spec)
    return replace(found, critic_space=checkpoint.spec.critic_space)


def _opened(
    path: str | PathLike[str],
    algorithm: type[Algorithm] | None,
    encoder: EncoderClass | None,
    trust_modules: bool,
    *,
    for_new_run: bool,
) -> Checkpoint:
    checkpoint = open_checkpoint(path, Trust(algorithm, trust_modules))
    if not for_new_run or algorithm is None or not takes_over(algorithm, checkpoint):
        return checkpoint
    given = frozenset[str]() if encoder is None else frozenset(["encoder"])
    return for_algorithm(checkpoint, algorithm, encoder=encoder, given=given)


def _with_weights(policy: NetworkPolicy, checkpoint: Checkpoint) -> NetworkPolicy:
    with restoring(checkpoint.path), fitting_weights(checkpoint.path):
        policy.load_state_dict(checkpoint.state["model"])
    culprit = not_finite({"model": policy}, {"model": policy.state_dict()})
    if culprit is not None:
        raise UserError(
            f"checkpoint {checkpoint.path} cannot be used: '{culprit}' holds a number that is not finite"
        )
    return policy


def loading_class(checkpoint: Checkpoint, given: type[Algorithm] | None) -> type[Algorithm]:
    """Return the class of a loaded agent: its own or, if that is its child, the `given` one; raise for any other."""
    own = checkpoint.algorithm
    if given is None or issubclass(own, given):
        return own
    if issubclass(given, own):
        return given
    raise UserError(
        f"{checkpoint.path} holds a {algorithm_name(own)} agent; load it with {own.__name__}.load"
    )


def check_algorithm(checkpoint: Checkpoint, algorithm: type[Algorithm]) -> None:
    """Raise if a run of `algorithm` cannot start from a checkpoint, which is of another one and not of its parent."""
    if not issubclass(algorithm, checkpoint.algorithm):
        there, here = algorithm_name(checkpoint.algorithm), algorithm_name(algorithm)
        raise UserError(
            f"{checkpoint.path} is a {there} agent, but this is a run of {here}; start from a run of {here}, or train "
            f"{there}"
        )
