"""Settings as data: `TrainConfig`, field checks, YAML, presets, schedules and `module:Name` paths.

Nothing here builds or trains anything: the effect of a setting is implemented where it is used.
"""

from rl_training.config.train_config import (
    AlgorithmConfig,
    TrainConfig,
    UpdatePath,
    algorithm_config_class,
    config_from_dict,
    known_algorithms,
    load_config,
    read_settings,
)

__all__ = [
    "AlgorithmConfig",
    "TrainConfig",
    "UpdatePath",
    "algorithm_config_class",
    "config_from_dict",
    "known_algorithms",
    "load_config",
    "read_settings",
]
