"""Steppers for a config: the environments that a run trains in, and those that it is evaluated in."""

from rl_training.config import TrainConfig
from rl_training.core.info_keywords import checked_keywords
from rl_training.core.protocols import EnvStepper
from rl_training.core.seeding import EPISODES, EVALUATION_EPISODES, derived_seed
from rl_training.core.types import EnvSpec
from rl_training.envs.factory import EnvFactory, make_env, make_vector_env, registered_spec
from rl_training.envs.games.building import game_of
from rl_training.envs.games.stepper import GameStepper
from rl_training.envs.preprocessing.atari import raw_game_hint
from rl_training.envs.specs import env_spec
from rl_training.envs.stepper import VectorStepper

MAX_EVALUATION_ENVS = 10


class RestartingStepper(VectorStepper):
    """Restarts the episode streams with every reset, so that all evaluations start from the same states."""

    def reset(self) -> None:
        self.restart_streams()
        super().reset()


def training_stepper(
    config: TrainConfig, factory: EnvFactory | None, *, num_envs: int | None = None, first_index: int = 0
) -> EnvStepper:
    """Return the environments that a run of this config trains in: the only ones that may clip rewards.

    A group of them has `num_envs`, numbered from `first_index` on; by default it is all.
    """
    env = make_vector_env(config, num_envs, factory=factory, first_index=first_index)
    native_seed = derived_seed(config.seed, EPISODES, first_index) if first_index else config.seed
    game = game_of(env.single_observation_space)
    stepper = VectorStepper(
        env,
        seed=native_seed if config.native_backend else None,
        clip_reward=config.preprocessing == "atari" and config.clip_reward,
        masked=config.use_action_masks == "on" and game is None,
        info_keywords=checked_keywords(config.info_keywords),
        critic_obs=config.critic_obs,
    )
    if game is not None:
        return GameStepper(stepper, game)
    if (hint := raw_game_hint(config, env)) is not None:
        stepper.notices.append(hint)
    return stepper


def evaluation_stepper(config: TrainConfig, num_episodes: int, factory: EnvFactory | None) -> EnvStepper:
    """Return environments for evaluations: seeded differently from training, with the same episodes every time."""
    backend = "native" if _only_native(config, factory) else "sync"
    env = make_vector_env(
        config,
        min(num_episodes, MAX_EVALUATION_ENVS),
        factory=factory,
        stream=EVALUATION_EPISODES,
        backend=backend,
    )
    seed = config.seed + 1_000_003 if backend == "native" else None
    game = game_of(env.single_observation_space)
    stepper = RestartingStepper(
        env,
        seed=seed,
        masked=config.use_action_masks == "on" and game is None,
        info_keywords=checked_keywords(config.info_keywords),
        critic_obs=config.critic_obs,
        for_critic=False,  # acting needs no critic
    )
    return stepper if game is None else GameStepper(stepper, game)


def probe_spec(config: TrainConfig, factory: EnvFactory | None, *, for_critic: bool = True) -> EnvSpec:
    """Return the spaces of the config's environment, by building one; see `env_spec`."""
    masked = config.use_action_masks == "on"
    if _only_native(config, factory):
        vector = make_vector_env(config, 1)
        vector.close()
        spaces = vector.single_observation_space, vector.single_action_space
    else:
        env = make_env(config, 0, factory=factory)()
        env.close()
        spaces = env.observation_space, env.action_space
    if (game := game_of(spaces[0])) is not None:
        return game.spec(config.num_envs)
    return env_spec(
        *spaces, config.num_envs, masked=masked, critic_obs=config.critic_obs, for_critic=for_critic
    )


def _only_native(config: TrainConfig, factory: EnvFactory | None) -> bool:
    return config.env_backend == "native" and factory is None and registered_spec(config).entry_point is None
