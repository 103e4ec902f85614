"""`TrainConfig`: one typed, strict description of a run for YAML, command line and Python.

Run-level settings are flat, the algorithm's own are one level down. All problems are reported at once.
"""

import contextlib
import hashlib
import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import Any, ClassVar, Literal, Self

import yaml

from rl_training.config.env_wrappers import Wrappers
from rl_training.config.fields import CheckedConfig
from rl_training.config.object_paths import imported_object
from rl_training.config.plain_data import PLAIN, is_plain, num_values, plain
from rl_training.config.policies import Policies
from rl_training.config.preprocessing import USUAL_FRAMES, Frames, preprocessing_problems
from rl_training.config.presets import find_config, settings_of
from rl_training.config.strict_yaml import MAX_VALUES, read_yaml
from rl_training.core.errors import MAX_PROBLEMS, ConfigError, UserError, did_you_mean
from rl_training.core.info_keywords import InfoKeywords
from rl_training.core.shares import shares

MAX_LISTED = MAX_PROBLEMS - 1
"""Unknown keys that an error lists; the search for a similar name takes time."""
UpdatePath = Literal["auto", "explicit", "autograd"]
OF_THE_MACHINE = (
    "engine", "num_samplers", "num_learners", "max_sampler_restarts", "ray_address", "ray_resources", "ray_placement",
    "max_dataset_memory",
)  # fmt: skip
"""Settings that never change a result, so that a run may be resumed with others."""
MAX_SAMPLERS, MAX_LEARNERS = 2**12, 2**10
"""Largest `num_samplers`; largest `num_learners` and `learner_shards`."""
OF_RAY: dict[str, Any] = {"ray_address": None, "ray_resources": {}, "ray_placement": "spread"}
"""Settings of the engine `ray` alone, and their defaults."""
OF_DATASETS = ("total_updates", "dataset_fraction", "held_out_fraction")
OF_GAMES = (
    "policies", "agent_ids", "opponents", "opponent_sampling", "opponent_update_every", "opponent_pool_size",
    "eval_against",
)  # fmt: skip
"""Settings of games with several agents."""
GAMES = "pettingzoo://"
"""The beginning of every env_id that names a game with several agents."""
OF_COLLECTING = ("env_groups", "lag", "max_policy_lag", "max_restarts")
"""Settings of runs that collect experience, which are probably mistakes where a dataset is all there is."""
TAKES_CRITIC_OBS = "ppo, a2c, recurrent_ppo or mappo"
TAKES_DATASETS = "dqn, sac, td3, or an algorithm for datasets such as iql"
NOT_IN_FINGERPRINT = (
    *OF_THE_MACHINE,
    "seed", "output_dir", "device", "num_threads", "update_path", "env_timeout", "rebuild_envs", "max_restarts",
    "checkpoint_every_timesteps", "keep_checkpoints", "log_every_timesteps", "log_histograms_every",
    "info_keywords", "track", "max_time",
)  # fmt: skip
"""Settings excluded from the fingerprint: seed, output, machine, and how often logs and checkpoints are written.

Threads, devices and the update path change rounding, not the experiment.
"""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(CheckedConfig):
    """Base of every algorithm's settings, which are defined next to the algorithm."""

    encoder: str = "auto"
    """Encoder of observations: auto, flat (concatenates all numbers), nature, impala, small, or module:Name for your
    own; auto uses a CNN for images and flat for everything else."""
    encoder_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int = 256
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None = None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"] = "auto"
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""

    takes_dataset: ClassVar[bool] = False
    """Whether the algorithm can learn from transitions of a dataset."""
    needs_dataset: ClassVar[bool] = False
    """Whether it cannot learn without one."""
    plays_games: ClassVar[bool] = False
    """Whether it can learn in games with several agents."""
    central_critic: ClassVar[bool] = False
    """Whether its critic reads the whole game, and not only what an agent sees."""
    has_memory: ClassVar[bool] = False
    """Whether its policy has a memory, so that agents watch the game while they wait for their turn."""

    def problems(self, num_envs: int) -> list[str]:
        """Return one message per invalid setting, with key, value and remedy."""
        return []

    def rollout_problems(self, num_envs: int, agents: int = 1) -> list[str]:
        """Return the problems that depend on the rows of a rollout; `agents` of a game share the policy."""
        return []

    def probable_mistakes(self, total_timesteps: int, num_envs: int) -> list[str]:
        """Return settings that are valid but probably mistakes."""
        return []

    def critic_problems(self, algo: str) -> list[str]:
        """Return why a critic cannot read more than the actor (`critic_obs`); `algo` is the algorithm's name."""
        return [
            f"critic_obs is given, but {algo} has no critic that reads more than the actor; use {TAKES_CRITIC_OBS}"
        ]

    def rows_at_once(self, num_envs: int) -> tuple[int, str]:
        """Return how many observations an update reads at once, and how to reduce them, as text."""
        return 0, ""

    def rows_per_step(self, num_envs: int) -> int:
        """Return how many rows one gradient step learns from."""
        return 0


@dataclass(frozen=True, kw_only=True)
class TrainConfig(CheckedConfig):
    """All settings of a run. Only `algo`, and `env_id` or `dataset`, are required."""

    algo: str
    """Name of the algorithm, e.g. ppo, or module:Class for your own."""
    env_id: str = ""
    """Gymnasium id, e.g. CartPole-v1; `module:Id` imports the module first, and pettingzoo://family/name is a game with
    several agents. With a dataset, it is the environment to
    evaluate in, by default the one that the dataset names; without one there are no evaluations."""
    seed: int = 0
    """Seed of all random numbers, 0 or more."""
    output_dir: str = "runs"
    """Folder in which run folders are created."""
    total_timesteps: int = 100_000
    """Environment steps to train for, summed over environments."""
    dataset: str | None = None
    """Dataset to learn from: a Minari folder or id, a run folder, whose replay data is used, or a table (.npz, .csv,
    .parquet)."""
    total_updates: int = 100_000
    """Updates to train for if all data comes from the dataset; the run then counts updates instead of steps."""
    dataset_fraction: float = 1.0
    """Part of every batch that comes from the dataset; below 1 the run also collects, for total_timesteps."""
    held_out_fraction: float = 0.05
    """Part of the dataset's episodes that is not learned from: metrics report its losses. Only for runs that learn from
    a dataset alone; with a dataset_fraction below 1 all episodes are used."""
    max_dataset_memory: int | None = None
    """Bytes of memory for the dataset; columns that do not fit stay in temporary files, from which each batch is read.
    None is half of the available memory."""
    device: str = "auto"
    """PyTorch device; auto is the CPU, which is faster for small networks."""
    num_threads: int | Literal["auto"] = "auto"
    """Threads for the matrix products of updates; auto gives the results of one thread, and borrows idle cores where
    that changes no bit."""
    update_path: UpdatePath = "auto"
    """How gradients are computed: explicit, by hand-written backward passes, which is faster; autograd; auto uses
    explicit passes wherever they exist."""

    num_envs: int = 8
    """Number of environments that are stepped in parallel."""
    env_backend: Literal["sync", "async", "native", "envpool"] = "sync"
    """Where environments run: sync, in this process; async, in one process each, with shared memory; native, in the
    environment's own vector implementation; envpool, in the threads of EnvPool's C++ version of the environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the environment's constructor, as a YAML map."""
    env_wrappers: Wrappers = ()
    """Wrappers around each environment, innermost first: module:Wrapper, or {module:Wrapper: {argument: value}}."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated, instead of the environment's own time limit."""
    env_timeout: float = 300.0
    """Seconds without a step after which a worker of the async backend is reported as hung, and a sampler is
    replaced."""
    rebuild_envs: Literal["auto", "on", "off"] = "auto"
    """Build a new environment for every episode; auto does so if environments keep state across resets."""
    max_restarts: int = 0
    """How often a run may restart from its last checkpoint after an environment failed."""
    env_groups: int = 1
    """Number of groups into which the environments are divided, as evenly as possible, the larger ones first. A group
    acts on its own, so that another process can host it."""
    lag: int | Literal["free"] = 0
    """By how many updates the policy that collects may be older than the one that learns: 0; 1, which collects and
    learns at the same time; free, in which groups collect with the newest policy, which is not reproducible."""
    max_policy_lag: int = 2
    """lag free: largest lag, in updates; older experience is dropped. A group has at most two rollouts under way, so 2
    or more drops nothing."""
    learner_shards: int = 1
    """Number of slices of every minibatch, whose gradients are computed separately and added in order."""
    engine: Literal["auto", "local", "process", "ray"] = "local"
    """Where groups and shards are computed: local, in this process; process, in processes of this machine; ray, on a
    Ray cluster; auto chooses between local and process. The results are the same."""
    num_samplers: int | Literal["auto"] = "auto"
    """Processes that host the groups; 0 hosts them in the learner's process; auto is one per group, at most one per
    core (with engine ray, one per CPU of the cluster)."""
    num_learners: int | Literal["auto"] = "auto"
    """Processes that compute the shards, the run's own among them; auto is one per shard, at most one per core. With
    ray_address the others are on the cluster, and auto is at most as many as its free CPUs allow."""
    max_sampler_restarts: int = 1_000
    """How often processes that collect, or those that compute shards, may be replaced after they died or stopped
    answering."""
    ray_address: str | None = None
    """Address of an existing Ray cluster, HOST:PORT or auto; by default one is started for the run."""
    ray_resources: dict[str, Any] = field(default_factory=dict)
    """Resources that each process reserves on the Ray cluster, as a YAML map such as {CPU: 1}."""
    ray_placement: Literal["spread", "pack"] = "spread"
    """Whether processes are spread over the nodes of the Ray cluster, or packed onto few."""
    policies: Policies = "shared"
    """Games: which agents share a policy: shared, all of them; each, none; or a map from the name of a policy to its
    agents. Every policy learns on its own."""
    agent_ids: Literal["auto", "on", "off"] = "auto"
    """Games: add the number of the agent to the observations of a policy that several agents share; auto does so if
    they have different observations or actions."""
    opponents: Literal["self", "latest", "pool"] = "self"
    """Games between agents of one policy: who plays the other seats. self, the policy that learns, which then learns
    from all seats; latest, its last snapshot; pool, snapshots of the run so far."""
    opponent_sampling: Literal["uniform", "recent", "prioritised"] = "uniform"
    """opponents pool: how the snapshot of a game is drawn: uniform; recent, the newer the more often; prioritised,
    those that win most often more often."""
    opponent_update_every: int = 20_000
    """Timesteps between snapshots of the policy, for opponents latest and pool."""
    opponent_pool_size: int = 10
    """opponents pool: how many snapshots are kept, the first one and the newest ones."""
    eval_against: str = "auto"
    """Games: who plays the other seats in evaluations: self, the policy itself; random; a run or saved agent; or
    module:function, which maps an observation and a mask to an action. The policy takes all seats in turn, and games
    against an agent begin with two random moves, unless eval_deterministic is off. auto is random where there are
    opponents or best_by is win_rate, and self otherwise."""
    preprocessing: Literal["none", "image", "atari"] = "none"
    """Preprocessing of observations: none; image, which resizes and stacks images; atari, the standard preprocessing
    of Atari games."""
    image_size: int | None = None
    """Height and width to which images are resized; by default 84 for atari, and unchanged for image."""
    grayscale: bool | None = None
    """Convert images to grayscale; by default for atari, and not for image."""
    frame_stack: int | None = None
    """Number of frames in one observation, oldest first; by default 4 for atari, and 1 for image."""
    noop_max: int = 30
    """atari: start each game with a random number of no-ops, up to this many; 0 for none."""
    frame_skip: int = 4
    """atari: number of frames for which an action is repeated."""
    max_pool: bool = True
    """atari: take the maximum of the last two frames, as some games draw sprites in every other frame only."""
    terminal_on_life_loss: bool = True
    """atari: treat a lost life as terminal in returns and advantages; the game itself continues."""
    fire_reset: bool = True
    """atari: press FIRE at the start and after a lost life, in games that wait for it."""
    clip_reward: bool = True
    """atari: learn from the sign of rewards; logs and evaluations report the score."""
    use_action_masks: Literal["auto", "on", "off"] = "auto"
    """Use action masks; auto does so if the environment provides them."""
    critic_obs: tuple[str, ...] = ()
    """Entries of a Dict observation that only the critic reads, as a list of names. The actor never sees them, and
    acting does not need them."""
    normalize_obs: bool = False
    """Normalize observations by running statistics, which are saved with the model."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the return; reported returns are not scaled."""

    eval_every_timesteps: int = 10_000
    """Environment steps between evaluations, or updates with a dataset alone; 0 evaluates only at the end."""
    num_eval_episodes: int = 10
    """Episodes per evaluation."""
    best_by: Literal["reward", "success", "win_rate"] = "reward"
    """What makes an evaluation the best one: its mean return; its success rate (episodes that report is_success); or,
    in games, its win rate, where a draw counts as half a win. The mean return decides between equal rates."""
    eval_deterministic: bool = True
    """Take the most likely action in evaluations instead of a sampled one."""
    max_eval_episode_steps: int = 30_000
    """Steps after which an episode of an evaluation or a video is cut off, and marked as such."""
    checkpoint_every_timesteps: int = 25_000
    """Environment steps between checkpoints, or updates with a dataset alone; 0 writes one only at the end."""
    keep_checkpoints: int = 3
    """Number of most recent checkpoints to keep, in addition to the best one."""

    log_every_timesteps: int = 2_000
    """Environment steps between rows of the metric files, or updates with a dataset alone."""
    log_histograms_every: int = 0
    """Environment steps, or updates with a dataset alone, between histograms of weights, gradients and activations in
    TensorBoard; 0 writes none."""
    info_keywords: InfoKeywords = ()
    """Numbers in the environment's info that are logged and evaluated, as info/NAME: NAME for the mean over the steps
    of an episode, NAME:last, NAME:sum, NAME:min or NAME:max for the last one, the sum or an extreme."""
    track: Literal["none", "wandb"] = "none"
    """Experiment tracker to which metrics are sent as well (its extra must be installed)."""

    stop_at_reward: float | None = None
    """Stop when the mean return of an evaluation reaches this value."""
    stop_after_stale_evals: int | None = None
    """Stop after this many evaluations without a new best one."""
    max_time: float | None = None
    """Pause after this many seconds, with a checkpoint from which the run can be resumed."""

    algorithm: AlgorithmConfig = None  # type: ignore[assignment]  # set from the algorithm's entry in the table
    """The algorithm's own settings."""

    def __post_init__(self) -> None:
        named = bool(self.env_id)
        problems = self._coerce_fields()
        if not named and self.dataset is None:
            problems.append("env_id is empty; name a Gymnasium environment such as CartPole-v1")
        if isinstance(self.algo, str) and isinstance(self.env_id, str):
            problems += self._fill_algorithm() or self._problems()
        if problems:
            raise ConfigError(problems)

    def _fill_algorithm(self) -> list[str]:
        given: AlgorithmConfig | None = self.algorithm
        try:
            config_class = _settings_class(self.algo, given)
        except UserError as error:
            return [str(error)]
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
            *self.negative("log_histograms_every"),
            *([] if self.num_threads == "auto" else self.outside("num_threads", 1, 1024)),
            *self.outside("num_envs", 1, 2**16),
        ]
        for name in ("stop_after_stale_evals", "max_time", "max_dataset_memory"):
            if getattr(self, name) is not None:
                found += self.not_positive(name)
        if "\0" in self.output_dir:
            found.append(f"output_dir is {self.output_dir!r}; a path cannot contain the character \\0")
        if self.preprocessing == "atari" and self.algorithm.image_channels != "auto":
            problem = "image_channels is given, but preprocessing 'atari' makes its own frames; leave it out"
            found.append(problem)
        if num_values(self.to_dict()) > MAX_VALUES:
            found.append(f"the config has more than {MAX_VALUES:,} values; use shorter arguments")
        found += (
            self._dataset_problems() + self._game_problems() + self._env_problems() + self._engine_problems()
        )
        found += preprocessing_problems(self)
        for name, value in asdict(self.algorithm).items() if ":" in self.algo else ():
            if not is_plain(plain(value)):
                found.append(f"{name} is {value!r}, which cannot be saved; use {PLAIN}")
        own = self.algorithm.problems(self.num_envs)
        if self.env_id.startswith(GAMES):  # how many agents share a policy is known when the run is built
            of_rollouts = self.algorithm.rollout_problems(self.num_envs)
            own = [problem for problem in own if problem not in of_rollouts]
        return found + own

    def _dataset_problems(self) -> list[str]:
        found = [*self.not_positive("total_updates"), *self.outside("held_out_fraction", 0, 0.5)]
        takes, needs = self.algorithm.takes_dataset, self.algorithm.needs_dataset
        if self.dataset is None:
            given = [name for name in OF_DATASETS if getattr(self, name) != _default(name)]
            found += [
                f"{name} is given, but there is no dataset; give one, or leave it out" for name in given
            ]
            if needs:
                found.append(f"{self.algo} learns from a dataset; name one with dataset")
            return found
        if not self.dataset or "\0" in self.dataset:
            found.append(f"dataset is {self.dataset!r}; name a folder, a file or a Minari dataset")
        if not takes:
            found.append(
                f"dataset is given, but {self.algo} learns from its own rollouts only; use {TAKES_DATASETS}"
            )
        if self.use_action_masks == "on":
            found.append("use_action_masks is on, but datasets have no action masks; leave it out")
        if not 0 < self.dataset_fraction <= 1:
            found.append(f"dataset_fraction is {self.dataset_fraction}; use more than 0, and at most 1")
        if not self.offline and self.held_out_fraction != _default("held_out_fraction"):
            found.append(
                "held_out_fraction is given, but with a dataset_fraction below 1 no episodes are held out; leave it out"
            )
        unused = "total_timesteps" if self.offline else "total_updates"
        if getattr(self, unused) != _default(unused):
            counted = "updates; use total_updates" if self.offline else "steps; use total_timesteps"
            found.append(
                f"{unused} is given, but with dataset_fraction {self.dataset_fraction:g} the run counts {counted}"
            )
        if self.offline:
            found += [
                f"{name} is given, but the run collects nothing; leave it out, or use a dataset_fraction below 1"
                for name in OF_COLLECTING
                if getattr(self, name) != _default(name)
            ]
        return found

    def _game_problems(self) -> list[str]:
        found = self.not_positive("opponent_update_every", "opponent_pool_size")
        needed = {
            "opponent_sampling": ("pool",),
            "opponent_pool_size": ("pool",),
            "opponent_update_every": ("latest", "pool"),
        }
        found += [
            f"{name} is given, but opponents is '{self.opponents}'; use opponents {' or '.join(wanted)}"
            for name, wanted in needed.items()
            if getattr(self, name) != _default(name) and self.opponents not in wanted
        ]
        if self.best_by == "win_rate" and self.eval_against == "self":
            found.append(
                "best_by is win_rate, but eval_against is self; use random, a run or module:function"
            )
        return found

    def _env_problems(self) -> list[str]:
        found = self.not_positive("env_timeout")
        if not is_plain(plain(self.env_kwargs)):
            found.append(f"env_kwargs cannot be saved as they are; use {PLAIN}")
        elif num_values(self.env_kwargs) > MAX_VALUES // 2:  # the rest of the file needs some, too
            found.append(
                f"env_kwargs hold more than {MAX_VALUES // 2:,} values; let the environment read a file"
            )
        if self.env_timeout > 10**8:
            found.append(f"env_timeout is {self.env_timeout:g}; use at most {10**8:,} seconds, three years")
        if self.critic_obs:
            found += self.algorithm.critic_problems(self.algo)
        if self.max_episode_steps is not None:
            found += self.not_positive("max_episode_steps")
            if "max_episode_steps" in self.env_kwargs:
                found.append(
                    f"max_episode_steps is {self.max_episode_steps}, and env_kwargs has one, too; leave one of them out"
                )
        return found

    def _engine_problems(self) -> list[str]:
        found = [
            *self.outside("learner_shards", 1, MAX_LEARNERS),
            *self.not_positive("max_policy_lag"),
            *self.negative("max_sampler_restarts"),
            *([] if self.num_samplers == "auto" else self.outside("num_samplers", 0, MAX_SAMPLERS)),
            *([] if self.num_learners == "auto" else self.outside("num_learners", 1, MAX_LEARNERS)),
        ]
        if not 1 <= self.env_groups <= max(self.num_envs, 1):
            found.append(
                f"env_groups is {self.env_groups}; use 1 to num_envs ({self.num_envs}): no group may be empty"
            )
        if self.lag not in (0, 1, "free"):
            found.append(f"lag is {self.lag}; use 0, 1 or free")
        if isinstance(self.num_samplers, int) and self.num_samplers > self.env_groups:
            found.append(
                f"num_samplers is {self.num_samplers}, but env_groups is {self.env_groups}; a process hosts a group or "
                "more: use a larger env_groups or fewer num_samplers"
            )
        if isinstance(self.num_learners, int) and self.num_learners > self.learner_shards:
            found.append(
                f"num_learners is {self.num_learners}, but learner_shards is {self.learner_shards}; a process computes "
                "a shard or more: use more learner_shards or fewer num_learners"
            )
        for name in ("num_samplers", "num_learners"):
            value = getattr(self, name)
            if self.engine == "local" and isinstance(value, int) and value > (name == "num_learners"):
                found.append(
                    f"{name} is {value}, but engine 'local' has one process; use engine process or ray"
                )
        if self.engine != "ray":
            given = [name for name, usual in OF_RAY.items() if getattr(self, name) != usual]
            found += [f"{name} is given, but engine is '{self.engine}'; use engine ray" for name in given]
        for name, amount in self.ray_resources.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < 2**53:
                found.append(f"ray_resources has {name} {amount!r}; use a number such as 1 or 0.5")
        return found

    @property
    def given_of_games(self) -> list[str]:
        """The settings of games that differ from their defaults."""
        return [name for name in OF_GAMES if getattr(self, name) != _default(name)]

    @property
    def offline(self) -> bool:
        """Whether all data comes from a dataset, so that nothing is collected."""
        return self.dataset is not None and self.dataset_fraction == 1.0

    @property
    def budget(self) -> int:
        """The length of the run on its clock: `total_updates` with a dataset alone, otherwise `total_timesteps`."""
        return self.total_updates if self.offline else self.total_timesteps

    @property
    def unit(self) -> str:
        """What its clock counts: `updates` or `steps`."""
        return "updates" if self.offline else "steps"

    @property
    def task(self) -> str:
        """What the run is about: its environment, or its dataset if there is none."""
        return self.env_id or (self.dataset or "").rstrip("/").rpartition("/")[2]

    @property
    def reproducible(self) -> bool:
        """Whether the same settings and seed give the same result, at any speed of the machine."""
        return self.lag != "free"

    @property
    def native_backend(self) -> bool:
        """Whether a vector environment steps and resets all environments itself, so that none can be replayed."""
        return self.env_backend in ("native", "envpool")

    @property
    def group_sizes(self) -> list[int]:
        """The number of environments in each group: as even as possible, the larger ones first."""
        return [len(part) for part in shares(self.num_envs, self.env_groups)]

    @property
    def frames(self) -> Frames:
        """The image settings, with the defaults of `preprocessing` for those that are not given."""
        usual = USUAL_FRAMES[self.preprocessing]
        return Frames(
            image_size=usual.image_size if self.image_size is None else self.image_size,
            grayscale=usual.grayscale if self.grayscale is None else self.grayscale,
            stack=usual.stack if self.frame_stack is None else self.frame_stack,
        )

    @property
    def makes_frames(self) -> bool:
        """Whether preprocessing creates the images, which then have their channels first."""
        return self.preprocessing == "atari" or self.frames != USUAL_FRAMES["none"]

    def with_overrides(self, **overrides: Any) -> Self:
        """Return a copy with settings of the run or of the algorithm replaced; all problems are reported at once.

        With another engine, or with another source of data, settings that it does not have are dropped.
        """
        own = {item.name for item in fields(self)}
        inner = {item.name for item in fields(self.algorithm)}
        unknown = [name for name in overrides if name not in own | inner]
        problems = [f"unknown setting '{name}'{did_you_mean(name, own | inner)}" for name in unknown]
        changes = {name: value for name, value in overrides.items() if name in own}
        if (engine := changes.get("engine", self.engine)) != self.engine:
            numbers = {"num_samplers": "auto", "num_learners": "auto"} if engine == "local" else {}
            changes = (OF_RAY if engine != "ray" else {}) | numbers | changes
        changes = self._dropped_with_data(changes) | changes
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

    def _dropped_with_data(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of settings that the config does not have after these changes of its kind of data."""
        names = ("dataset", "dataset_fraction")
        dataset, fraction = (changes.get(name, getattr(self, name)) for name in names)
        offline = dataset is not None and fraction == 1.0
        lacks: tuple[str, ...] = ()
        if dataset is None:
            lacks = OF_DATASETS
        elif offline and not self.offline:
            lacks = ("total_timesteps", *OF_COLLECTING)
        elif self.offline and not offline:
            lacks = ("total_updates", "held_out_fraction")
        return {name: _default(name) for name in lacks}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, every setting resolved."""
        return typing.cast(dict[str, Any], plain(asdict(self)))

    def to_yaml(self) -> str:
        """Return the resolved config as YAML that `load_config` reads back to an equal one."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def fingerprint(self) -> str:
        """Return a short hash of the experiment: of the settings that differ from their defaults.

        So a new setting does not invalidate old results. Changing a default does: old results then belong to another
        experiment, and the change must be documented.
        """
        inner_usual = type(self.algorithm)()
        usual = TrainConfig(
            algo=self.algo, env_id=self.env_id, dataset=self.dataset, algorithm=inner_usual
        ).to_dict() | {"dataset": None}
        given = self.to_dict() | ({"use_action_masks": "auto"} if self.use_action_masks == "on" else {})
        inner, usual_inner = given.pop("algorithm"), usual.pop("algorithm")
        changed = {key for key in given if key not in NOT_IN_FINGERPRINT and given[key] != usual[key]}
        chosen = {key: given[key] for key in changed | {"algo", "env_id"}}
        chosen["algorithm"] = {key: inner[key] for key in inner if inner[key] != usual_inner[key]}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]


def _default(name: str) -> Any:
    """Return the default of a setting of the run."""
    return next(item.default for item in fields(TrainConfig) if item.name == name)


def config_from_dict(
    data: Mapping[str, Any],
    source: str = "configuration",
    config_class: type[AlgorithmConfig] | None = None,
) -> TrainConfig:
    """Return the config that plain data describes; raise one error for all unknown keys and wrong values.

    Without `config_class`, the module of an `algo: module:Class` is imported: pass it for data that is not trusted.
    """
    problems: list[str] = []
    run_level = {item.name for item in fields(TrainConfig)}
    values = dict(data)
    if config_class is None and isinstance(values.get("algo"), str):
        with contextlib.suppress(UserError):  # `TrainConfig` reports it
            config_class = _settings_class(values["algo"])
    inner_names = {item.name for item in fields(config_class)} if config_class else set()
    foreign = [key for key in values if key not in run_level]
    values = {key: value for key, value in values.items() if key in run_level}
    problems += [_unknown_key(str(key), run_level, inner_names) for key in foreign[:MAX_LISTED]]
    problems += [f"{len(foreign) - MAX_LISTED:,} more unknown keys"] * (len(foreign) > MAX_LISTED)
    settings = values.pop("algorithm", None)
    if settings is not None and not isinstance(settings, Mapping):
        problems.append(f"algorithm is {settings!r}; use a mapping of settings")
        settings = None
    if config_class is not None and settings is not None:
        unknown = [key for key in settings if key not in inner_names]
        problems += [_unknown_setting(str(key), run_level, inner_names) for key in unknown[:MAX_LISTED]]
        problems += [f"{len(unknown) - MAX_LISTED:,} more unknown settings"] * (len(unknown) > MAX_LISTED)
        known = {key: settings[key] for key in settings if key in inner_names}
        values["algorithm"], wrong = _with_settings(config_class(), known)
        problems += [f"algorithm.{problem}" for problem in wrong]
    required = {"algo": "bc"} if values.get("dataset") is not None else {"algo": "ppo", "env_id": "missing"}
    problems += [f"key '{name}' is missing" for name in required if name not in values]
    try:
        config = TrainConfig(**required | values)
    except ConfigError as error:
        problems += error.problems
    if problems:
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
    """Read a YAML config, or a preset by name; `algo` and `env_id` are required.

    The module of an `algo: module:Class` is imported: read only files whose author you trust.
    """
    return config_from_dict(read_settings(path), str(path))


def read_settings(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the settings in a YAML config, or in a preset, as plain data; values are not checked."""
    return settings_of(read_yaml(find_config(path), path), str(path))


def algorithm_config_class(algo: str) -> type[AlgorithmConfig] | None:
    """Return the settings class of a built-in algorithm, or None. Imported late, as the table imports PyTorch."""
    from rl_training.algorithms import ALGORITHMS

    return ALGORITHMS[algo].config_class if algo in ALGORITHMS else None


def _settings_class(algo: str, given: AlgorithmConfig | None = None) -> type[AlgorithmConfig]:
    """Return the settings class of an algorithm; a module is imported only if no settings are given."""
    from rl_training.algorithms.lookup import find_algorithm

    if ":" in algo and isinstance(given, AlgorithmConfig):
        found = getattr(imported_object(algo), "config_class", None)
        return found if isinstance(found, type) else type(given)
    return find_algorithm(algo).config_class


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
