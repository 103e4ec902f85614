"""Names of settings in other libraries, their names here, and what to do about those that have none.

Sources: Stable-Baselines3 and its Zoo, RLlib, CleanRL.
"""

import re
from collections.abc import Iterable

_OTHERS = {
    "learning_rate": "lr", "total_timesteps": "n_timesteps timesteps max_timesteps", "env_id": "env env_name",
    "num_envs": "n_envs num_envs_per_worker num_envs_per_env_runner",
    "num_steps": "n_steps rollout_length rollout_fragment_length",
    "update_epochs": "n_epochs num_epochs num_sgd_iter", "batch_size": "minibatch_size sgd_minibatch_size",
    "clip_coef": "clip_range clip_param eps_clip", "clip_vloss": "clip_range_vf",
    "gae_lambda": "lam lambda lambda_", "ent_coef": "entropy_coef entropy_coeff",
    "vf_coef": "value_coef vf_loss_coeff", "max_grad_norm": "grad_clip", "normalize_advantage": "norm_adv",
    "hidden_sizes": "net_arch hidden_dim fcnet_hiddens", "activation": "activation_fn fcnet_activation",
    "orthogonal_init": "ortho_init", "encoder_kwargs": "features_extractor_kwargs",
    "target_update_every_timesteps":
        "target_update_interval target_network_frequency target_network_update_freq",
    "tau": "polyak", "exploration_initial_eps": "start_e", "exploration_final_eps": "end_e",
    "double": "double_q", "policy_delay": "policy_frequency", "num_critics": "n_critics",
    "ent_coef_init": "initial_alpha", "num_quantiles": "n_quantiles", "prioritized": "prioritized_replay",
    "buffer_size": "replay_size", "learning_starts": "learning_delay", "eval_every_timesteps": "eval_freq",
    "num_eval_episodes": "n_eval_episodes evaluation_duration", "eval_deterministic": "deterministic",
    "checkpoint_every_timesteps": "save_freq", "log_every_timesteps": "log_interval",
    "output_dir": "log_dir log_folder save_path", "track": "wandb",
    "core_size": "lstm_hidden_size lstm_cell_size", "core_layers": "n_lstm_layers",
    "env_kwargs": "env_config", "env_backend": "vec_env_type",
    "normalize_obs": "vecnormalize normalize observation_filter",
    "max_episode_steps": "max_steps time_limit horizon", "env_wrappers": "env_wrapper wrapper_class",
}  # fmt: skip
OTHER_NAMES = {other: ours for ours, others in _OTHERS.items() for other in others.split()}

_BACKEND = "'env_backend' says where environments run: sync, async (one process each), native or envpool"
_EVALUATION = (
    "a run builds its own evaluation environments; see 'eval_every_timesteps' and 'num_eval_episodes'"
)
_MONITOR = "episode returns and lengths are always logged, in metrics.csv of the run folder; leave it out"
_NO_PENALTY = "there is no KL penalty; 'target_kl' stops the epochs of an update at that KL divergence"
_OPTIMIZER = "the optimizer belongs to the algorithm; 'learning_rate' and 'learning_rate_schedule' can be set"
_REPLAY = "the replay buffer has settings of its own, such as 'buffer_size' and 'n_step'"
_WORKERS = "'num_envs' is the number of environments, and 'env_backend' async gives each a process"
EXPLANATIONS: dict[str, tuple[str, ...]] = {
    "policy": (
        "there is no policy argument: 'encoder' auto and 'hidden_sizes' describe the network; leave it out",
    ),
    "policy_kwargs": (
        "its entries are settings: net_arch is 'hidden_sizes', activation_fn is 'activation', "
        "features_extractor_class is 'encoder'",
    ),
    "features_extractor_class": (
        "use 'encoder': your class in Python, its module:Name in YAML and flags (docs/custom-components.md)",
    ),
    "optimizer_class": (_OPTIMIZER,),
    "optimizer_kwargs": (_OPTIMIZER,),
    "policy_lr": ("all networks share one 'learning_rate'",),
    "q_lr": ("all networks share one 'learning_rate'",),
    "anneal_lr": ("use 'learning_rate_schedule' linear or constant",),
    "verbose": ("use learn(progress=False) in Python or --quiet on the command line",),
    "progress_bar": ("use learn(progress=True) in Python; terminals show a bar unless you give --quiet",),
    "tensorboard_log": (
        "TensorBoard files are always written, into the run folder; 'output_dir' chooses where run folders are created",
    ),
    "tb_log_name": ("a run folder is named after its algorithm, environment, seed and time; leave it out",),
    "callback": ("use learn(callbacks=[...]) in Python",),
    "reset_num_timesteps": (
        "call learn() again to continue, or start_from(path) to start a new run from the weights",
    ),
    "vec_env_cls": (_BACKEND,),
    "vec_env": (_BACKEND,),
    "vec_env_kwargs": (_BACKEND,),
    "num_workers": (_WORKERS,),
    "num_rollout_workers": (_WORKERS,),
    "num_env_runners": (_WORKERS,),
    "monitor_dir": (_MONITOR,),
    "monitor_kwargs": (_MONITOR,),
    "eval_env": (_EVALUATION,),
    "evaluation_interval": ("use 'eval_every_timesteps', which counts environment steps",),
    "best_model_save_path": (
        "the best checkpoint is always kept, as checkpoints/best of the run folder; leave it out",
    ),
    "capture_video": ("record a trained agent with rl-training eval RUN --record DIR",),
    "replay_buffer_class": (_REPLAY,),
    "replay_buffer_kwargs": (_REPLAY,),
    "replay_buffer_config": (_REPLAY,),
    "optimize_memory_usage": (
        "replay stores each frame once without being asked; only 'buffer_size' is yours to set",
    ),
    "train_batch_size": (
        "a rollout has 'num_steps' * 'num_envs' steps, which give its batch size",
        "use 'batch_size'",
    ),
    "num_minibatches": ("use 'batch_size', the size of a minibatch: num_steps * num_envs / num_minibatches",),
    "kl_coeff": (_NO_PENALTY,),
    "kl_target": (_NO_PENALTY,),
    "twin_q": ("use 'num_critics' 2",),
    "autotune": ("leave out 'ent_coef' to learn it",),
    "model": (
        "its entries are settings: fcnet_hiddens is 'hidden_sizes', fcnet_activation is 'activation'; an agent with "
        "memory is the algorithm recurrent_ppo",
    ),
    "use_lstm": ("an agent with memory is the algorithm recurrent_ppo",),
    "framework": ("every network is a PyTorch network; leave it out",),
    "num_gpus": ("use 'device' cuda",),
    "cuda": ("use 'device' cuda or cpu",),
}
"""Sentences for names without a counterpart; the first one applies whose quoted settings the algorithm has."""
OF_EVERY_RUN = {"env_id", "num_envs"}
"""Settings by which lists of all settings of a run are recognised."""


def here_called(name: str) -> str | None:
    """Return our name for a setting of another library; None if it is not known."""
    return OTHER_NAMES.get(_plain(name))


def explanation(name: str, known: Iterable[str]) -> str | None:
    """Return what to do about a setting of another library that has no counterpart here.

    `known` are the settings of the run and its algorithm, or their flags; None if they are something else.
    """
    settings = {_plain(setting) for setting in known}
    if not settings >= OF_EVERY_RUN:
        return None
    sentences = EXPLANATIONS.get(_plain(name), ())
    return next((said for said in sentences if settings.issuperset(settings_in(said))), None)


def settings_in(sentence: str) -> list[str]:
    """Return the settings that a sentence quotes.

    >>> settings_in("use 'device' cuda")
    ['device']
    """
    return re.findall(r"'([a-z_]+)'", sentence)


def _plain(name: str) -> str:
    """Return a setting's name, which may be typed as a flag."""
    return name.strip("-").replace("-", "_").lower()
