"""Builds environments from a config: single ones, and vector environments with one of four backends."""

import contextlib
import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from rl_training.config import TrainConfig
from rl_training.config.object_paths import import_module, import_object
from rl_training.core.errors import UserError, reason
from rl_training.core.info_keywords import checked_keywords
from rl_training.core.seeding import EPISODES
from rl_training.envs.envpool import EnvPoolVector, import_envpool
from rl_training.envs.envpool_atari import EnvPoolGames
from rl_training.envs.episodes import SeededEpisodes
from rl_training.envs.games.building import joint_env
from rl_training.envs.games.opening import is_game, names_game, open_game
from rl_training.envs.info_keys import NumbersInInfo
from rl_training.envs.known_packages import package_hint
from rl_training.envs.masks import with_masks_in_info
from rl_training.envs.preprocessing.atari import AtariPreprocessing, offer_games, single_frames
from rl_training.envs.preprocessing.atari_native import OF_THE_THREADS, AleGames, NativeAtari
from rl_training.envs.preprocessing.images import ImagePreprocessing
from rl_training.envs.workers import WorkerVectorEnv
from rl_training.envs.wrappers import with_game_wrappers, with_time_limit, with_wrappers

Env: TypeAlias = gymnasium.Env[Any, Any]
EnvFactory: TypeAlias = Callable[..., Env]
"""Builds one environment; called with the config's `env_kwargs`."""


def make_env(
    cfg: TrainConfig,
    env_index: int,
    *,
    factory: EnvFactory | None = None,
    stream: int = EPISODES,
    render_mode: str | None = None,
) -> Callable[[], SeededEpisodes]:
    """Return a zero-argument function that builds environment number `env_index`."""

    def unseeded() -> Env:
        env = plain_env(cfg, factory, render_mode)
        if is_game(env):
            env = joint_env(with_game_wrappers(env, cfg), cfg)
        else:
            _refuse_foreign(env, cfg)
            env = _wrapped(cfg, env)
            env = with_masks_in_info(env) if cfg.use_action_masks == "on" else env
        return NumbersInInfo(env, checked_keywords(cfg.info_keywords)) if cfg.info_keywords else env

    def build() -> SeededEpisodes:
        rebuild = unseeded if cfg.rebuild_envs == "on" else None
        return SeededEpisodes(unseeded(), seed=cfg.seed, env_index=env_index, stream=stream, build=rebuild)

    return build


def make_game(cfg: TrainConfig, *, factory: EnvFactory | None = None, render_mode: str | None = None) -> Any:
    """Return a new game of PettingZoo's interface, with the config's wrappers; raise if it has a single agent."""
    game = plain_env(cfg, factory, render_mode)
    if is_game(game):
        return with_game_wrappers(game, cfg)
    game.close()
    raise UserError(
        f"environment '{cfg.env_id}' has a single agent, so nobody plays against it; use a game of PettingZoo"
    )


def plain_env(cfg: TrainConfig, factory: EnvFactory | None, render_mode: str | None = None) -> Any:
    """Return what the function or the id of a config builds."""
    kwargs = dict(cfg.env_kwargs) | ({"render_mode": render_mode} if render_mode else {})
    return factory(**kwargs) if factory is not None else _registered(cfg, kwargs)


def make_vector_env(
    cfg: TrainConfig,
    num_envs: int | None = None,
    *,
    factory: EnvFactory | None = None,
    stream: int = EPISODES,
    backend: str | None = None,
    first_index: int = 0,
) -> VectorEnv[Any, Any, Any]:
    """Return `num_envs` environments (default: the config's number) as one Gymnasium vector environment.

    They are numbered from `first_index` on, and the seeds of their episodes depend on the number: several groups with
    consecutive numbers have the same episodes as one vector with all environments. `sync` and `async` reset in the same
    step, so no transition is lost; `native` uses the environment's own vector implementation and its autoreset mode;
    `envpool` uses EnvPool's version of it, and resets in the same step.
    """
    count = cfg.num_envs if num_envs is None else num_envs
    backend = backend or cfg.env_backend
    if backend in ("native", "envpool"):
        if names_game(cfg.env_id):
            raise UserError(
                f"env_backend is '{backend}', but '{cfg.env_id}' is a game with several agents; use 'sync' or 'async'"
            )
        if factory is not None:
            raise UserError(
                f"env_backend '{backend}' needs a registered environment; use 'sync' or 'async' with a factory"
            )
        return _native(cfg, count) if backend == "native" else _envpool(cfg, count)
    numbers = range(first_index, first_index + count)
    builders = [make_env(cfg, index, factory=factory, stream=stream) for index in numbers]
    with naming_errors(cfg):
        if backend == "async":
            return WorkerVectorEnv(
                builders,
                shared_memory=True,
                copy=False,
                autoreset_mode=AutoresetMode.SAME_STEP,
                seconds_to_answer=cfg.env_timeout,
            )
        envs = SyncVectorEnv(builders, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    if (
        len({id(getattr(env.unwrapped, "raw", env.unwrapped)) for env in envs.envs}) < count
    ):  # `raw` of a game
        raise UserError(
            f"environment '{cfg.env_id}': the function returned the same environment twice; let it build a new one "
            "each time it is called: lambda: MyEnv(...), not lambda: env"
        )
    return envs


def _registered(cfg: TrainConfig, kwargs: dict[str, Any]) -> Env:
    with naming_errors(cfg):
        if names_game(cfg.env_id):
            return open_game(cfg.env_id, kwargs)  # type: ignore[no-any-return]  # a game, not an Env
        _register_id(cfg.env_id)
        if (known := gymnasium.registry.get(cfg.env_id)) is not None:
            redirect_mujoco_warnings(known.entry_point)
        if cfg.preprocessing == "atari":
            kwargs = single_frames(cfg.env_id, kwargs)
        if cfg.env_backend == "envpool" or (cfg.env_backend == "native" and cfg.preprocessing == "atari"):
            # evaluations and videos use single environments
            kwargs = {name: value for name, value in kwargs.items() if name not in OF_THE_THREADS}
        return gymnasium.make(cfg.env_id, **kwargs)


def _refuse_foreign(env: Any, cfg: TrainConfig) -> None:
    """Raise if a function returned something else than a single Gymnasium environment."""
    if isinstance(env, gymnasium.Env):
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            if not isinstance(space, gymnasium.Space):
                raise UserError(
                    f"environment '{cfg.env_id}' has {name} {space!r}; set a space in its __init__, such as "
                    "gymnasium.spaces.Discrete(4)"
                )
        return
    kind = f"{type(env).__module__}.{type(env).__name__}"
    remedy = "it must be a gymnasium.Env"
    if isinstance(env, VectorEnv):
        remedy = "return a single environment; num_envs sets the number of copies"
    elif hasattr(env, "agents"):
        remedy = "a game with several agents lists the names of all its agents in possible_agents"
    elif hasattr(env, "step") and hasattr(env, "reset"):
        remedy = "it must be a gymnasium.Env; convert an environment of old gym with shimmy's GymV26CompatibilityV0"
    raise UserError(f"environment '{cfg.env_id}' is a {kind}: {remedy}")


def checked_factory(env: Any) -> EnvFactory:
    """Return `env` if it is a function that builds environments; otherwise raise an error with the remedy."""
    if isinstance(env, gymnasium.Env | VectorEnv) or hasattr(env, "possible_agents"):
        name = type(getattr(env, "unwrapped", env)).__name__
        raise UserError(
            f"env is an environment ({type(env).__name__}), but training and evaluation need several; give its id, or "
            f"a function that builds a new one each time it is called: lambda: {name}(...), not lambda: env"
        )
    if not callable(env):
        raise UserError(f"env is {env!r}; pass an id, or a function that builds an environment")
    built: EnvFactory = env
    return built


def _wrapped(cfg: TrainConfig, env: Env) -> Env:
    """Return an environment with its time limit, wrappers and preprocessing; the limit counts agent steps."""
    limit = cfg.max_episode_steps
    if cfg.preprocessing == "atari":  # below it, a step is one frame
        env = AtariPreprocessing(with_wrappers(env, cfg), cfg)
        return env if limit is None else TimeLimit(env, limit)
    env = with_wrappers(env if limit is None else with_time_limit(env, limit), cfg)
    if cfg.preprocessing != "image":
        return env
    return ImagePreprocessing(env, cfg.frames, cfg.algorithm.image_channels)


def registered_spec(cfg: TrainConfig) -> EnvSpec:
    """Return Gymnasium's record of the config's environment; `module:Id` imports the module first."""
    with naming_errors(cfg):
        _register_id(cfg.env_id)
        return gymnasium.spec(cfg.env_id.rpartition(":")[2])


def import_factory(name: str) -> EnvFactory:
    """Return the function that `module:function` means; only for names that the user typed, never from a file."""
    module, _, function = name.partition(":")
    if not module or not function.isidentifier():
        raise UserError(
            f"'{name}' is not a function name; write module:function (give an id such as CartPole-v1 as env_id)"
        )
    found = import_object(name, "env_factory")
    if not callable(found):
        raise UserError(f"env_factory '{name}' is a {type(found).__name__}; use a function")
    built: EnvFactory = found
    return built


def _register_id(env_id: str) -> None:
    """Import what registers an id: the module of `module:Id`, or ale-py for its games."""
    import_module(env_id.rpartition(":")[0])
    offer_games(env_id)


def _native(cfg: TrainConfig, count: int) -> VectorEnv[Any, Any, Any]:
    spec = registered_spec(cfg)
    if spec.vector_entry_point is None:
        is_atari = str(spec.entry_point).startswith("ale_py")
        newer = f", or env_id 'ALE/{spec.name.removesuffix('NoFrameskip')}-v5'" if is_atari else ""
        raise UserError(
            f"environment '{cfg.env_id}' has no vector implementation of its own; use env_backend 'sync' or "
            f"'async'{newer}"
        )
    _refuse_without_single_envs(cfg)
    if cfg.preprocessing == "none" and str(spec.vector_entry_point).startswith("ale_py"):
        raise _raw_frames(cfg)

    def build() -> VectorEnv[Any, Any, Any]:
        if cfg.preprocessing == "atari":
            return NativeAtari(cfg, spec, count, AleGames(cfg, spec, count))
        limit = {} if cfg.max_episode_steps is None else {"max_episode_steps": cfg.max_episode_steps}
        kwargs = {**cfg.env_kwargs, **limit}
        try:
            return gymnasium.make_vec(spec, num_envs=count, vectorization_mode="vector_entry_point", **kwargs)
        except TypeError as error:
            if limit and "max_episode_steps" in str(error):
                raise UserError(
                    f"the vector implementation of environment '{cfg.env_id}' takes no max_episode_steps; leave it "
                    "out, or use env_backend 'sync' or 'async'"
                ) from error
            raise

    with naming_errors(cfg):
        return _with_own_metadata(build)


def _envpool(cfg: TrainConfig, count: int) -> VectorEnv[Any, Any, Any]:
    """Return environments of EnvPool; a single one of Gymnasium's tells the spaces that they must have."""
    import_envpool()
    _refuse_without_single_envs(cfg)
    spec = registered_spec(cfg)
    is_game = "game" in spec.kwargs and str(spec.entry_point).startswith("ale_py")
    if is_game and cfg.preprocessing == "none":
        raise _raw_frames(cfg)
    with contextlib.closing(make_env(cfg, 0)()) as single, naming_errors(cfg):
        if cfg.preprocessing == "none":
            return EnvPoolVector(cfg, single, count)
        game: Any = single.unwrapped
        return NativeAtari(cfg, spec, count, EnvPoolGames(cfg, spec, game.get_action_meanings(), count))


def _refuse_without_single_envs(cfg: TrainConfig) -> None:
    if cfg.env_wrappers or cfg.preprocessing == "image":
        what = "env_wrappers need" if cfg.env_wrappers else "preprocessing 'image' needs"
        raise UserError(
            f"{what} single environments, which env_backend '{cfg.env_backend}' does not have; use env_backend 'sync' "
            "or 'async'"
        )


def _raw_frames(cfg: TrainConfig) -> UserError:
    return UserError(
        f"the vector implementation of environment '{cfg.env_id}' changes frames and rewards; set preprocessing to "
        "atari, or use env_backend 'sync' or 'async'"
    )


def _with_own_metadata(build: Callable[[], VectorEnv[Any, Any, Any]]) -> VectorEnv[Any, Any, Any]:
    """Build a vector environment without changing the metadata of other environments.

    A class without its own `metadata`, such as ale-py's, writes to that of Gymnasium's base class. Every environment
    that declares no autoreset mode would then seem to declare this one.
    """
    shared = VectorEnv.metadata
    before = dict(shared)
    shared.clear()
    try:
        env = build()
        if env.unwrapped.metadata is shared:
            env.unwrapped.metadata = dict(shared)
    finally:
        shared.clear()
        shared.update(before)
    return env


@contextlib.contextmanager
def naming_errors(cfg: TrainConfig) -> Iterator[None]:
    """Report errors while building an environment with its id."""
    try:
        yield
    except UserError:
        raise
    except gymnasium.error.Error as error:
        said = str(error)
        if (hint := package_hint(cfg.env_id)) is not None:
            said = f"{said.rstrip('.')}; {hint}"
        elif isinstance(error, gymnasium.error.NameNotFound) and "mean" not in said and ":" not in cfg.env_id:
            said = f"{said.rstrip('.')}; if a package registers it, add its module: module:{cfg.env_id}"
        raise UserError(f"env_id '{cfg.env_id}': {said}") from error
    except ModuleNotFoundError as error:
        hint = package_hint(cfg.env_id)
        raise UserError(
            f"env_id '{cfg.env_id}': module '{error.name or cfg.env_id.partition(':')[0]}' is not installed "
            f"or not on the Python path{'' if hint is None else f'; {hint}'}"
        ) from error
    except (Exception, SystemExit) as error:  # an environment's constructor may raise anything
        problem = f"{type(error).__name__}: {reason(error)}"
        if (unknown := re.search(r"unexpected keyword argument '(\w+)'", problem)) is not None:
            problem = f"the environment takes no argument '{unknown[1]}'"
        raise UserError(
            f"env_id '{cfg.env_id}' with env_kwargs {cfg.env_kwargs} cannot be built: {problem}"
        ) from error


def redirect_mujoco_warnings(entry_point: Any) -> None:
    """Turn MuJoCo's warnings into Python warnings before one of Gymnasium's MuJoCo environments is built.

    By default MuJoCo prints them and appends them to MUJOCO_LOG.TXT in the working folder. A handler that the user has
    set is kept.
    """
    if not str(entry_point).startswith("gymnasium.envs.mujoco"):
        return
    with contextlib.suppress(ImportError, AttributeError):  # not installed, or another version
        mujoco = importlib.import_module("mujoco")
        if mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(_warn)


def _warn(message: str) -> None:
    """Warn, except about deprecated XML in Gymnasium's models, which users cannot fix.

    MuJoCo ends the process if this raises, as it would if warnings are errors.
    """
    with contextlib.suppress(Exception):
        if "is deprecated" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)
