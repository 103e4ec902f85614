"""Settings as keyword arguments, for type checkers and editors.

Written by scripts/write_keywords.py: do not edit.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict

from gymnasium import Env

from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import Wrappers
from rl_training.config.schedules import Schedule
from rl_training.config.train_config import AlgorithmConfig
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
    """Gymnasium id, e.g. CartPole-v1; `module:Id` imports the module first."""
    seed: int
    """Root of all random streams, 0 or more."""
    output_dir: str | PathLike[str]
    """Folder that run folders are made in."""
    total_timesteps: int
    """Environment steps to train for, summed over environments."""
    device: str
    """torch device; auto is the CPU, which is faster for small networks."""
    num_threads: int | Literal["auto"]
    """Threads for torch and NumPy's products; auto is one for small networks and a few for CNNs and wide layers."""
    num_envs: int
    """Environments stepped side by side."""
    env_backend: Literal["sync", "async", "native"]
    """In this process, one process each with shared memory, or the environment's own vector implementation."""
    env_kwargs: dict[str, Any]
    """Arguments for the environment's constructor, as a YAML map."""
    env_wrappers: Wrappers
    """Wrappers around each environment, innermost first: module:Wrapper, or {module:Wrapper: {argument: value}}."""
    max_episode_steps: int | None
    """Steps after which an episode is truncated, in the place of the environment's own time limit."""
    env_timeout: float
    """Seconds a worker of the async backend may take for one step before it counts as hung."""
    rebuild_envs: Literal["auto", "on", "off"]
    """Build environments anew for every episode; auto does so if they keep something across resets."""
    max_restarts: int
    """How often a run may rebuild itself from its last checkpoint after an environment failed."""
    preprocessing: Literal["none", "image", "atari"]
    """What is done to observations: nothing, resizing and stacking of images, or the usual treatment of Atari games."""
    image_size: int | None
    """Height and width that images are scaled to; by default 84 for atari, and as they are for image."""
    grayscale: bool | None
    """Show images in shades of gray; by default for atari, and not for image."""
    frame_stack: int | None
    """How many frames make one observation, oldest first; by default 4 for atari, and 1 for image."""
    noop_max: int
    """atari: a game begins with 1 to so many frames of doing nothing, by chance; 0 for none."""
    frame_skip: int
    """atari: how many frames an action lasts."""
    max_pool: bool
    """atari: show the brighter of the last two frames, as some games draw their sprites in turn."""
    terminal_on_life_loss: bool
    """atari: what comes after a lost life does not count for what came before; the game goes on all the same."""
    fire_reset: bool
    """atari: press FIRE at the beginning and after a lost life, in games that wait for it."""
    clip_reward: bool
    """atari: learn from the sign of rewards; logs and evaluations tell the score."""
    use_action_masks: Literal["auto", "on", "off"]
    """Heed what the environment says of allowed actions; auto does so if it says something."""
    normalize_obs: bool
    """Normalise observations by running statistics that are saved with the model."""
    normalize_reward: bool
    """Scale rewards by the running deviation of the return; reported returns stay raw."""
    eval_every_timesteps: int
    """Environment steps between evaluations; 0 evaluates at the end only."""
    num_eval_episodes: int
    """Episodes per evaluation."""
    best_by: Literal["reward", "success"]
    """What makes an evaluation the best: its mean return, or the part of its episodes that say is_success; among equal
    parts the mean return decides."""
    eval_deterministic: bool
    """Evaluate the most likely action instead of a sampled one."""
    max_eval_episode_steps: int
    """Steps after which an episode of an evaluation or a video that has not ended is cut off, and marked so."""
    checkpoint_every_timesteps: int
    """Environment steps between checkpoints; 0 writes one at the end only."""
    keep_checkpoints: int
    """How many of the newest checkpoints to keep, besides the best."""
    log_every_timesteps: int
    """Environment steps between rows of the metric files."""
    track: Literal["none", "wandb"]
    """Also send metrics to this experiment tracker (needs its extra)."""
    stop_at_reward: float | None
    """Stop once an evaluation's mean return reaches this."""
    stop_after_stale_evals: int | None
    """Stop after so many evaluations without a new best."""
    max_time: float | None
    """Pause after so many seconds, with a checkpoint to resume from."""
    algorithm: AlgorithmConfig
    """The algorithm's own settings."""


class PPOKeywords(RunKeywords, total=False):
    """Settings of PPOConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """How many features an encoder is asked for, per image; flat has as many as there are numbers."""
    image_scale: float | None
    """What image values are multiplied by; none brings the bounds of their space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto is the smaller of the first and the last."""
    num_steps: int
    """Steps per environment in one rollout."""
    learning_rate: float
    """Step size at the start."""
    learning_rate_schedule: Schedule
    """How the learning rate moves over the run: constant, linear or cosine to 0, linear:0.1 to a tenth, a list of
    [fraction, factor] pairs, or module:function from the fraction to the factor."""
    gamma: float
    """Discount per step, in [0, 1]."""
    gae_lambda: float
    """Trace of the advantage estimate, in [0, 1]: 0 is one step, 1 is the whole episode."""
    normalize_advantage: bool
    """Give the advantages of each minibatch zero mean and unit deviation."""
    ent_coef: float
    """Weight of the entropy bonus."""
    vf_coef: float
    """Weight of the value loss, which is the mean squared error without a factor of one half."""
    max_grad_norm: float
    """Largest norm of the whole gradient."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critic's hidden layers, if they are to be others."""
    activation: ActivationName
    """Nonlinearity of the hidden layers."""
    shared_network: bool
    """Let actor and critic share the hidden layers."""
    share_encoder: bool
    """Let actor and critic share the encoder, if there is one to share."""
    orthogonal_init: bool
    """Orthogonal initial weights; otherwise uniform."""
    log_std_init: float
    """Initial log deviation of continuous actions, where the range of a bounded action is [-1, 1]; with use_sde that of
    every entry of its matrices."""
    use_sde: bool
    """Explore continuous actions by noise that depends on the state (gSDE), and stays the same for some steps."""
    sde_sample_freq: int
    """Steps after which that noise is drawn anew; -1: once per rollout."""
    batch_size: int
    """Rows in one minibatch; at most num_steps * num_envs."""
    update_epochs: int
    """Passes over each rollout."""
    clip_coef: float
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_coef_schedule: Schedule
    """How clip_coef moves over the run, written as learning_rate_schedule is."""
    clip_vloss: bool
    """Also clip the value's change to clip_coef, and take the larger of both errors."""
    target_kl: float | None
    """Stop the epochs before a step on a minibatch whose approximate KL divergence exceeds this; none: never."""


class A2CKeywords(RunKeywords, total=False):
    """Settings of A2CConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """How many features an encoder is asked for, per image; flat has as many as there are numbers."""
    image_scale: float | None
    """What image values are multiplied by; none brings the bounds of their space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto is the smaller of the first and the last."""
    num_steps: int
    """Steps per environment in one rollout."""
    learning_rate: float
    """Step size of RMSprop at the start."""
    learning_rate_schedule: Schedule
    """How the learning rate moves over the run: constant, linear or cosine to 0, linear:0.1 to a tenth, a list of
    [fraction, factor] pairs, or module:function from the fraction to the factor."""
    gamma: float
    """Discount per step, in [0, 1]."""
    gae_lambda: float
    """Trace of the advantage estimate, in [0, 1]: 0 is one step, 1 is the whole rollout."""
    normalize_advantage: bool
    """Give the advantages of each rollout zero mean and unit deviation."""
    ent_coef: float
    """Weight of the entropy bonus."""
    vf_coef: float
    """Weight of the value loss, which is the mean squared error without a factor of one half."""
    max_grad_norm: float
    """Largest norm of the whole gradient."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critic's hidden layers, if they are to be others."""
    activation: ActivationName
    """Nonlinearity of the hidden layers."""
    shared_network: bool
    """Let actor and critic share the hidden layers."""
    share_encoder: bool
    """Let actor and critic share the encoder, if there is one to share."""
    orthogonal_init: bool
    """Orthogonal initial weights; otherwise uniform."""
    log_std_init: float
    """Initial log deviation of continuous actions, where the range of a bounded action is [-1, 1]; with use_sde that of
    every entry of its matrices."""
    use_sde: bool
    """Explore continuous actions by noise that depends on the state (gSDE), and stays the same for some steps."""
    sde_sample_freq: int
    """Steps after which that noise is drawn anew; -1: once per rollout."""
    rms_prop_eps: float
    """Added to the root of the mean squared gradient."""


class DQNKeywords(RunKeywords, total=False):
    """Settings of DQNConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """How many features an encoder is asked for, per image; flat has as many as there are numbers."""
    image_scale: float | None
    """What image values are multiplied by; none brings the bounds of their space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto is the smaller of the first and the last."""
    learning_rate: float
    """Step size of Adam at the start."""
    learning_rate_schedule: Schedule
    """How the learning rate moves over the run: constant, linear or cosine to 0, linear:0.1 to a tenth, a list of
    [fraction, factor] pairs, or module:function from the fraction to the factor."""
    buffer_size: int
    """Transitions that are remembered; the newest replace the oldest."""
    batch_size: int
    """Transitions in one update."""
    learning_starts: int
    """Transitions collected with random actions before the first update."""
    train_freq: int
    """Transitions, summed over environments, after which gradient_steps updates are due."""
    gradient_steps: int
    """Updates per train_freq transitions: their quotient is the update-to-data ratio; -1 makes it 1."""
    gamma: float
    """Discount per step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping; a window never crosses an episode's end."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Nonlinearity of the hidden layers."""
    target_update_every_timesteps: int | None
    """Environment steps between copies to the target network; 10,000 if neither unit is given."""
    target_update_every_updates: int | None
    """The same counted in updates; give one of the two."""
    tau: float
    """Part by which the target network moves to the online one each time; 1 copies it."""
    exploration_initial_eps: float
    """Probability of a random action at the start, one coin per environment."""
    exploration_final_eps: float
    """Probability of a random action after exploration_fraction."""
    exploration_fraction: float
    """Part of the budget over which that probability falls linearly."""
    max_grad_norm: float
    """Largest norm of the whole gradient."""
    td_loss: Literal["huber", "mse"]
    """Loss of the temporal difference, for distribution none."""
    double: bool
    """Choose the next action with the online network, value it with the target one (arXiv:1509.06461)."""
    dueling: bool
    """Separate streams for the state's value and the advantages (arXiv:1511.06581)."""
    noisy: bool
    """Explore by learned noise in the upper layers (arXiv:1706.10295) instead of random actions: epsilon is then 0."""
    distribution: Distribution
    """What is learned of each return: its mean, a c51 histogram, or its quantiles."""
    num_atoms: int
    """Bars of the c51 histogram."""
    v_min: float
    """Smallest return that the c51 histogram can hold."""
    v_max: float
    """Largest return that the c51 histogram can hold."""
    num_quantiles: int
    """Quantiles of distribution quantile."""
    prioritized: bool
    """Replay transitions with large errors more often (arXiv:1511.05952)."""
    priority_alpha: float
    """How much the error counts: 0 is uniform."""
    priority_beta: float
    """How much of the bias is undone at the start, rising linearly to 1."""


class SACKeywords(RunKeywords, total=False):
    """Settings of SACConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """How many features an encoder is asked for, per image; flat has as many as there are numbers."""
    image_scale: float | None
    """What image values are multiplied by; none brings the bounds of their space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto is the smaller of the first and the last."""
    learning_rate: float
    """Step size of Adam at the start."""
    learning_rate_schedule: Schedule
    """How the learning rate moves over the run: constant, linear or cosine to 0, linear:0.1 to a tenth, a list of
    [fraction, factor] pairs, or module:function from the fraction to the factor."""
    buffer_size: int
    """Transitions that are remembered; the newest replace the oldest."""
    batch_size: int
    """Transitions in one update."""
    learning_starts: int
    """Transitions collected with random actions before the first update."""
    train_freq: int
    """Transitions, summed over environments, after which gradient_steps updates are due."""
    gradient_steps: int
    """Updates per train_freq transitions: their quotient is the update-to-data ratio; -1 makes it 1."""
    gamma: float
    """Discount per step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping; a window never crosses an episode's end."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Nonlinearity of the hidden layers."""
    tau: float
    """Part by which the target networks move to the online ones."""
    num_critics: int
    """Critics, batched as one network; the target is the smallest of their values."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers, if they are to be others."""
    share_encoder: bool | None
    """Let the actor read the critics' encoder, which then learns from their loss alone; otherwise each has its own.
    None: for images."""
    ent_coef: float | None
    """Weight of the entropy; none learns it, towards target_entropy."""
    ent_coef_init: float
    """Where the learned weight begins."""
    target_entropy: float | None
    """Entropy that the learned weight aims at, if it is learned; none is minus the number of action components."""
    critic_subset: int | None
    """Take that minimum over so many target critics, drawn anew for every update, and let the actor follow the mean of
    all critics; none: both take the minimum of all."""
    use_sde: bool
    """Explore by noise that depends on the state (gSDE), and stays the same for some steps."""
    sde_sample_freq: int
    """Steps after which that noise is drawn anew; -1: once per train_freq transitions, when collecting begins."""
    use_sde_at_warmup: bool
    """Explore by that noise before learning_starts, too, in the place of uniformly random actions."""
    log_std_init: float
    """Initial log deviation of every entry of the matrices of use_sde."""
    action_noise: AddedNoiseName
    """Noise that is added to sampled actions: none, independent in every step, or correlated in time."""
    action_noise_sigma: float
    """Deviation of action_noise, where the range of an action is [-1, 1]."""


class TD3Keywords(RunKeywords, total=False):
    """Settings of TD3Config."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """How many features an encoder is asked for, per image; flat has as many as there are numbers."""
    image_scale: float | None
    """What image values are multiplied by; none brings the bounds of their space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto is the smaller of the first and the last."""
    learning_rate: float
    """Step size of Adam at the start."""
    learning_rate_schedule: Schedule
    """How the learning rate moves over the run: constant, linear or cosine to 0, linear:0.1 to a tenth, a list of
    [fraction, factor] pairs, or module:function from the fraction to the factor."""
    buffer_size: int
    """Transitions that are remembered; the newest replace the oldest."""
    batch_size: int
    """Transitions in one update."""
    learning_starts: int
    """Transitions collected with random actions before the first update."""
    train_freq: int
    """Transitions, summed over environments, after which gradient_steps updates are due."""
    gradient_steps: int
    """Updates per train_freq transitions: their quotient is the update-to-data ratio; -1 makes it 1."""
    gamma: float
    """Discount per step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping; a window never crosses an episode's end."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers."""
    activation: ActivationName
    """Nonlinearity of the hidden layers."""
    tau: float
    """Part by which the target networks move to the online ones."""
    num_critics: int
    """Critics, batched as one network; the target is the smallest of their values, the actor follows the first."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers, if they are to be others."""
    share_encoder: bool | None
    """Let the actor read the critics' encoder, which then learns from their loss alone; otherwise each has its own.
    None: for images."""
    policy_delay: int
    """Updates of the critics per update of actor and targets."""
    target_policy_noise: float
    """Deviation of the noise on the target's actions, where their range is [-1, 1]; 0 is none."""
    target_noise_clip: float
    """Largest size of that noise."""
    action_noise: ActionNoiseName
    """Exploration: independent in every step, or correlated in time."""
    action_noise_sigma: float
    """Deviation of the exploration noise, where the range of an action is [-1, 1]."""


class RecurrentPPOKeywords(RunKeywords, total=False):
    """Settings of RecurrentPPOConfig."""

    encoder_kwargs: dict[str, Any]
    """Arguments for the encoder's constructor, as a YAML map."""
    features_dim: int
    """How many features an encoder is asked for, per image; flat has as many as there are numbers."""
    image_scale: float | None
    """What image values are multiplied by; none brings the bounds of their space to 0 and 1."""
    image_channels: Literal["auto", "first", "last"]
    """Which axis of an image holds the channels; auto is the smaller of the first and the last."""
    num_steps: int
    """Steps per environment in one rollout."""
    learning_rate: float
    """Step size at the start."""
    learning_rate_schedule: Schedule
    """How the learning rate moves over the run: constant, linear or cosine to 0, linear:0.1 to a tenth, a list of
    [fraction, factor] pairs, or module:function from the fraction to the factor."""
    gamma: float
    """Discount per step, in [0, 1]."""
    gae_lambda: float
    """Trace of the advantage estimate, in [0, 1]: 0 is one step, 1 is the whole episode."""
    normalize_advantage: bool
    """Give the advantages of each minibatch zero mean and unit deviation."""
    ent_coef: float
    """Weight of the entropy bonus."""
    vf_coef: float
    """Weight of the value loss, which is the mean squared error without a factor of one half."""
    max_grad_norm: float
    """Largest norm of the whole gradient."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers after the core."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critic's hidden layers, if they are to be others."""
    activation: ActivationName
    """Nonlinearity of the hidden layers."""
    shared_network: bool
    """Let actor and critic share the hidden layers."""
    share_encoder: bool
    """Let actor and critic share the encoder, if there is one to share."""
    orthogonal_init: bool
    """Orthogonal initial weights; otherwise uniform."""
    log_std_init: float
    """Initial log deviation of continuous actions, where the range of a bounded action is [-1, 1]; with use_sde that of
    every entry of its matrices."""
    use_sde: bool
    """Explore continuous actions by noise that depends on the state (gSDE), and stays the same for some steps."""
    sde_sample_freq: int
    """Steps after which that noise is drawn anew; -1: once per rollout."""
    batch_size: int
    """Rows in one minibatch; at most num_steps * num_envs."""
    update_epochs: int
    """Passes over each rollout."""
    clip_coef: float
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_coef_schedule: Schedule
    """How clip_coef moves over the run, written as learning_rate_schedule is."""
    clip_vloss: bool
    """Also clip the value's change to clip_coef, and take the larger of both errors."""
    target_kl: float | None
    """Stop the epochs before a step on a minibatch whose approximate KL divergence exceeds this; none: never."""
    core: CoreName
    """What remembers, between encoder and hidden layers."""
    core_size: int
    """How many numbers each layer of it remembers; an lstm keeps twice as many."""
    core_layers: int
    """Layers of the core."""
    share_core: bool
    """Let actor and critic read one core, which is faster; but errors of the value may drown those of the policy."""
    sequence_length: int
    """Steps that errors travel back in time; must divide num_steps and batch_size."""
