"""`train_ppo` and its like: training with settings on top, for whoever prefers a function to a class."""

from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.experiment.run import TrainResult
from rl_training.experiment.start import train


def train_ppo(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train PPO; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("ppo", cfg, overrides)


def train_a2c(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train A2C; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("a2c", cfg, overrides)


def train_dqn(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train DQN; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("dqn", cfg, overrides)


def train_sac(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train SAC; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("sac", cfg, overrides)


def train_td3(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train TD3; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("td3", cfg, overrides)


def train_recurrent_ppo(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train RecurrentPPO; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("recurrent_ppo", cfg, overrides)


def _train_algorithm(algo: str, cfg: TrainConfig, overrides: dict[str, Any]) -> TrainResult:
    if cfg.algo != algo:
        raise ConfigError([f"algo is '{cfg.algo}', but train_{algo} takes algo '{algo}'"])
    return train(cfg.with_overrides(**overrides))
