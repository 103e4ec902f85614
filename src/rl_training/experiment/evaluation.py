"""Environments of a config, and episodes played in them that do not depend on what was played before."""

import warnings

from rl_training.config import TrainConfig
from rl_training.core.protocols import Policy
from rl_training.core.seeding import EVALUATION_ACTIONS, EVALUATION_EPISODES, numpy_generator
from rl_training.core.types import EnvSpec, Evaluation
from rl_training.envs.factory import EnvFactory, make_env, make_vector_env, registered_spec
from rl_training.envs.masks import env_spec
from rl_training.envs.stepper import VectorStepper
from rl_training.runtime.evaluator import Evaluator

MAX_EVALUATION_ENVS = 10


class RestartingStepper(VectorStepper):
    """Restarts the episode streams with every reset, so that all evaluations start from the same states."""

    def reset(self) -> None:
        """Play the first episodes again."""
        self.restart_streams()
        super().reset()


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
    seed = config.seed + 1_000_003 if backend == "native" else None
    return RestartingStepper(env, seed=seed, masked=config.use_action_masks == "on")


def training_stepper(config: TrainConfig, factory: EnvFactory | None) -> VectorStepper:
    """Return the environments that a run of this config learns in: the only ones that may clip rewards."""
    seed = config.seed if config.env_backend == "native" else None
    clips = config.preprocessing == "atari" and config.clip_reward
    masked = config.use_action_masks == "on"
    return VectorStepper(
        make_vector_env(config, factory=factory), seed=seed, clip_reward=clips, masked=masked
    )


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


def probe_spec(config: TrainConfig, factory: EnvFactory | None) -> EnvSpec:
    """Return the spaces of the config's environment, by building one."""
    masked = config.use_action_masks == "on"
    if _only_native(config, factory):
        vector = make_vector_env(config, 1)
        vector.close()
        spaces = vector.single_observation_space, vector.single_action_space
    else:
        env = make_env(config, 0, factory=factory)()
        env.close()
        spaces = env.observation_space, env.action_space
    return env_spec(*spaces, config.num_envs, masked=masked)


def _only_native(config: TrainConfig, factory: EnvFactory | None) -> bool:
    return config.env_backend == "native" and factory is None and registered_spec(config).entry_point is None
