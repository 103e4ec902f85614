"""Our own small environments, registered with Gymnasium: `rl_training.envs.tasks:rl_training/Catch-v0`.

Importing this package registers all of them, so an id does not depend on the file its environment is in.
"""

from rl_training.envs.tasks import catch, grids, locks, memory

__all__ = ["catch", "grids", "locks", "memory"]
