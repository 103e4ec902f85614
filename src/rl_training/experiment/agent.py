"""Agents: a policy with everything it needs to predict, to be evaluated and to be saved."""

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.games import game_to_data
from rl_training.core.protocols import Policy
from rl_training.core.seeding import EVALUATION_ACTIONS, evaluation_generators, numpy_generator
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.as_data import space_to_data
from rl_training.core.spaces.layout import space_text
from rl_training.core.spaces.masks import with_mask
from rl_training.core.types import Array, EnvSpec, PolicyState, Progress, State, leaves
from rl_training.envs.factory import EnvFactory, checked_factory
from rl_training.envs.masks import check_user_masks, split_mask_entry
from rl_training.envs.observations import batched
from rl_training.envs.specs import without_critic_obs
from rl_training.envs.stepper import saved_statistics
from rl_training.envs.stepper_factory import evaluation_stepper
from rl_training.envs.wrapper_statistics import Statistics
from rl_training.experiment.agent_copies import check_picklable, copied_state
from rl_training.experiment.building import (
    NO_OBJECTS,
    UserObjects,
    build_actor,
    own_algorithm,
    with_masks,
)
from rl_training.experiment.checkpoints.format import CRITIC_SPACE, SPACES, write_checkpoint
from rl_training.experiment.checkpoints.trust import Permission, refuse_missing_factory
from rl_training.experiment.evaluation import evaluate_policy
from rl_training.experiment.seat_actions import SeatActions
from rl_training.runtime.sampler import saved_envs


class Agent:
    """A policy with its config and spaces; it builds an environment only to be evaluated or recorded."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        policy: Policy,
        *,
        state: Callable[[], dict[str, State]],
        progress: Callable[[], Progress],
        given: UserObjects = NO_OBJECTS,
        path: Path | None = None,
        env_factory: bool = False,
        permission: Permission | None = None,
        losses: Mapping[str, str] | None = None,
    ) -> None:
        """`state` and `progress` are functions, because the agent may be the one that is being trained.

        `env_factory` means that a function built the environment it was trained in, even if that function is not
        `given` here. `permission` says which code of the config may run. `losses` are the names of the replaced losses
        that it was trained with, by default those that are `given`.
        """
        self.config, self.spec, self.policy, self.path = config, spec, policy, path
        self._state, self._progress, self.given = state, progress, given
        self._env_factory = env_factory or given.factory is not None
        self.permission = permission or Permission()
        self.losses = given.loss_names(config) if losses is None else losses
        self._seats = None if spec.game is None else SeatActions(spec.game, policy)
        self._adapter = ActionAdapter(spec.action_space) if self._seats is None else None
        self._rng = numpy_generator(config.seed, EVALUATION_ACTIONS)

    @property
    def state(self) -> dict[str, State]:
        """The state that a checkpoint of the agent contains."""
        return self._state()

    @property
    def statistics(self) -> list[Statistics]:
        """The running statistics of the environments' wrappers, one entry per environment."""
        return [each for envs in saved_envs(self.state) for each in saved_statistics(envs)]

    @property
    def timesteps(self) -> int:
        """The number of steps (or updates, without an environment) that it was trained for."""
        return self._progress().clock

    @property
    def unit(self) -> str:
        """What `timesteps` counts: `steps` or `updates`."""
        return self._progress().unit

    @property
    def counts_updates(self) -> bool:
        """Whether it learned from a dataset alone, so that it counts updates instead of steps."""
        return self._progress().counts_updates

    def predict(self, obs: Any, *, deterministic: bool = True, action_masks: Any = None) -> Array:
        """Return the action in the environment's units for one observation, or actions for a batch.

        A recurrent policy starts from its initial state; use `act` to pass its state on.
        """
        return self.act(obs, deterministic=deterministic, action_masks=action_masks)[0]

    def act(
        self,
        obs: Any,
        state: PolicyState | None = None,
        episode_start: Any = None,
        *,
        deterministic: bool = True,
        action_masks: Any = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Array, PolicyState | None]:
        """Return the action or actions and the next state of a recurrent policy, which is None for any other policy.

        `state` is the one that the last call returned; it is reset where `episode_start` is true. `action_masks` are
        true for allowed actions; by default the observation's entry `action_mask` is used, if it has one. Both are
        given once for all rows or once per row. Entries that only the critic reads (`critic_obs`) are not needed.
        Actions are sampled with `rng`, by default the agent's own generator.
        """
        rng = self._rng if rng is None else rng
        if self._seats is not None:
            if episode_start is not None and np.any(episode_start):
                state = None
            return self._seats.act(obs, state, action_masks, deterministic=deterministic, rng=rng)
        assert self._adapter is not None
        seen, own_masks = split_mask_entry(obs) if self.spec.masked else (obs, None)
        if self.spec.critic_space is not None:
            seen = without_critic_obs(self.spec, seen)
        batch, is_batch = batched(self.spec.observation_space, seen)
        rows = len(next(iter(leaves(batch)))[1])
        if action_masks is not None:
            batch = with_mask(batch, check_user_masks(self.spec.action_space, action_masks, rows))
        elif own_masks is not None:
            name = "the observation's entry 'action_mask'"
            batch = with_mask(batch, check_user_masks(self.spec.action_space, own_masks, rows, name))
        memory = self._memory(state, episode_start, rows)
        chosen, memory = self.policy.act(batch, memory, deterministic=deterministic, rng=rng)
        actions = self._adapter.to_env(chosen)
        return (actions if is_batch else actions[0]), (memory or None)

    def _memory(self, state: PolicyState | None, episode_start: Any, rows: int) -> PolicyState:
        """Return the recurrent state for this number of rows, reset where an episode starts."""
        fresh = self.policy.initial_state(rows)
        if state is None or not fresh:
            return fresh
        wanted, found = [part.shape for part in fresh], [np.shape(part) for part in state]
        if wanted != found:
            raise UserError(
                f"state has parts of shape {found}, but the policy has {wanted}; pass the state that predict "
                "returned for the same number of observations, or None"
            )
        kept = np.ones(rows, np.bool_)
        if episode_start is not None:
            starts = np.asarray(episode_start, np.bool_)
            if starts.shape not in ((), (rows,)):
                raise UserError(
                    f"episode_start has shape {starts.shape}; use one bool, or one for each of {rows} rows"
                )
            kept &= ~starts
        return tuple(
            np.where(kept[:, None], part, 0).astype(new.dtype) for part, new in zip(state, fresh, strict=True)
        )

    def evaluate(
        self,
        num_episodes: int = 10,
        *,
        deterministic: bool | None = None,
        env: EnvFactory | str | None = None,
    ) -> dict[str, Any]:
        """Play `num_episodes` in new environments and return the summary.

        `env` is another environment with the same spaces: an id, or a function that builds one.
        """
        if num_episodes < 1:
            raise UserError(f"num_episodes is {num_episodes}; use 1 or more")
        with evaluation_generators(self.config.seed):  # building an environment may draw, too
            config, factory = self.playground(env)
            with closing(evaluation_stepper(config, num_episodes, factory)) as stepper:
                check_spaces(self.name, config, stepper.spec, self.spec)
                stepper.use_statistics(self.statistics)
                return evaluate_policy(
                    config, stepper, self.policy, num_episodes, deterministic=deterministic
                ).summary()

    def playground(self, env: EnvFactory | str | None = None) -> tuple[TrainConfig, EnvFactory | None]:
        """Return the config and the function to build evaluation environments; these may have no action masks."""
        config, factory = self.environment(env)
        if not self.spec.masked or self.spec.game is not None:  # a game's masks are part of its agents
            return config, factory
        settled = with_masks(
            config.with_overrides(use_action_masks="auto"), replace(self.given, factory=factory)
        )
        if settled.use_action_masks != "on":
            warnings.warn(
                f"environment '{config.env_id}' provides no action masks, but {self.name} was trained with them: "
                "every action is allowed",
                stacklevel=4,
            )
        return settled, factory

    def environment(self, env: EnvFactory | str | None = None) -> tuple[TrainConfig, EnvFactory | None]:
        """Return the config and the function to build environments; raise if that is impossible or not permitted."""
        self.permission.refuse_wrappers(self.config)
        self.permission.refuse_arguments(self.config)
        if isinstance(env, str):
            return self.config.with_overrides(env_id=env), None
        if env is None and self.given.factory is None:
            refuse_missing_factory(self.name, self.config.env_id, needed=self._env_factory)
            self.permission.refuse_env(self.config.env_id)
            if not self.config.env_id:
                raise UserError(
                    f"{self.name} has no environment: it learned from a dataset alone; name one with --env-id, or "
                    "env=... in Python"
                )
        return self.config, self.given.factory if env is None else checked_factory(env)

    @property
    def name(self) -> str:
        """How messages call it."""
        return "this agent" if self.path is None else f"checkpoint {self.path}"

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a checkpoint folder at `path`."""
        target = Path(path)
        if target.is_file() or (
            target.is_dir() and any(target.iterdir()) and not (target / "manifest.json").exists()
        ):
            raise UserError(f"{path} exists and is not a saved agent; choose another folder")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            facts = agent_facts(self.config, self.spec, self.given, env_factory=self._env_factory)
            facts["losses"] = dict(self.losses)
            write_checkpoint(
                target,
                config=self.config,
                progress=self._progress(),
                state=self.state,
                facts=facts,
                vouched=self.permission.vouches_for(self.config),
            )
            return target
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error

    def __getstate__(self) -> dict[str, Any]:
        check_picklable(self.given)
        return self._content()

    def __setstate__(self, content: dict[str, Any]) -> None:
        config, spec, given, state = (content.pop(name) for name in ("config", "spec", "given", "state"))
        rng, progress = content.pop("rng"), content.pop("progress")
        policy = build_actor(config, spec, given).policy
        policy.load_state_dict(state["model"])
        Agent.__init__(
            self, config, spec, policy, given=given, state=lambda: state, progress=lambda: progress, **content
        )
        self._rng = rng

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = object.__new__(type(self))
        other.__setstate__(self._content())
        return other

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def _content(self) -> dict[str, Any]:
        """Return the agent as data, without its networks, whose parameters are views of shared memory."""
        return {
            "config": self.config,
            "spec": self.spec,
            "given": self.given,
            "state": copied_state(self.state),
            "progress": self._progress(),
            "rng": copy.deepcopy(self._rng),
            "path": self.path,
            "env_factory": self._env_factory,
            "permission": self.permission,
            "losses": self.losses,
        }


def agent_facts(
    config: TrainConfig, spec: EnvSpec, given: UserObjects, *, env_factory: bool
) -> dict[str, Any]:
    """Return the entries of a manifest that describe the agent."""
    described = {name: space_to_data(getattr(spec, name)) for name in SPACES}
    if spec.critic_space is not None:
        described[CRITIC_SPACE] = space_to_data(spec.critic_space)
    return {
        "spaces": described,
        "game": None if spec.game is None else game_to_data(spec.game),
        "algorithm": own_algorithm(config),
        "env_factory": env_factory,
        "losses": given.loss_names(config),
    }


def check_spaces(
    source: object,
    config: TrainConfig,
    found: EnvSpec,
    trained: EnvSpec,
    verb: str = "was trained with",
    *,
    for_critic: bool = False,
) -> None:
    """Raise if an environment has other spaces than those that `source` was trained with, or has.

    What only critics read is compared `for_critic`, where training goes on.
    """
    for name in (*SPACES, CRITIC_SPACE) if for_critic else SPACES:
        spaces = getattr(trained, name), getattr(found, name)
        saved, now = ("none" if space is None else space_text(space) for space in spaces)
        if saved != now:
            raise UserError(
                f"{source} {verb} {name} {saved}, but environment '{config.env_id}' now has {now}"
            )
