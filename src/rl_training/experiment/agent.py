"""A policy with all it needs to act in an environment: predict, evaluate, record, save."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms import ALGORITHMS, refuse_actions
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.parts import BuildContext, Parts
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.protocols import Policy
from rl_training.core.seeding import EVALUATION_ACTIONS, EVALUATION_EPISODES, numpy_generator
from rl_training.core.spaces import space_text
from rl_training.core.types import Array, EnvSpec, Evaluation, Progress, State, leaves
from rl_training.envs.actions import ActionAdapter
from rl_training.envs.factory import EnvFactory, make_env, make_vector_env, registered_spec
from rl_training.envs.observations import batched
from rl_training.envs.stepper import VectorStepper, saved_statistics
from rl_training.experiment.checkpointing import (
    Checkpoint,
    read_given,
    restore_model,
    restoring,
    write_checkpoint,
)
from rl_training.experiment.trust import refuse_foreign_module
from rl_training.runtime.evaluator import Evaluator

MAX_EVALUATION_ENVS = 10


class Agent:
    """Acts; never learns."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        policy: Policy,
        *,
        state: Callable[[], dict[str, State]],
        progress: Callable[[], Progress],
        algorithm: type[Algorithm] | None = None,
        path: Path | None = None,
        factory: EnvFactory | None = None,
    ) -> None:
        """`state` and `progress` are asked when they are needed: an agent may be the one that is being trained."""
        self.config, self.spec, self.policy, self.path = config, spec, policy, path
        self._state, self._progress, self._algorithm = state, progress, algorithm
        self.factory = factory
        self._adapter = ActionAdapter(spec.action_space)
        self._rng = numpy_generator(config.seed, EVALUATION_ACTIONS)

    @property
    def state(self) -> dict[str, State]:
        """What a checkpoint of it holds."""
        return self._state()

    @property
    def timesteps(self) -> int:
        """How long it has trained."""
        return self._progress().timesteps

    def predict(self, obs: Any, *, deterministic: bool = True) -> Array:
        """Return the action in the environment's units for one observation, or actions for a batch."""
        batch, is_batch = batched(self.spec.observation_space, obs)
        rows = len(next(iter(leaves(batch)))[1])
        memory = self.policy.initial_state(rows)
        chosen, _ = self.policy.act(batch, memory, deterministic=deterministic, rng=self._rng)
        actions = self._adapter.to_env(chosen)
        return actions if is_batch else actions[0]

    def evaluate(self, num_episodes: int = 10, *, deterministic: bool | None = None) -> dict[str, Any]:
        """Play `num_episodes` in environments of its own; return the summary."""
        if num_episodes < 1:
            raise UserError(f"num_episodes is {num_episodes}; use 1 or more")
        stepper = evaluation_stepper(self.config, num_episodes, self.factory)
        stepper.use_statistics(saved_statistics(self.state.get("envs", {})))
        try:
            return evaluate_policy(
                self.config, stepper, self.policy, num_episodes, deterministic=deterministic
            ).summary()
        finally:
            stepper.close()

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a checkpoint folder at `path`."""
        target = Path(path)
        if target.is_file() or (
            target.is_dir() and any(target.iterdir()) and not (target / "manifest.json").exists()
        ):
            raise UserError(f"{path} exists and is not a saved agent; choose another folder")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            facts = {
                "spaces": describe_spaces(self.spec),
                "evaluation": None,
                "algorithm": own_build(self.config, self._algorithm),
            }
            write_checkpoint(
                target, config=self.config, progress=self._progress(), state=self.state, facts=facts
            )
            return target
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error


def evaluate_policy(
    config: TrainConfig,
    stepper: VectorStepper,
    policy: Policy,
    num_episodes: int,
    *,
    deterministic: bool | None = None,
) -> Evaluation:
    """Play episodes as the config wants evaluations to be; episodes that did not end are told."""
    evaluation = Evaluator(stepper, policy).evaluate(
        num_episodes,
        deterministic=config.eval_deterministic if deterministic is None else deterministic,
        rng=numpy_generator(config.seed, EVALUATION_ACTIONS),
        max_episode_steps=config.max_eval_episode_steps,
    )
    if evaluation.num_capped:
        warnings.warn(
            f"{evaluation.num_capped} of {num_episodes} evaluation episodes had not ended after "
            f"{config.max_eval_episode_steps:,} steps (max_eval_episode_steps) and were cut off; their returns are "
            "those up to there",
            stacklevel=2,
        )
    return evaluation


def evaluation_stepper(config: TrainConfig, num_episodes: int, factory: EnvFactory | None) -> VectorStepper:
    """Return environments for an evaluation: other seeds than training has, and the same episodes every time."""
    backend = "native" if _only_native(config, factory) else "sync"
    env = make_vector_env(
        config,
        min(num_episodes, MAX_EVALUATION_ENVS),
        factory=factory,
        stream=EVALUATION_EPISODES,
        backend=backend,
    )
    return RestartingStepper(env, seed=config.seed + 1_000_003 if backend == "native" else None)


class RestartingStepper(VectorStepper):
    """Restarts the episode streams with every reset, so that all evaluations start from the same states."""

    def reset(self) -> None:
        """Play the first episodes again."""
        self.restart_streams()
        super().reset()


def _only_native(config: TrainConfig, factory: EnvFactory | None) -> bool:
    return config.env_backend == "native" and factory is None and registered_spec(config).entry_point is None


def probe_spec(config: TrainConfig, factory: EnvFactory | None) -> EnvSpec:
    """Return the spaces of the config's environment, by building one."""
    if _only_native(config, factory):
        vector = make_vector_env(config, 1)
        vector.close()
        return EnvSpec(vector.single_observation_space, vector.single_action_space, config.num_envs)
    env = make_env(config, 0, factory=factory)()
    env.close()
    return EnvSpec(env.observation_space, env.action_space, config.num_envs)


def build_parts(config: TrainConfig, spec: EnvSpec, algorithm: type[Algorithm] | None = None) -> Parts:
    """Return learner and source as `algorithm` builds them; by default the table's entry for the config."""
    chosen = algorithm or ALGORITHMS[config.algo]
    refuse_actions(chosen, spec.action_space)
    return chosen.build(config.algorithm, build_context(config, spec))


def build_context(config: TrainConfig, spec: EnvSpec) -> BuildContext:
    """Return the part of a config that builders may see."""
    return BuildContext(
        spec,
        config.seed,
        choose_device(config.device),
        normalize_obs=config.normalize_obs,
        normalize_reward=config.normalize_reward,
    )


def own_build(config: TrainConfig, algorithm: type[Algorithm] | None) -> str | None:
    """Return the name of a class that builds its parts otherwise than the table's entry does; None for any other."""
    if algorithm is None or not builds_otherwise(algorithm, ALGORITHMS[config.algo]):
        return None
    return f"{algorithm.__module__}:{algorithm.__qualname__}"


def builds_otherwise(algorithm: type[Algorithm], table: type[Algorithm]) -> bool:
    """Tell whether a class has a builder of its own."""
    if algorithm.build.__func__ is not table.build.__func__:  # type: ignore[attr-defined]  # both are class methods
        return True
    names = ("build_actor", "build_source", "build_learner")
    return any(getattr(algorithm, name) is not getattr(table, name) for name in names)


def check_algorithm(checkpoint: Checkpoint, algorithm: type[Algorithm] | None) -> None:
    """Refuse to go on with other parts than the ones that were trained, which may well fit and mean something else."""
    face, built_by = ALGORITHMS[checkpoint.config.algo], checkpoint.facts["algorithm"]
    if algorithm is not None and not issubclass(algorithm, face):
        raise UserError(
            f"{checkpoint.path} holds a {checkpoint.config.algo} agent; load it with {face.__name__}.load"
        )
    if built_by is not None and built_by != own_build(checkpoint.config, algorithm):
        name = built_by.rpartition(":")[2]
        raise UserError(
            f"{checkpoint.path} was trained by {built_by}, a class with a build of its own; load it in Python with "
            f"{name}.load(path), or go on with resume(path, algorithm={name})"
        )


def describe_spaces(spec: EnvSpec) -> dict[str, str]:
    """Return the spaces as text, for a manifest."""
    return {
        "observation_space": space_text(spec.observation_space),
        "action_space": space_text(spec.action_space),
    }


def check_spaces(checkpoint: Checkpoint, spec: EnvSpec) -> None:
    """Refuse an environment whose spaces are not those the checkpoint was trained with."""
    now, saved = describe_spaces(spec), checkpoint.facts["spaces"]
    for name, space in now.items():
        if saved[name] != space:
            raise UserError(
                f"checkpoint {checkpoint.path} was trained with {name} {saved[name]}, "
                f"but environment '{checkpoint.config.env_id}' now has {space}"
            )


def choose_device(name: str) -> torch.device:
    """Return the torch device; `auto` is the CPU, as all networks of this version are small."""
    try:
        device = torch.device("cpu" if name == "auto" else name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(
            f"device '{name}' is not available here ({str(error).splitlines()[0]}); use 'cpu'"
        ) from error
    return device


def new_agent(
    config: TrainConfig, *, algorithm: type[Algorithm] | None = None, factory: EnvFactory | None = None
) -> Agent:
    """Return an agent with initial weights."""
    spec = probe_spec(config, factory)
    parts = build_parts(config, spec, algorithm)
    return Agent(
        config,
        spec,
        parts.actor.policy,
        state=parts.learner.state_dict,
        progress=Progress,
        algorithm=algorithm,
        factory=factory,
    )


def load_agent(
    path: str | PathLike[str],
    *,
    algorithm: type[Algorithm] | None = None,
    env: EnvFactory | str | None = None,
    trust_modules: bool = False,
) -> Agent:
    """Return the agent at `path`: a saved folder, a run, a checkpoint, or `last`/`best` of one.

    `algorithm` is the class that it was trained by, if that builds its parts otherwise than the table's. `env` puts it
    into another environment: an id, or a function that builds one. A module that the agent itself names is imported
    if this user made it, or with `trust_modules`.
    """
    checkpoint = read_given(path)
    check_algorithm(checkpoint, algorithm)
    factory = None if isinstance(env, str) else env
    if isinstance(env, str):
        checkpoint = replace(checkpoint, config=checkpoint.config.with_overrides(env_id=env))
    refuse_foreign_module(
        checkpoint.path,
        checkpoint.config.env_id,
        signed=checkpoint.signed,
        allowed=trust_modules or env is not None,
    )
    spec = probe_spec(checkpoint.config, factory)
    check_spaces(checkpoint, spec)
    policy = build_parts(checkpoint.config, spec, algorithm).actor.policy
    with restoring(checkpoint.path):
        restore_model(policy, checkpoint.state["model"], checkpoint.path)
    return Agent(
        checkpoint.config,
        spec,
        policy,
        state=lambda: checkpoint.state,
        progress=lambda: checkpoint.progress,
        algorithm=algorithm,
        path=checkpoint.path,
        factory=factory,
    )
