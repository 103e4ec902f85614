"""Settings as data: `TrainConfig`, how its fields are checked, YAML, presets, schedules and `module:Name` paths.

Nothing here builds or trains anything; what a setting does lives with the code that reads it.
"""

from rl_training.config.train_config import (
    AlgorithmConfig,
    TrainConfig,
    algorithm_config_class,
    config_from_dict,
    known_algorithms,
    load_config,
)

__all__ = [
    "AlgorithmConfig",
    "TrainConfig",
    "algorithm_config_class",
    "config_from_dict",
    "known_algorithms",
    "load_config",
]
