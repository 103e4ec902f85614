"""Builds the parts of a run from its config and from the classes and functions that a user passes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from rl_training.algorithms import refuse_actions
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext, Parts, StatefulLearner
from rl_training.algorithms.learner import BaseLearner
from rl_training.algorithms.lookup import config_for, find_algorithm
from rl_training.algorithms.losses import Loss, LossFunction, replaced_losses, resolved_losses
from rl_training.algorithms.shards import Shards
from rl_training.algorithms.teams import joined_actor, joined_parts, team_seed, team_specs
from rl_training.config import TrainConfig
from rl_training.config.object_paths import import_object
from rl_training.core.errors import UserError
from rl_training.core.games import Game
from rl_training.core.one_thread import one_thread
from rl_training.core.seeding import OPPONENTS, callers_generators_kept, numpy_generator
from rl_training.core.types import EnvSpec
from rl_training.datasets.dataset import Dataset
from rl_training.envs.factory import EnvFactory, checked_factory, make_vector_env
from rl_training.envs.masks import settle_masks
from rl_training.models.encoders import EncoderClass, encoder_name
from rl_training.models.images import READING, image_leaves
from rl_training.policies.base import NetworkPolicy
from rl_training.policies.self_play import SelfPlayExplorer
from rl_training.policies.snapshot_pool import SnapshotPool


@dataclass(frozen=True)
class UserObjects:
    """Objects that a user passes: algorithm class, function that builds an environment, encoder class, losses by name.

    Each of them is optional. By default the config decides: `algo`, `env_id` and `encoder`. A checkpoint stores at most
    the names of these objects.
    """

    algorithm: type[Algorithm] | None = None
    factory: EnvFactory | None = None
    encoder: EncoderClass | None = None
    losses: Mapping[str, LossFunction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.factory is not None:
            checked_factory(self.factory)

    def as_arguments(self) -> dict[str, Any]:
        """Return the objects as keyword arguments of `train` and `resume`."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def losses_for(self, config: TrainConfig) -> dict[str, Loss]:
        """Return the losses that train a run of this config, as they are at this moment."""
        return resolved_losses(self.algorithm_for(config), config.algorithm, self.losses)

    def loss_names(self, config: TrainConfig) -> dict[str, str]:
        """Return `module:name` of each replaced loss, which is saved in checkpoints."""
        algorithm = self.algorithm_for(config)
        return replaced_losses(algorithm, config.algorithm, self.losses_for(config))

    def has_env(self, config: TrainConfig) -> bool:
        """Return whether there is an environment; a run that learns from a dataset may have none."""
        return bool(config.env_id) or self.factory is not None

    @property
    def settings(self) -> frozenset[str]:
        """Names of the settings that the objects replace."""
        replaced = {"env_id": self.factory, "encoder": self.encoder}
        return frozenset(name for name, part in replaced.items() if part is not None)

    def name_encoder(self, config: TrainConfig) -> TrainConfig:
        """Return the config with the name of the given encoder, which is saved in checkpoints."""
        return config if self.encoder is None else config.with_overrides(encoder=encoder_name(self.encoder))

    def named(self, config: TrainConfig) -> TrainConfig:
        """Return the config with the names of the given algorithm and encoder, which are saved in checkpoints."""
        return self.name_encoder(config if self.algorithm is None else config_for(self.algorithm, config))

    def algorithm_for(self, config: TrainConfig) -> type[Algorithm]:
        """Return the class of the algorithm; one that was not given is imported, as the config is trusted."""
        return self.algorithm or find_algorithm(config.algo)

    def encoder_for(self, config: TrainConfig) -> EncoderClass | None:
        """Return the custom encoder of a run, if any; one that was not given is imported."""
        name = config.algorithm.encoder
        if self.encoder is not None or ":" not in name:
            return self.encoder
        short = name.rpartition(":")[2].rpartition(".")[2]
        found = import_object(name, "encoder", f"or pass the class in Python: encoder={short}")
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise UserError(
                f"encoder '{name}' is not a class of torch modules; use a subclass of torch.nn.Module"
            )
        return found


NO_OBJECTS = UserObjects()
OF_ONE_PROCESS: dict[str, Any] = {"engine": "local", "env_groups": 1, "lag": 0, "learner_shards": 1}
"""Settings that games do not take yet, and their values."""


def build_parts(
    config: TrainConfig, spec: EnvSpec, given: UserObjects = NO_OBJECTS, dataset: Dataset | None = None
) -> Parts:
    """Return all parts of a run; where several policies play a game, those of each as one."""
    refuse_task(given.algorithm_for(config), config, spec)
    if several_policies(spec):
        return joined_parts(spec, lambda own, number: _parts(_of_team(config, number), own, given, None))
    parts = _parts(config, spec, given, dataset)
    return parts if config.opponents == "self" else _with_opponents(parts, config, spec, given)


def _with_opponents(parts: Parts, config: TrainConfig, spec: EnvSpec, given: UserObjects) -> Parts:
    """Return the parts with an explorer that plays against snapshots of the policy."""
    assert spec.game is not None, "refuse_task has checked it"

    def make_policy() -> NetworkPolicy:
        with callers_generators_kept():  # a user's encoder may draw its weights from them
            policy: NetworkPolicy = build_actor(config, spec, given).policy
        return policy.requires_grad_(False)

    policy = parts.actor.policy
    explorer = SelfPlayExplorer(
        parts.actor.explorer,
        policy,
        SnapshotPool(
            config.opponent_pool_size if config.opponents == "pool" else 1, config.opponent_sampling
        ),
        numpy_generator(config.seed, OPPONENTS),
        num_seats=len(spec.game.seats),
        update_every=config.opponent_update_every,
        make_policy=make_policy,
    )
    return replace(parts, actor=Actor(policy, explorer))


def several_policies(spec: EnvSpec) -> bool:
    """Return whether more than one policy plays."""
    return spec.game is not None and len(spec.game.teams) > 1


def _of_team(config: TrainConfig, number: int) -> TrainConfig:
    return config.with_overrides(seed=team_seed(config.seed, number))


def _parts(config: TrainConfig, spec: EnvSpec, given: UserObjects, dataset: Dataset | None) -> Parts:
    """Return the parts that train one policy."""
    chosen = given.algorithm_for(config)
    context = replace(_build_context(config, spec, given), dataset=dataset)
    with one_thread():  # initial weights do not depend on the number of threads
        parts = chosen.build(config.algorithm, context)
    _set_acting(parts.actor)
    _use_shards(parts.learner, config, given)
    for name, function in given.loss_names(config).items():
        loss = name.removesuffix("_gradient")
        if loss not in context.losses_read:
            raise UserError(
                f"{chosen.__qualname__}.build_learner does not use its {name} {function}; build the learner with "
                f"context.loss('{loss}', ...), or leave the loss out"
            )
    return parts


def refuse_task(algorithm: type[Algorithm], config: TrainConfig, spec: EnvSpec) -> None:
    """Raise an error for actions, or several agents, that the algorithm does not support."""
    if spec.game is None:
        if given := config.given_of_games:
            raise UserError(
                f"{given[0]} is given, but '{config.task}' has a single agent; leave it out, or use a game of "
                "PettingZoo"
            )
        if config.best_by == "win_rate":
            raise UserError(
                f"best_by is win_rate, but '{config.task}' has a single agent; use reward or success, or a game of "
                "PettingZoo"
            )
        refuse_actions(algorithm, spec.action_space)
        return
    several = [name for name, usual in OF_ONE_PROCESS.items() if getattr(config, name) != usual]
    if several:
        raise UserError(
            f"{several[0]} is {getattr(config, several[0])}, but games with several agents are collected and "
            f"learned in one process; leave it out"
        )
    if not config.algorithm.plays_games:
        raise UserError(
            f"'{config.env_id}' is a game with several agents, which {config.algo} does not support; use ppo, "
            "mappo, a2c, recurrent_ppo or dqn"
        )
    if config.opponents != "self":
        _refuse_opponents(config, spec.game)
    for team in spec.game.teams:
        refuse_actions(algorithm, team.action_space)
        if problems := config.algorithm.rollout_problems(config.num_envs, len(team.seats)):
            raise UserError("; ".join(problems))


def _refuse_opponents(config: TrainConfig, game: Game) -> None:
    """Raise an error if a game has no seat for snapshots of the policy that learns."""
    if len(game.teams) > 1:
        raise UserError(
            f"opponents is {config.opponents}, but {len(game.teams)} policies learn "
            f"({', '.join(team.name for team in game.teams)}), and opponents are snapshots of a single one; set "
            "policies to shared, or opponents to self"
        )
    if len(game.seats) == 1:
        raise UserError(
            f"opponents is {config.opponents}, but '{config.task}' has a single agent, {game.agents[0]}; set opponents "
            "to self"
        )


def build_learner(
    config: TrainConfig, spec: EnvSpec, given: UserObjects, losses: Mapping[str, Loss]
) -> StatefulLearner:
    """Return only the learner, with these losses."""
    chosen = given.algorithm_for(config)
    context = replace(_build_context(config, spec, given), losses=losses)
    with one_thread():
        learner = chosen.build_learner(
            config.algorithm, context, chosen.build_actor(config.algorithm, context)
        )
    _use_shards(learner, config, given)
    return learner


def _use_shards(learner: StatefulLearner, config: TrainConfig, given: UserObjects) -> None:
    """Divide the learner's minibatches by `learner_shards`; raise an error if the learner cannot."""
    if config.learner_shards == 1:
        return
    if not isinstance(learner, BaseLearner):
        raise UserError(
            f"learner_shards is {config.learner_shards}, but {type(learner).__name__} is not a subclass of "
            "rl_training.algorithms.learner.BaseLearner; set learner_shards to 1"
        )
    # only the code of users, and encoders with a training mode, use torch's generator in an update
    own_code = own_algorithm(config) is not None or bool(given.loss_names(config))
    uses_random = own_code or bool(learner.networks_with_modes)
    learner.use_shards(Shards(config.learner_shards, uses_random=uses_random))


def build_actor(config: TrainConfig, spec: EnvSpec, given: UserObjects = NO_OBJECTS) -> Actor[Any]:
    """Return only the parts that are needed to act."""
    chosen = given.algorithm_for(config)
    refuse_task(chosen, config, spec)

    def build(config: TrainConfig, spec: EnvSpec) -> Actor[Any]:
        return _set_acting(chosen.build_actor(config.algorithm, _build_context(config, spec, given)))

    try:
        with one_thread():
            if several_policies(spec):
                teams = team_specs(spec).items()
                actors = {name: build(_of_team(config, number), own) for name, (own, number) in teams}
                return _set_acting(joined_actor(spec, actors))
            return build(config, spec)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # how torch reports it
            raise
        raise UserError(f"there is not enough memory for the agent's networks: {error}") from error


def _set_acting(actor: Actor[Any]) -> Actor[Any]:
    """Set the policy to evaluation mode, in which it acts; updates set the modes that they need."""
    if isinstance(actor.policy, nn.Module):
        actor.policy.eval()
    return actor


def with_masks(
    config: TrainConfig, given: UserObjects = NO_OBJECTS, notice: Callable[[str], None] = lambda text: None
) -> TrainConfig:
    """Return the config with `use_action_masks: auto` resolved by inspecting the environment."""
    takes = given.algorithm_for(config).takes_action_masks
    as_it_is = config.with_overrides(use_action_masks="auto")  # "on" would check every mask
    build = partial(make_vector_env, as_it_is, 1, factory=given.factory)
    return settle_masks(config, build, takes_masks=takes, notice=notice)


def _build_context(config: TrainConfig, spec: EnvSpec, given: UserObjects) -> BuildContext:
    return BuildContext(
        spec,
        config.seed,
        choose_device(config.device),
        normalize_obs=config.normalize_obs,
        normalize_reward=config.normalize_reward,
        encoder=given.encoder_for(config),
        frame_stack=config.frames.stack,
        channels_first=config.makes_frames,
        losses=given.losses_for(config),
        update_path=config.update_path,
        dataset_fraction=config.dataset_fraction,
        held_out_fraction=config.held_out_fraction,
        stale=config.lag != 0,
    )


def flattened_images(config: TrainConfig, spec: EnvSpec) -> list[str]:
    """Return the image entries of an observation that the config treats as flat numbers (`encoder: flat`)."""
    settings = config.algorithm
    if settings.encoder != "flat":
        return []
    try:
        return list(image_leaves(spec.observation_space, READING))
    except UserError:  # the channel axis is ambiguous
        return []


def own_algorithm(config: TrainConfig) -> str | None:
    """Return `module:Class` of an algorithm of the user's own; None for a built-in one."""
    return config.algo if ":" in config.algo else None


def choose_device(name: str) -> torch.device:
    """Return the torch device; `auto` is the CPU, which is fastest for small networks."""
    try:
        device = torch.device("cpu" if name == "auto" else name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(
            f"device '{name}' is not available here ({str(error).splitlines()[0]}); use 'cpu'"
        ) from error
    return device
