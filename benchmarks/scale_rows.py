"""What `make scale` measures: per row a task, the default settings, and the candidates beside it.

A candidate is a dict of settings: edit it here. `DEFAULT` is one process, whose updates borrow idle cores where that
changes no bit (`num_threads: auto`); `ONE_THREAD` and `THREADS` are the same with one and two threads.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rows import BREAKOUT_PPO, CARTPOLE_PPO, CHEETAH_SAC

DEFAULT, ONE_THREAD, THREADS, ASYNC = "default", "one thread", "two threads", "env_backend async"
LOCAL: dict[str, Any] = {"engine": "local", "num_threads": 1}
SIDES: dict[str, dict[str, Any]] = {
    DEFAULT: {"engine": "local"},
    ONE_THREAD: LOCAL,
    THREADS: LOCAL | {"num_threads": 2},
}
"""The sides of every row."""


@dataclass(frozen=True)
class Row:
    """One task."""

    title: str
    algo: str
    env_id: str
    num_envs: int
    settings: dict[str, Any]
    """Settings of all sides."""
    candidates: dict[str, dict[str, Any]]
    """More sides: name -> the settings that differ from one process with one thread."""

    @property
    def sides(self) -> dict[str, dict[str, Any]]:
        """All sides, which take turns."""
        one_thread = {"num_threads": 1}
        return SIDES | {name: changes | one_thread for name, changes in self.candidates.items()}

    @property
    def compared(self) -> list[str]:
        """The sides that all others are compared with."""
        return [side for side in (DEFAULT, ONE_THREAD, THREADS, ASYNC) if side in self.sides]

    def key(self) -> dict[str, Any]:
        """Return what must be equal for earlier rounds to count, as plain data."""
        found = asdict(self)
        del found["title"]
        return found | {"sides": self.sides}


def processes(groups: int, lag: int | str, shards: int = 1, **more: Any) -> dict[str, Any]:
    """Return the settings of engine process."""
    return {"engine": "process", "env_groups": groups, "lag": lag, "learner_shards": shards} | more


USUAL: dict[str, dict[str, Any]] = {
    "2 groups, lag 0": processes(2, 0),
    "2 groups, lag 1": processes(2, 1),
    "2 groups, lag free": processes(2, "free"),
    "2 groups, lag 0, 2 shards": processes(2, 0, 2),
}
BESIDE_ASYNC: dict[str, dict[str, Any]] = {
    ASYNC: LOCAL | {"env_backend": "async"},
    "2 groups, lag 0": processes(2, 0),
    "2 groups, lag 1": processes(2, 1),
    "1 group, lag 1": processes(1, 1),
}
CHEETAH_PPO: dict[str, Any] = {
    "num_steps": 256,
    "batch_size": 512,
    "update_epochs": 16,
    "learning_rate": 4e-4,
    "hidden_sizes": (256,),
    "log_std_init": -1.0,
    "normalize_obs": True,
    "normalize_reward": True,
}
ROWS = {
    "busy": Row(
        "PPO, an environment of 1 ms", "ppo", "busy_env:Busy-v0", 8,
        {"num_steps": 32, "batch_size": 64, "update_epochs": 4, "hidden_sizes": (64, 64)}, USUAL,
    ),
    "ppo_half_cheetah": Row("PPO, HalfCheetah-v5", "ppo", "HalfCheetah-v5", 16, CHEETAH_PPO, USUAL),
    "ppo_breakout": Row(
        "PPO, Breakout, 8 games", "ppo", "BreakoutNoFrameskip-v4", 8,
        BREAKOUT_PPO | {"preprocessing": "atari", "rebuild_envs": "off"},  # else games are tried out first
        USUAL | {"1 group, lag 1, 2 shards": processes(1, 1, 2)},
    ),
    "ppo_cartpole": Row(
        "PPO, CartPole-v1", "ppo", "CartPole-v1", 8, CARTPOLE_PPO, USUAL | {"1 group, lag 1": processes(1, 1)},
    ),
    "sac_half_cheetah": Row(
        "SAC, HalfCheetah-v5", "sac", "HalfCheetah-v5", 1, CHEETAH_SAC | {"buffer_size": 100_000},
        {"1 group, lag 1": processes(1, 1), "2 shards": processes(1, 0, 2, num_samplers=0)},
    ),
    "async_cartpole": Row(
        "PPO, CartPole-v1, 16 environments, 20 epochs", "ppo", "CartPole-v1", 16, CARTPOLE_PPO, BESIDE_ASYNC,
    ),
    "async_cartpole_4": Row(
        "PPO, CartPole-v1, 16 environments, 4 epochs", "ppo", "CartPole-v1", 16,
        {"num_steps": 128, "batch_size": 512, "update_epochs": 4, "learning_rate": 2.5e-4, "hidden_sizes": (64, 64)},
        BESIDE_ASYNC,
    ),
}  # fmt: skip
