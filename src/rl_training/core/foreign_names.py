"""Names of settings in other libraries, and their names here."""

_OTHERS = {
    "learning_rate": "lr", "total_timesteps": "n_timesteps timesteps max_timesteps", "env_id": "env env_name",
    "num_envs": "n_envs", "num_steps": "n_steps rollout_length", "update_epochs": "n_epochs num_epochs",
    "batch_size": "minibatch_size", "clip_coef": "clip_range clip_param eps_clip",
    "clip_vloss": "clip_range_vf", "gae_lambda": "lam lambda", "ent_coef": "entropy_coef",
    "vf_coef": "value_coef", "hidden_sizes": "net_arch policy_kwargs hidden_dim",
    "activation": "activation_fn", "orthogonal_init": "ortho_init", "encoder": "features_extractor_class",
    "encoder_kwargs": "features_extractor_kwargs",
    "target_update_every_timesteps": "target_update_interval target_network_frequency", "tau": "polyak",
    "num_critics": "n_critics", "num_quantiles": "n_quantiles", "prioritized": "prioritized_replay",
    "buffer_size": "replay_size", "learning_starts": "learning_delay", "eval_every_timesteps": "eval_freq",
    "num_eval_episodes": "n_eval_episodes", "checkpoint_every_timesteps": "save_freq",
    "log_every_timesteps": "log_interval", "output_dir": "log_dir log_folder save_path", "track": "wandb",
    "core_size": "lstm_hidden_size", "core_layers": "n_lstm_layers", "env_backend": "vec_env vec_env_type",
    "normalize_obs": "vecnormalize normalize", "max_episode_steps": "max_steps time_limit",
    "env_wrappers": "env_wrapper wrapper_class",
}  # fmt: skip
OTHER_NAMES = {other: ours for ours, others in _OTHERS.items() for other in others.split()}


def here_called(name: str) -> str | None:
    """Return our name for a setting of another library; None if it is not known."""
    return OTHER_NAMES.get(name.strip("-").replace("-", "_").lower())
