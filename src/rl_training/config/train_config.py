"""`TrainConfig`: one typed, strict description of a run for YAML, command line and Python alike.

Run-level settings are flat, the algorithm's own are one level down. All problems are reported at once.
"""

import hashlib
import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import Any, Literal, Self

import yaml

from rl_training.config.env_wrappers import Wrappers
from rl_training.config.fields import CheckedConfig
from rl_training.config.plain_data import PLAIN, is_plain, plain
from rl_training.config.preprocessing import USUAL_FRAMES, Frames, preprocessing_problems, resolved_frames
from rl_training.config.presets import find_config, settings_of
from rl_training.config.strict_yaml import read_yaml
from rl_training.core.errors import ConfigError, did_you_mean

APART = (
    "seed", "output_dir", "device", "num_threads", "env_timeout", "rebuild_envs", "max_restarts",
    "checkpoint_every_timesteps", "keep_checkpoints", "log_every_timesteps", "track", "max_time",
)  # fmt: skip
"""Settings that are no part of an experiment: which try, where, on what machine, and what is written down how often.

Threads and devices change last bits, not what is learned.
"""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(CheckedConfig):
    """Base of every algorithm's settings; each lives beside its algorithm."""

    encoder: str = "auto"
    """What turns observations into features: auto, flat (their numbers side by side), nature, impala, small, or
    module:Name of your own; auto takes a CNN for images and flat for the rest."""
    encoder_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int = 256
    """How many features an encoder is asked for, per image; flat has as many as there are numbers."""
    image_scale: float | None = None
    """What image values are multiplied by; none brings the bounds of their space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"] = "auto"
    """Which axis of an image holds the channels; auto is the smaller of the first and the last."""

    def problems(self, num_envs: int) -> list[str]:
        """Return what is impossible, each naming key, value and remedy."""
        return []

    def remarks(self, total_timesteps: int, num_envs: int) -> list[str]:
        """Return what is possible, but hardly meant."""
        return []

    def rows_at_once(self, num_envs: int) -> tuple[int, str]:
        """Return how many observations an update reads at once, and how to make them fewer, as text."""
        return 0, ""

    def rows_per_step(self, num_envs: int) -> int:
        """Return how many rows one gradient step learns from."""
        return 0


@dataclass(frozen=True, kw_only=True)
class TrainConfig(CheckedConfig):
    """Everything that determines a run. `algo`, `env_id`, `seed` and `output_dir` suffice."""

    algo: str
    """Name of the algorithm, e.g. ppo."""
    env_id: str
    """Gymnasium id, e.g. CartPole-v1; `module:Id` imports the module first."""
    seed: int = 0
    """Root of all random streams, 0 or more."""
    output_dir: str = "runs"
    """Folder that run folders are made in."""
    total_timesteps: int = 100_000
    """Environment steps to train for, summed over environments."""
    device: str = "auto"
    """torch device; auto is the CPU, which is faster for small networks."""
    num_threads: int | Literal["auto"] = "auto"
    """Threads for torch and NumPy's products; auto is one for small networks and a few for CNNs and wide layers."""

    num_envs: int = 8
    """Environments stepped side by side."""
    env_backend: Literal["sync", "async", "native"] = "sync"
    """In this process, one process each with shared memory, or the environment's own vector implementation."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the environment's constructor, as a YAML map."""
    env_wrappers: Wrappers = ()
    """Wrappers around each environment, innermost first: module:Wrapper, or {module:Wrapper: {argument: value}}."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated, in the place of the environment's own time limit."""
    env_timeout: float = 300.0
    """Seconds a worker of the async backend may take for one step before it counts as hung."""
    rebuild_envs: Literal["auto", "on", "off"] = "auto"
    """Build environments anew for every episode; auto does so if they keep something across resets."""
    max_restarts: int = 0
    """How often a run may rebuild itself from its last checkpoint after an environment failed."""
    preprocessing: Literal["none", "image", "atari"] = "none"
    """What is done to observations: nothing, resizing and stacking of images, or the usual treatment of Atari games."""
    image_size: int | None = None
    """Height and width that images are scaled to; by default 84 for atari, and as they are for image."""
    grayscale: bool | None = None
    """Show images in shades of gray; by default for atari, and not for image."""
    frame_stack: int | None = None
    """How many frames make one observation, oldest first; by default 4 for atari, and 1 for image."""
    noop_max: int = 30
    """atari: a game begins with 1 to so many frames of doing nothing, by chance; 0 for none."""
    frame_skip: int = 4
    """atari: how many frames an action lasts."""
    max_pool: bool = True
    """atari: show the brighter of the last two frames, as some games draw their sprites in turn."""
    terminal_on_life_loss: bool = True
    """atari: what comes after a lost life does not count for what came before; the game goes on all the same."""
    fire_reset: bool = True
    """atari: press FIRE at the beginning and after a lost life, in games that wait for it."""
    clip_reward: bool = True
    """atari: learn from the sign of rewards; logs and evaluations tell the score."""
    use_action_masks: Literal["auto", "on", "off"] = "auto"
    """Heed what the environment says of allowed actions; auto does so if it says something."""
    normalize_obs: bool = False
    """Normalise observations by running statistics that are saved with the model."""
    normalize_reward: bool = False
    """Scale rewards by the running deviation of the return; reported returns stay raw."""

    eval_every_timesteps: int = 10_000
    """Environment steps between evaluations; 0 evaluates at the end only."""
    num_eval_episodes: int = 10
    """Episodes per evaluation."""
    best_by: Literal["reward", "success"] = "reward"
    """What makes an evaluation the best: its mean return, or the part of its episodes that say is_success; among equal
    parts the mean return decides."""
    eval_deterministic: bool = True
    """Evaluate the most likely action instead of a sampled one."""
    max_eval_episode_steps: int = 30_000
    """Steps after which an episode of an evaluation or a video that has not ended is cut off, and marked so."""
    checkpoint_every_timesteps: int = 25_000
    """Environment steps between checkpoints; 0 writes one at the end only."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints to keep, besides the best."""

    log_every_timesteps: int = 2_000
    """Environment steps between rows of the metric files."""
    track: Literal["none", "wandb"] = "none"
    """Also send metrics to this experiment tracker (needs its extra)."""

    stop_at_reward: float | None = None
    """Stop once an evaluation's mean return reaches this."""
    stop_after_stale_evals: int | None = None
    """Stop after so many evaluations without a new best."""
    max_time: float | None = None
    """Pause after so many seconds, with a checkpoint to resume from."""

    algorithm: AlgorithmConfig = None  # type: ignore[assignment]  # filled from the algorithm's table entry
    """The algorithm's own settings."""

    def __post_init__(self) -> None:
        problems = self._coerce_fields()
        if isinstance(self.algo, str) and isinstance(self.env_id, str):
            problems += self._fill_algorithm() or self._problems()
        if problems:
            raise ConfigError(problems)

    def _fill_algorithm(self) -> list[str]:
        config_class = algorithm_config_class(self.algo)
        if config_class is None:
            known = known_algorithms()
            return [f"algo is '{self.algo}'; use one of {', '.join(known)}{did_you_mean(self.algo, known)}"]
        given: AlgorithmConfig | None = self.algorithm
        if given is None:
            object.__setattr__(self, "algorithm", config_class())
        if type(self.algorithm) is not config_class:
            found = type(self.algorithm).__name__
            return [f"algorithm is a {found}, but algo '{self.algo}' takes a {config_class.__name__}"]
        return []

    def _problems(self) -> list[str]:
        found = [
            *self.not_positive("total_timesteps", "num_eval_episodes", "keep_checkpoints"),
            *self.negative("seed", "eval_every_timesteps", "checkpoint_every_timesteps", "max_restarts"),
            *self.not_positive("log_every_timesteps", "max_eval_episode_steps"),
            *([] if self.num_threads == "auto" else self.outside("num_threads", 1, 1024)),
            *self.outside("num_envs", 1, 2**16),
        ]
        for name in ("stop_after_stale_evals", "max_time"):
            if getattr(self, name) is not None:
                found += self.not_positive(name)
        if "\0" in self.output_dir:
            found.append(f"output_dir is {self.output_dir!r}; no path holds the character \\0")
        if self.preprocessing == "atari" and self.algorithm.image_channels != "auto":
            found.append(
                "image_channels is given, but preprocessing 'atari' makes its own frames; leave it out"
            )
        return (
            found + env_problems(self) + preprocessing_problems(self) + self.algorithm.problems(self.num_envs)
        )

    @property
    def frames(self) -> Frames:
        """The image settings, with what `preprocessing` means by those that are not given."""
        return resolved_frames(self.preprocessing, self.image_size, self.grayscale, self.frame_stack)

    @property
    def makes_frames(self) -> bool:
        """Whether images are made here: those have their channels first, whatever the environment's had."""
        return self.preprocessing == "atari" or self.frames != USUAL_FRAMES["none"]

    def with_overrides(self, **overrides: Any) -> Self:
        """Return a copy with settings of the run or of the algorithm replaced; all problems are reported at once."""
        own = {item.name for item in fields(self)}
        inner = {item.name for item in fields(self.algorithm)}
        problems = [
            f"unknown setting '{name}'{did_you_mean(name, own | inner)}"
            for name in overrides
            if name not in own | inner
        ]
        changes = {name: value for name, value in overrides.items() if name in own}
        inner_changes = {name: overrides[name] for name in overrides if name in inner - own}
        if inner_changes:
            algorithm = changes.get("algorithm", self.algorithm)
            changes["algorithm"], wrong = _with_settings(algorithm, inner_changes)
            problems += wrong
        try:
            config = replace(self, **changes)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, every setting resolved."""
        return typing.cast(dict[str, Any], plain(asdict(self)))

    def to_yaml(self) -> str:
        """Return the resolved config as YAML that `load_config` reads back to an equal one."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def fingerprint(self) -> str:
        """Return a short hash of what makes runs worth comparing: the settings that matter and are not the default.

        So neither a new setting nor what a run decided for itself makes an old result stale; whoever changes a default
        makes old results those of another experiment, and must say so.
        """
        usual = TrainConfig(algo=self.algo, env_id=self.env_id).to_dict()
        given = self.to_dict() | ({"use_action_masks": "auto"} if self.use_action_masks == "on" else {})
        inner, usual_inner = given.pop("algorithm"), usual.pop("algorithm")
        chosen = {
            "algo": self.algo,
            "env_id": self.env_id,
            **{key: given[key] for key in given if key not in APART and given[key] != usual[key]},
            "algorithm": {key: inner[key] for key in inner if inner[key] != usual_inner[key]},
        }
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]


def config_from_dict(data: Mapping[str, Any], source: str = "configuration") -> TrainConfig:
    """Return the config that plain data describes; unknown keys and wrong values are refused, all at once."""
    problems: list[str] = []
    run_level = {item.name for item in fields(TrainConfig)}
    values = dict(data)
    config_class = algorithm_config_class(values["algo"]) if isinstance(values.get("algo"), str) else None
    inner_names = {item.name for item in fields(config_class)} if config_class else set()
    for key in [key for key in values if key not in run_level]:
        del values[key]
        problems.append(_unknown_key(str(key), run_level, inner_names))
    settings = values.pop("algorithm", None)
    if settings is not None and not isinstance(settings, Mapping):
        problems.append(f"algorithm is {settings!r}; use a mapping of settings")
        settings = None
    if config_class is not None and settings is not None:
        unknown = [key for key in settings if key not in inner_names]
        problems += [_unknown_setting(str(key), run_level, inner_names) for key in unknown]
        known = {key: settings[key] for key in settings if key in inner_names}
        values["algorithm"], wrong = _with_settings(config_class(), known)
        problems += [f"algorithm.{problem}" for problem in wrong]
    problems += [f"key '{name}' is missing" for name in ("algo", "env_id") if name not in values]
    config = None
    try:
        config = TrainConfig(**{"algo": "ppo", "env_id": "missing"} | values)
    except ConfigError as error:
        problems += error.problems
    if problems or config is None:
        raise ConfigError(problems, source)
    return config


def _with_settings(
    algorithm: AlgorithmConfig, settings: Mapping[str, Any]
) -> tuple[AlgorithmConfig, list[str]]:
    """Return a copy with those settings replaced whose values are valid, and a problem for each of the others."""
    valid, problems = dict[str, Any](), list[str]()
    for name, value in settings.items():
        try:
            replace(algorithm, **{name: value})
            valid[name] = value
        except ConfigError as error:
            problems += error.problems
    return replace(algorithm, **valid), problems


def load_config(path: str | PathLike[str]) -> TrainConfig:
    """Read a YAML config: three keys (`algo`, `env_id`, `seed`) suffice. Presets are found from anywhere."""
    return config_from_dict(settings_of(read_yaml(find_config(path), path), str(path)), str(path))


def algorithm_config_class(algo: str) -> type[AlgorithmConfig] | None:
    """Return the settings class of an algorithm, or None. Looked up late: the table imports torch."""
    from rl_training.algorithms import ALGORITHMS

    return ALGORITHMS[algo].config_class if algo in ALGORITHMS else None


def known_algorithms() -> list[str]:
    """Return the names of the algorithm table."""
    from rl_training.algorithms import ALGORITHMS

    return sorted(ALGORITHMS)


def _unknown_key(key: str, run_level: Iterable[str], inner: set[str]) -> str:
    if key in inner:
        return f"unknown key '{key}' at the top level; it is a setting of the algorithm: write it under 'algorithm:'"
    return f"unknown key '{key}'{did_you_mean(key, [*run_level, *inner])}"


def _unknown_setting(key: str, run_level: set[str], inner: set[str]) -> str:
    if key in run_level:
        return f"unknown key 'algorithm.{key}'; it is a setting of the run: write it at the top level"
    return f"unknown key 'algorithm.{key}'{did_you_mean(key, [*inner, *run_level])}"


def env_problems(config: Any) -> list[str]:
    """Return a sentence for each problem of a run's config, naming key, value and remedy."""
    found: list[str] = config.not_positive("env_timeout")
    if not config.env_id:
        found.append("env_id is empty; name a Gymnasium environment such as CartPole-v1")
    if not is_plain(plain(config.env_kwargs)):
        found.append(f"env_kwargs cannot be saved as they are; use {PLAIN}")
    if config.env_timeout > 10**8:
        found.append(
            f"env_timeout is {config.env_timeout:g}; use at most {10**8:,} seconds, which is three years"
        )
    if config.max_episode_steps is not None:
        found += config.not_positive("max_episode_steps")
        if "max_episode_steps" in config.env_kwargs:
            found.append(
                f"max_episode_steps is {config.max_episode_steps}, and env_kwargs has one, too; leave one of them out"
            )
    return found
