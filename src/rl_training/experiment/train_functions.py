"""`train_ppo` and the other training functions: train from a config, with settings as keywords."""

from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.experiment.run import TrainResult
from rl_training.experiment.start import train


def train_ppo(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train PPO; keywords override settings of the run and of the algorithm."""
    return _train_algorithm("ppo", cfg, overrides)


def train_a2c(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train A2C; keywords override settings of the run and of the algorithm."""
    return _train_algorithm("a2c", cfg, overrides)


def train_dqn(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train DQN; keywords override settings of the run and of the algorithm."""
    return _train_algorithm("dqn", cfg, overrides)


def train_sac(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train SAC; keywords override settings of the run and of the algorithm."""
    return _train_algorithm("sac", cfg, overrides)


def train_td3(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train TD3; keywords override settings of the run and of the algorithm."""
    return _train_algorithm("td3", cfg, overrides)


def train_recurrent_ppo(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train RecurrentPPO; keywords override settings of the run and of the algorithm."""
    return _train_algorithm("recurrent_ppo", cfg, overrides)


def train_mappo(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train MAPPO; keywords override settings of the run and of the algorithm."""
    return _train_algorithm("mappo", cfg, overrides)


def _train_algorithm(algo: str, cfg: TrainConfig, overrides: dict[str, Any]) -> TrainResult:
    if cfg.algo != algo:
        raise ConfigError([f"algo is '{cfg.algo}', but train_{algo} takes algo '{algo}'"])
    return train(cfg.with_overrides(**overrides))
