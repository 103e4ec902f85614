"""Settings as keyword arguments, for type checkers and editors.

Written by scripts/write_keywords.py: do not edit.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict

from gymnasium import Env

from rl_training.algorithms.losses import LossFunction
from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import Wrappers
from rl_training.config.policies import Policies
from rl_training.config.schedules import Schedule
from rl_training.config.train_config import AlgorithmConfig, UpdatePath
from rl_training.core.info_keywords import InfoKeywords
from rl_training.models.cores import CoreName
from rl_training.models.encoders import EncoderClass
from rl_training.models.mlp import ActivationName
from rl_training.policies.noise import ActionNoiseName, AddedNoiseName
from rl_training.policies.q_policy import Distribution

EnvBuilder: TypeAlias = Callable[..., Env[Any, Any]]
"""A function that builds a new environment each time it is called."""
ConfigOrEnv: TypeAlias = TrainConfig | EnvBuilder | str | None
"""The first argument of an algorithm: a config, an environment id, or a function that builds an environment."""

class RunKeywords(TypedDict, total=False):
    """Settings of TrainConfig."""

    env: EnvBuilder | str | None
    """With a config: an environment in the place of its own, as an id or a function that builds one."""
    encoder: EncoderClass | str | None
    """What turns observations into features: the name of an encoder, or your own class."""
    env_id: str
    """Gymnasium id, e.g. CartPole-v1; `module:Id` imports the module first, and pettingzoo://family/name is a game with
    several agents. With a dataset, it is the environment to
    evaluate in, by default the one that the dataset names; without one there are no evaluations."""
    seed: int
    """Seed of all random numbers, 0 or more."""
    output_dir: str | PathLike[str]
    """Folder in which run folders are created."""
    total_timesteps: int
    """Environment steps to train for, summed over environments."""
    dataset: str | None
    """Dataset to learn from: a Minari folder or id, a run folder, whose replay data is used, or a table (.npz, .csv,
    .parquet)."""
    total_updates: int
    """Updates to train for if all data comes from the dataset; the run then counts updates instead of steps."""
    dataset_fraction: float
    """Part of every batch that comes from the dataset; below 1 the run also collects, for total_timesteps."""
    held_out_fraction: float
    """Part of the dataset's episodes that is not learned from: metrics report its losses. Only for runs that learn from
    a dataset alone; with a dataset_fraction below 1 all episodes are used."""
    max_dataset_memory: int | None
    """Bytes of memory for the dataset; columns that do not fit stay in temporary files, from which each batch is read.
    None is half of the available memory."""
    device: str
    """PyTorch device; auto is the CPU, which is faster for small networks."""
    num_threads: int | Literal["auto"]
    """Threads for the matrix products of updates; auto gives the results of one thread, and borrows idle cores where
    that changes no bit."""
    update_path: UpdatePath
    """How gradients are computed: explicit, by hand-written backward passes, which is faster; autograd; auto uses
    explicit passes wherever they exist."""
    num_envs: int
    """Number of environments that are stepped in parallel."""
    env_backend: Literal["sync", "async", "native", "envpool"]
    """Where environments run: sync, in this process; async, in one process each, with shared memory; native, in the
    environment's own vector implementation; envpool, in the threads of EnvPool's C++ version of the environment."""
    env_kwargs: dict[str, Any]
    """Arguments for the environment's constructor, as a YAML map."""
    env_wrappers: Wrappers
    """Wrappers around each environment, innermost first: module:Wrapper, or {module:Wrapper: {argument: value}}."""
    max_episode_steps: int | None
    """Steps after which an episode is truncated, instead of the environment's own time limit."""
    env_timeout: float
    """Seconds without a step after which a worker of the async backend is reported as hung, and a sampler is
    replaced."""
    rebuild_envs: Literal["auto", "on", "off"]
    """Build a new environment for every episode; auto does so if environments keep state across resets."""
    max_restarts: int
    """How often a run may restart from its last checkpoint after an environment failed."""
    env_groups: int
    """Number of groups into which the environments are divided, as evenly as possible, the larger ones first. A group
    acts on its own, so that another process can host it."""
    lag: int | Literal["free"]
    """By how many updates the policy that collects may be older than the one that learns: 0; 1, which collects and
    learns at the same time; free, in which groups collect with the newest policy, which is not reproducible."""
    max_policy_lag: int
    """lag free: largest lag, in updates; older experience is dropped. A group has at most two rollouts under way, so 2
    or more drops nothing."""
    learner_shards: int
    """Number of slices of every minibatch, whose gradients are computed separately and added in order."""
    engine: Literal["auto", "local", "process", "ray"]
    """Where groups and shards are computed: local, in this process; process, in processes of this machine; ray, on a
    Ray cluster; auto chooses between local and process. The results are the same."""
    num_samplers: int | Literal["auto"]
    """Processes that host the groups; 0 hosts them in the learner's process; auto is one per group, at most one per
    core (with engine ray, one per CPU of the cluster)."""
    num_learners: int | Literal["auto"]
    """Processes that compute the shards, the run's own among them; auto is one per shard, at most one per core. With
    ray_address the others are on the cluster, and auto is at most as many as its free CPUs allow."""
    max_sampler_restarts: int
    """How often processes that collect, or those that compute shards, may be replaced after they died or stopped
    answering."""
    ray_address: str | None
    """Address of an existing Ray cluster, HOST:PORT or auto; by default one is started for the run."""
    ray_resources: dict[str, Any]
    """Resources that each process reserves on the Ray cluster, as a YAML map such as {CPU: 1}."""
    ray_placement: Literal["spread", "pack"]
    """Whether processes are spread over the nodes of the Ray cluster, or packed onto few."""
    policies: Policies
    """Games: which agents share a policy: shared, all of them; each, none; or a map from the name of a policy to its
    agents. Every policy learns on its own."""
    agent_ids: Literal["auto", "on", "off"]
    """Games: add the number of the agent to the observations of a policy that several agents share; auto does so if
    they have different observations or actions."""
    opponents: Literal["self", "latest", "pool"]
    """Games between agents of one policy: who plays the other seats. self, the policy that learns, which then learns
    from all seats; latest, its last snapshot; pool, snapshots of the run so far."""
    opponent_sampling: Literal["uniform", "recent", "prioritised"]
    """opponents pool: how the snapshot of a game is drawn: uniform; recent, the newer the more often; prioritised,
    those that win most often more often."""
    opponent_update_every: int
    """Timesteps between snapshots of the policy, for opponents latest and pool."""
    opponent_pool_size: int
    """opponents pool: how many snapshots are kept, the first one and the newest ones."""
    eval_against: str
    """Games: who plays the other seats in evaluations: self, the policy itself; random; a run or saved agent; or
    module:function, which maps an observation and a mask to an action. The policy takes all seats in turn, and games
    against an agent begin with two random moves, unless eval_deterministic is off. auto is random where there are
    opponents or best_by is win_rate, and self otherwise."""
    preprocessing: Literal["none", "image", "atari"]
    """Preprocessing of observations: none; image, which resizes and stacks images; atari, the standard preprocessing
    of Atari games."""
    image_size: int | None
    """Height and width to which images are resized; by default 84 for atari, and unchanged for image."""
    grayscale: bool | None
    """Convert images to grayscale; by default for atari, and not for image."""
    frame_stack: int | None
    """Number of frames in one observation, oldest first; by default 4 for atari, and 1 for image."""
    noop_max: int
    """atari: start each game with a random number of no-ops, up to this many; 0 for none."""
    frame_skip: int
    """atari: number of frames for which an action is repeated."""
    max_pool: bool
    """atari: take the maximum of the last two frames, as some games draw sprites in every other frame only."""
    terminal_on_life_loss: bool
    """atari: treat a lost life as terminal in returns and advantages; the game itself continues."""
    fire_reset: bool
    """atari: press FIRE at the start and after a lost life, in games that wait for it."""
    clip_reward: bool
    """atari: learn from the sign of rewards; logs and evaluations report the score."""
    use_action_masks: Literal["auto", "on", "off"]
    """Use action masks; auto does so if the environment provides them."""
    critic_obs: tuple[str, ...]
    """Entries of a Dict observation that only the critic reads, as a list of names. The actor never sees them, and
    acting does not need them."""
    normalize_obs: bool
    """Normalize observations by running statistics, which are saved with the model."""
    normalize_reward: bool
    """Divide rewards by the running standard deviation of the return; reported returns are not scaled."""
    eval_every_timesteps: int
    """Environment steps between evaluations, or updates with a dataset alone; 0 evaluates only at the end."""
    num_eval_episodes: int
    """Episodes per evaluation."""
    best_by: Literal["reward", "success", "win_rate"]
    """What makes an evaluation the best one: its mean return; its success rate (episodes that report is_success); or,
    in games, its win rate, where a draw counts as half a win. The mean return decides between equal rates."""
    eval_deterministic: bool
    """Take the most likely action in evaluations instead of a sampled one."""
    max_eval_episode_steps: int
    """Steps after which an episode of an evaluation or a video is cut off, and marked as such."""
    checkpoint_every_timesteps: int
    """Environment steps between checkpoints, or updates with a dataset alone; 0 writes one only at the end."""
    keep_checkpoints: int
    """Number of most recent checkpoints to keep, in addition to the best one."""
    log_every_timesteps: int
    """Environment steps between rows of the metric files, or updates with a dataset alone."""
    log_histograms_every: int
    """Environment steps, or updates with a dataset alone, between histograms of weights, gradients and activations in
    TensorBoard; 0 writes none."""
    info_keywords: InfoKeywords
    """Numbers in the environment's info that are logged and evaluated, as info/NAME: NAME for the mean over the steps
    of an episode, NAME:last, NAME:sum, NAME:min or NAME:max for the last one, the sum or an extreme."""
    track: Literal["none", "wandb"]
    """Experiment tracker to which metrics are sent as well (its extra must be installed)."""
    stop_at_reward: float | None
    """Stop when the mean return of an evaluation reaches this value."""
    stop_after_stale_evals: int | None
    """Stop after this many evaluations without a new best one."""
    max_time: float | None
    """Pause after this many seconds, with a checkpoint from which the run can be resumed."""
    algorithm: AlgorithmConfig
    """The algorithm's own settings."""

class PPOKeywords(RunKeywords, total=False):
    """Settings of PPOConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    num_steps: int
    """Steps per environment in one rollout."""
    learning_rate: float
    """Learning rate at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    gamma: float
    """Discount factor, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]: 0 uses one step, 1 the whole episode."""
    normalize_advantage: bool
    """Normalize the advantages of each minibatch to zero mean and unit standard deviation."""
    ent_coef: float
    """Weight of the entropy bonus."""
    vf_coef: float
    """Weight of the value loss, the mean squared error (without a factor of one half)."""
    max_grad_norm: float
    """Maximum norm of the gradient; larger gradients are scaled down."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critic's hidden layers; by default hidden_sizes."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    shared_network: bool
    """Share the hidden layers between actor and critic."""
    share_encoder: bool
    """Share the encoder between actor and critic, if there is one."""
    orthogonal_init: bool
    """Initialize weights orthogonally; otherwise uniformly."""
    log_std_init: float
    """Initial log standard deviation of continuous actions, scaled to [-1, 1] if they are bounded; with use_sde, of
    every entry of the exploration matrix."""
    use_sde: bool
    """Explore continuous actions by noise that depends on the state (gSDE) and is kept for several steps."""
    sde_sample_freq: int
    """Steps after which this noise is sampled again; -1 samples it once per rollout."""
    batch_size: int
    """Minibatch size; at most num_steps * num_envs, times the agents of a game that share the policy."""
    update_epochs: int
    """Number of epochs over each rollout."""
    clip_coef: float
    """How far the probability ratio may move from 1 before it is clipped."""
    clip_coef_schedule: Schedule
    """Schedule of clip_coef over the run, in the same form as learning_rate_schedule."""
    clip_vloss: bool
    """Also clip the change of the value to clip_coef, and use the larger of both losses."""
    target_kl: float | None
    """Stop the epochs before a minibatch whose approximate KL divergence exceeds this; none never stops them."""
    loss: LossFunction
    """Your own function in the place of the built-in one."""

class A2CKeywords(RunKeywords, total=False):
    """Settings of A2CConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    num_steps: int
    """Steps per environment in one rollout."""
    learning_rate: float
    """Learning rate of RMSprop at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    gamma: float
    """Discount factor, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]: 0 uses one step, 1 the whole rollout."""
    normalize_advantage: bool
    """Normalize the advantages of each rollout to zero mean and unit standard deviation."""
    ent_coef: float
    """Weight of the entropy bonus."""
    vf_coef: float
    """Weight of the value loss, the mean squared error (without a factor of one half)."""
    max_grad_norm: float
    """Maximum norm of the gradient; larger gradients are scaled down."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critic's hidden layers; by default hidden_sizes."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    shared_network: bool
    """Share the hidden layers between actor and critic."""
    share_encoder: bool
    """Share the encoder between actor and critic, if there is one."""
    orthogonal_init: bool
    """Initialize weights orthogonally; otherwise uniformly."""
    log_std_init: float
    """Initial log standard deviation of continuous actions, scaled to [-1, 1] if they are bounded; with use_sde, of
    every entry of the exploration matrix."""
    use_sde: bool
    """Explore continuous actions by noise that depends on the state (gSDE) and is kept for several steps."""
    sde_sample_freq: int
    """Steps after which this noise is sampled again; -1 samples it once per rollout."""
    rms_prop_eps: float
    """Epsilon of RMSprop, added to the root of the mean squared gradient."""
    loss: LossFunction
    """Your own function in the place of the built-in one."""

class DQNKeywords(RunKeywords, total=False):
    """Settings of DQNConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    buffer_size: int
    """Capacity of the replay buffer, in transitions; new transitions replace the oldest."""
    learning_starts: int
    """Transitions collected with random actions before the first update."""
    train_freq: int
    """Number of transitions, summed over environments, between rounds of updates."""
    gradient_steps: int
    """Updates per train_freq transitions; the ratio of the two is the update-to-data ratio, and -1 makes it 1."""
    gamma: float
    """Discount factor, in [0, 1]."""
    n_step: int
    """Number of rewards that are summed before bootstrapping; a window never crosses the end of an episode."""
    target_update_every_timesteps: int | None
    """Environment steps between updates of the target network; 10,000 if neither unit is given."""
    target_update_every_updates: int | None
    """The same, counted in updates; give only one of the two."""
    tau: float
    """Fraction by which the target network moves towards the online network at each update; 1 copies it."""
    exploration_initial_eps: float
    """Probability of a random action at the start, drawn separately for each environment."""
    exploration_final_eps: float
    """Probability of a random action after exploration_fraction."""
    exploration_fraction: float
    """Fraction of the training budget over which this probability decreases linearly."""
    max_grad_norm: float
    """Maximum norm of the gradient; larger gradients are scaled down."""
    td_loss: Literal["huber", "mse"]
    """Loss of the temporal-difference error, for distribution none."""
    double: bool
    """Choose the next action with the online network and evaluate it with the target network (arXiv:1509.06461)."""
    dueling: bool
    """Use separate streams for the state value and the advantages (arXiv:1511.06581)."""
    noisy: bool
    """Explore by learned noise in the upper layers (arXiv:1706.10295) instead of random actions; epsilon is then
    0."""
    distribution: Distribution
    """What to learn about the return of each action: its mean, a c51 histogram, or its quantiles."""
    num_atoms: int
    """Number of atoms of the c51 histogram."""
    v_min: float
    """Smallest return that the c51 histogram represents."""
    v_max: float
    """Largest return that the c51 histogram represents."""
    num_quantiles: int
    """Number of quantiles, for distribution quantile."""
    prioritized: bool
    """Replay transitions with large errors more often (arXiv:1511.05952)."""
    priority_alpha: float
    """How strongly the error determines the priority; 0 samples uniformly."""
    priority_beta: float
    """Initial exponent of the importance weights, which increases linearly to 1."""
    loss: LossFunction
    """Your own function in the place of the built-in one."""

class SACKeywords(RunKeywords, total=False):
    """Settings of SACConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    buffer_size: int
    """Capacity of the replay buffer, in transitions; new transitions replace the oldest."""
    learning_starts: int
    """Transitions collected with random actions before the first update."""
    train_freq: int
    """Number of transitions, summed over environments, between rounds of updates."""
    gradient_steps: int
    """Updates per train_freq transitions; the ratio of the two is the update-to-data ratio, and -1 makes it 1."""
    gamma: float
    """Discount factor, in [0, 1]."""
    n_step: int
    """Number of rewards that are summed before bootstrapping; a window never crosses the end of an episode."""
    tau: float
    """Fraction by which the target networks move towards the online networks at each update."""
    num_critics: int
    """Number of critics, batched as one network; the target is their minimum."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers; by default hidden_sizes."""
    critic_layer_norm: bool
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450), which limits how far values of
    actions that the data lacks are overestimated."""
    share_encoder: bool | None
    """Let the actor use the critics' encoder, which is then trained by their loss only; otherwise each has its own.
    None shares it for images."""
    ent_coef: float | None
    """Weight of the entropy; none learns it, with target_entropy as the target."""
    ent_coef_init: float
    """Initial value of the learned weight."""
    target_entropy: float | None
    """Target of the entropy if its weight is learned; none uses minus the number of action components."""
    critic_subset: int | None
    """Take the minimum over this many target critics, chosen at random for every update, and let the actor maximize
    the mean of all critics; none uses the minimum of all critics for both."""
    use_sde: bool
    """Explore by noise that depends on the state (gSDE) and is kept for several steps."""
    sde_sample_freq: int
    """Steps after which this noise is sampled again; -1 samples it once per train_freq transitions."""
    use_sde_at_warmup: bool
    """Use this noise before learning_starts as well, instead of uniformly random actions."""
    log_std_init: float
    """Initial log standard deviation of every entry of the exploration matrix of use_sde."""
    action_noise: AddedNoiseName
    """Noise added to sampled actions: none, independent at each step, or correlated in time."""
    action_noise_sigma: float
    """Standard deviation of action_noise, for actions scaled to [-1, 1]."""
    critic_loss: LossFunction
    """Your own function in the place of the built-in one."""
    actor_loss: LossFunction
    """Your own function in the place of the built-in one."""
    temperature_loss: LossFunction
    """Your own function in the place of the built-in one."""

class TD3Keywords(RunKeywords, total=False):
    """Settings of TD3Config."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    buffer_size: int
    """Capacity of the replay buffer, in transitions; new transitions replace the oldest."""
    learning_starts: int
    """Transitions collected with random actions before the first update."""
    train_freq: int
    """Number of transitions, summed over environments, between rounds of updates."""
    gradient_steps: int
    """Updates per train_freq transitions; the ratio of the two is the update-to-data ratio, and -1 makes it 1."""
    gamma: float
    """Discount factor, in [0, 1]."""
    n_step: int
    """Number of rewards that are summed before bootstrapping; a window never crosses the end of an episode."""
    tau: float
    """Fraction by which the target networks move towards the online networks at each update."""
    num_critics: int
    """Number of critics, batched as one network; the target is their minimum, and the actor maximizes the first."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers; by default hidden_sizes."""
    critic_layer_norm: bool
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450), which limits how far values of
    actions that the data lacks are overestimated."""
    share_encoder: bool | None
    """Let the actor use the critics' encoder, which is then trained by their loss only; otherwise each has its own.
    None shares it for images."""
    policy_delay: int
    """Updates of the critics per update of the actor and the target networks."""
    target_policy_noise: float
    """Standard deviation of the noise on target actions, for actions scaled to [-1, 1]; 0 for none."""
    target_noise_clip: float
    """Maximum absolute value of this noise."""
    action_noise: ActionNoiseName
    """Exploration noise: independent at each step, or correlated in time."""
    action_noise_sigma: float
    """Standard deviation of the exploration noise, for actions scaled to [-1, 1]."""
    critic_loss: LossFunction
    """Your own function in the place of the built-in one."""
    actor_loss: LossFunction
    """Your own function in the place of the built-in one."""

class RecurrentPPOKeywords(RunKeywords, total=False):
    """Settings of RecurrentPPOConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    num_steps: int
    """Steps per environment in one rollout."""
    learning_rate: float
    """Learning rate at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    gamma: float
    """Discount factor, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]: 0 uses one step, 1 the whole episode."""
    normalize_advantage: bool
    """Normalize the advantages of each minibatch to zero mean and unit standard deviation."""
    ent_coef: float
    """Weight of the entropy bonus."""
    vf_coef: float
    """Weight of the value loss, the mean squared error (without a factor of one half)."""
    max_grad_norm: float
    """Maximum norm of the gradient; larger gradients are scaled down."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers after the core."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critic's hidden layers; by default hidden_sizes."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    shared_network: bool
    """Share the hidden layers between actor and critic."""
    share_encoder: bool
    """Share the encoder between actor and critic, if there is one."""
    orthogonal_init: bool
    """Initialize weights orthogonally; otherwise uniformly."""
    log_std_init: float
    """Initial log standard deviation of continuous actions, scaled to [-1, 1] if they are bounded; with use_sde, of
    every entry of the exploration matrix."""
    use_sde: bool
    """Explore continuous actions by noise that depends on the state (gSDE) and is kept for several steps."""
    sde_sample_freq: int
    """Steps after which this noise is sampled again; -1 samples it once per rollout."""
    batch_size: int
    """Minibatch size; at most num_steps * num_envs, times the agents of a game that share the policy."""
    update_epochs: int
    """Number of epochs over each rollout."""
    clip_coef: float
    """How far the probability ratio may move from 1 before it is clipped."""
    clip_coef_schedule: Schedule
    """Schedule of clip_coef over the run, in the same form as learning_rate_schedule."""
    clip_vloss: bool
    """Also clip the change of the value to clip_coef, and use the larger of both losses."""
    target_kl: float | None
    """Stop the epochs before a minibatch whose approximate KL divergence exceeds this; none never stops them."""
    core: CoreName
    """Recurrent core between encoder and hidden layers."""
    core_size: int
    """Size of the hidden state of each recurrent layer; an lstm also has a cell state of this size."""
    core_layers: int
    """Number of recurrent layers."""
    share_core: bool
    """Share one core between actor and critic, which is faster, but the value loss can dominate."""
    sequence_length: int
    """Steps of backpropagation through time; must divide num_steps and batch_size."""
    loss: LossFunction
    """Your own function in the place of the built-in one."""

class MAPPOKeywords(RunKeywords, total=False):
    """Settings of MAPPOConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    num_steps: int
    """Steps per environment in one rollout."""
    learning_rate: float
    """Learning rate at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    gamma: float
    """Discount factor, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]: 0 uses one step, 1 the whole episode."""
    normalize_advantage: bool
    """Normalize the advantages of each minibatch to zero mean and unit standard deviation."""
    ent_coef: float
    """Weight of the entropy bonus."""
    vf_coef: float
    """Weight of the value loss, the mean squared error (without a factor of one half)."""
    max_grad_norm: float
    """Maximum norm of the gradient; larger gradients are scaled down."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critic's hidden layers; by default hidden_sizes."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    shared_network: bool
    """Share the hidden layers between actor and critic."""
    share_encoder: bool
    """Share the encoder between actor and critic, if there is one."""
    orthogonal_init: bool
    """Initialize weights orthogonally; otherwise uniformly."""
    log_std_init: float
    """Initial log standard deviation of continuous actions, scaled to [-1, 1] if they are bounded; with use_sde, of
    every entry of the exploration matrix."""
    use_sde: bool
    """Explore continuous actions by noise that depends on the state (gSDE) and is kept for several steps."""
    sde_sample_freq: int
    """Steps after which this noise is sampled again; -1 samples it once per rollout."""
    batch_size: int
    """Minibatch size; at most num_steps * num_envs, times the agents of a game that share the policy."""
    update_epochs: int
    """Number of epochs over each rollout."""
    clip_coef: float
    """How far the probability ratio may move from 1 before it is clipped."""
    clip_coef_schedule: Schedule
    """Schedule of clip_coef over the run, in the same form as learning_rate_schedule."""
    clip_vloss: bool
    """Also clip the change of the value to clip_coef, and use the larger of both losses."""
    target_kl: float | None
    """Stop the epochs before a minibatch whose approximate KL divergence exceeds this; none never stops them."""
    critic_input: Literal["auto", "state", "observations"]
    """What the critic of a game reads besides an agent's own observation: state, which is that of the game;
    observations, those of all agents side by side; auto uses the state if the game has one."""
    loss: LossFunction
    """Your own function in the place of the built-in one."""

class BCKeywords(RunKeywords, total=False):
    """Settings of BCConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    imitation: Literal["mean", "distribution"]
    """What imitates continuous actions: mean, by least squares; distribution, by maximum likelihood of a normal whose
    deviation is learned. Discrete actions are always imitated by maximum likelihood."""
    loss: LossFunction
    """Your own function in the place of the built-in one."""

class IQLKeywords(RunKeywords, total=False):
    """Settings of IQLConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    buffer_size: int
    """Capacity of the replay buffer, in transitions; new transitions replace the oldest."""
    learning_starts: int
    """Transitions collected with random actions before the first update."""
    train_freq: int
    """Number of transitions, summed over environments, between rounds of updates."""
    gradient_steps: int
    """Updates per train_freq transitions; the ratio of the two is the update-to-data ratio, and -1 makes it 1."""
    gamma: float
    """Discount factor, in [0, 1]."""
    n_step: int
    """Number of rewards that are summed before bootstrapping; a window never crosses the end of an episode."""
    tau: float
    """Fraction by which the target networks move towards the online networks at each update."""
    num_critics: int
    """Number of critics, batched as one network; the target is their minimum."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers; by default hidden_sizes."""
    critic_layer_norm: bool
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450), which limits how far values of
    actions that the data lacks are overestimated."""
    share_encoder: bool | None
    """Let the actor use the critics' encoder, which is then trained by their loss only; otherwise each has its own.
    None shares it for images."""
    expectile: float
    """Which expectile of the critics' values the state value learns: 0.5 is their mean, near 1 almost their maximum."""
    inverse_temperature: float
    """How much more the actor imitates better actions: a weight of exp(inverse_temperature * advantage)."""
    max_weight: float
    """Maximum of this weight."""
    actor_learning_rate_schedule: Schedule
    """Schedule of the actor's learning rate alone, in the same form as learning_rate_schedule; both are multiplied."""
    value_loss: LossFunction
    """Your own function in the place of the built-in one."""
    critic_loss: LossFunction
    """Your own function in the place of the built-in one."""
    actor_loss: LossFunction
    """Your own function in the place of the built-in one."""

class AWACKeywords(RunKeywords, total=False):
    """Settings of AWACConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    buffer_size: int
    """Capacity of the replay buffer, in transitions; new transitions replace the oldest."""
    learning_starts: int
    """Transitions collected with random actions before the first update."""
    train_freq: int
    """Number of transitions, summed over environments, between rounds of updates."""
    gradient_steps: int
    """Updates per train_freq transitions; the ratio of the two is the update-to-data ratio, and -1 makes it 1."""
    gamma: float
    """Discount factor, in [0, 1]."""
    n_step: int
    """Number of rewards that are summed before bootstrapping; a window never crosses the end of an episode."""
    tau: float
    """Fraction by which the target networks move towards the online networks at each update."""
    num_critics: int
    """Number of critics, batched as one network; the target is their minimum."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers; by default hidden_sizes."""
    critic_layer_norm: bool
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450), which limits how far values of
    actions that the data lacks are overestimated."""
    share_encoder: bool | None
    """Let the actor use the critics' encoder, which is then trained by their loss only; otherwise each has its own.
    None shares it for images."""
    temperature: float
    """How little the actor prefers better actions: it imitates an action with weight exp(advantage / temperature)."""
    max_weight: float
    """Maximum of this weight."""
    critic_loss: LossFunction
    """Your own function in the place of the built-in one."""
    actor_loss: LossFunction
    """Your own function in the place of the built-in one."""

class TD3BCKeywords(RunKeywords, total=False):
    """Settings of TD3BCConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    tau: float
    """Fraction by which the target networks move towards the online networks at each update."""
    num_critics: int
    """Number of critics, batched as one network; the target is their minimum, and the actor maximizes the first."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers; by default hidden_sizes."""
    critic_layer_norm: bool
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450), which limits how far values of
    actions that the data lacks are overestimated."""
    share_encoder: bool | None
    """Let the actor use the critics' encoder, which is then trained by their loss only; otherwise each has its own.
    None shares it for images."""
    policy_delay: int
    """Updates of the critics per update of the actor and the target networks."""
    target_policy_noise: float
    """Standard deviation of the noise on target actions, for actions scaled to [-1, 1]; 0 for none."""
    target_noise_clip: float
    """Maximum absolute value of this noise."""
    gamma: float
    """Discount factor, in [0, 1]."""
    alpha: float
    """Weight of the critic's value against the squared distance to the recorded actions; values are divided by their
    mean size, so their scale does not matter. 0 imitates only."""
    critic_loss: LossFunction
    """Your own function in the place of the built-in one."""
    actor_loss: LossFunction
    """Your own function in the place of the built-in one."""

class CQLKeywords(RunKeywords, total=False):
    """Settings of CQLConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    tau: float
    """Fraction by which the target networks move towards the online networks at each update."""
    num_critics: int
    """Number of critics, batched as one network; the target is their minimum."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers; by default hidden_sizes."""
    critic_layer_norm: bool
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450), which limits how far values of
    actions that the data lacks are overestimated."""
    share_encoder: bool | None
    """Let the actor use the critics' encoder, which is then trained by their loss only; otherwise each has its own.
    None shares it for images."""
    ent_coef: float | None
    """Weight of the entropy; none learns it, with target_entropy as the target."""
    ent_coef_init: float
    """Initial value of the learned weight."""
    target_entropy: float | None
    """Target of the entropy if its weight is learned; none uses minus the number of action components."""
    critic_subset: int | None
    """Take the minimum over this many target critics, chosen at random for every update, and let the actor maximize
    the mean of all critics; none uses the minimum of all critics for both."""
    gamma: float
    """Discount factor, in [0, 1]."""
    cql_alpha: float | None
    """Weight of the conservative term in the critics' loss; 0 leaves it out, and none is 5 for continuous actions, 1
    for discrete ones."""
    num_sampled_actions: int
    """Actions per transition that are drawn from each of three distributions to estimate the term: uniform, and the
    policy at the observation and at the next observation."""
    critic_loss: LossFunction
    """Your own function in the place of the built-in one."""
    actor_loss: LossFunction
    """Your own function in the place of the built-in one."""
    temperature_loss: LossFunction
    """Your own function in the place of the built-in one."""

class ReBRACKeywords(RunKeywords, total=False):
    """Settings of ReBRACConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """Number of features that an encoder returns, per image; flat returns as many as there are numbers."""
    image_scale: float | None
    """Factor for image values; none maps the bounds of the observation space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto chooses the smaller of the first and the last."""
    learning_rate: float
    """Learning rate of Adam at the start."""
    learning_rate_schedule: Schedule
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    batch_size: int
    """Transitions in one update."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Activation function of the hidden layers."""
    tau: float
    """Fraction by which the target networks move towards the online networks at each update."""
    num_critics: int
    """Number of critics, batched as one network; the target is their minimum, and the actor maximizes the first."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers; by default hidden_sizes."""
    critic_layer_norm: bool
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450)."""
    share_encoder: bool | None
    """Let the actor use the critics' encoder, which is then trained by their loss only; otherwise each has its own.
    None shares it for images."""
    policy_delay: int
    """Updates of the critics per update of the actor and the target networks."""
    target_policy_noise: float
    """Standard deviation of the noise on target actions, for actions scaled to [-1, 1]; 0 for none."""
    target_noise_clip: float
    """Maximum absolute value of this noise."""
    gamma: float
    """Discount factor, in [0, 1]."""
    actor_penalty: float
    """Weight of the squared distance between the actor's and the recorded action in the actor's loss; the paper's
    beta_1."""
    critic_penalty: float
    """Weight of the same distance for the next actions, which lowers the critics' targets; the paper's beta_2."""
    critic_loss: LossFunction
    """Your own function in the place of the built-in one."""
    actor_loss: LossFunction
    """Your own function in the place of the built-in one."""
