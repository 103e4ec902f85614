"""What `make bench` measures: one entry per row of the tables, with the settings that every side gets.

Settings are written once, under our names; `peers.py` translates them. Steps are for about ten seconds of the slowest
side on one core; what comes before `warm_up` steps (compilation, `learning_starts`, the first touch of memory) is left
out on every side.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
OURS, LIMIT = "ours", "products"
SB3, SBX, CONTRIB, TIANSHOU, RLOX = "stable-baselines3", "sbx", "sb3-contrib", "tianshou", "rlox"


@dataclass(frozen=True)
class Speed:
    """Steps per second of training, of us and of peers with the same settings."""

    kind: ClassVar[str] = "speed"
    name: str
    title: str
    algo: str
    env_id: str
    num_envs: int
    steps: int
    """Measured steps; a multiple of `unit`."""
    warm_up: int
    settings: dict[str, Any]
    peers: tuple[str, ...]
    targets: dict[str, float]
    """Peer -> target speed-up."""
    limit_target: float | None = None
    """Target share of matrix products in the total time."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """More sides of our own: name -> what differs from `ours`."""
    steps_of: dict[str, int] = field(default_factory=dict)
    """Peer -> fewer steps than `steps`, for slow peers."""
    preprocessing: str = "none"
    unit: int = 1
    """Steps of one iteration: the fewest that can be measured."""
    fast_path: bool = True
    """If the run says which path its updates took, it must be the fast one, which chains of linear layers have."""

    @property
    def sides(self) -> tuple[str, ...]:
        """Who takes turns."""
        return (OURS, *self.variants, *self.peers, LIMIT)

    def shortened(self) -> "Speed":
        """Return the row with as few steps as possible, for a smoke test."""
        steps = max(self.unit, self.steps // 16 // self.unit * self.unit)
        begun = self.settings.get("learning_starts", 0)
        warm_up = -(-begun // self.unit) * self.unit + max(
            self.unit, 8
        )  # a few updates: the first ones compile
        return replace(self, steps=steps, warm_up=warm_up, steps_of={})

    def key(self) -> dict[str, Any]:
        """Return what must be equal for earlier rounds to count."""
        told = asdict(self)
        for unmeasured in ("title", "targets", "limit_target"):
            del told[unmeasured]
        return told


@dataclass(frozen=True)
class Race:
    """Seconds of training, without evaluations, until a policy is good; the seed is the number of the round."""

    kind: ClassVar[str] = "race"
    name: str
    title: str
    preset: str
    peer: str
    peer_row: str
    """The row whose settings the peer gets."""
    threshold: float
    total_timesteps: int
    evaluate_every: int
    num_episodes: int
    target: float

    @property
    def sides(self) -> tuple[str, ...]:
        """Who takes turns."""
        return (OURS, self.peer)

    def shortened(self) -> "Race":
        """Return the row with an easy goal."""
        return replace(self, threshold=100.0, total_timesteps=10_240)

    def key(self) -> dict[str, Any]:
        """Return what must be equal for earlier rounds to count."""
        told = asdict(self)
        del told["title"], told["target"]
        preset = CONFIGS / f"{self.preset}.yaml"
        return told | {"peer_row": ROWS[self.peer_row].key(), "preset": preset.read_text(encoding="utf-8")}


@dataclass(frozen=True)
class Growth:
    """Cost of a step as one setting grows."""

    kind: ClassVar[str] = "growth"
    name: str
    title: str
    base: str
    """The row that provides all other settings."""
    points: dict[str, dict[str, Any]]
    """The setting's value -> what differs, `warm_up` and `steps` among it."""
    exponent: float
    """Largest expected exponent of the cost of a step."""

    @property
    def sides(self) -> tuple[str, ...]:
        """The points, which take turns."""
        return tuple(self.points)

    def shortened(self) -> "Growth":
        """Return the same with the first two points."""
        return replace(self, points=dict(list(self.points.items())[:2]))

    def key(self) -> dict[str, Any]:
        """Return what must be equal for earlier rounds to count."""
        return {"name": self.name, "base": ROWS[self.base].key(), "points": self.points}


@dataclass(frozen=True)
class Startup:
    """Seconds until Python has imported a package, or a command has answered."""

    kind: ClassVar[str] = "startup"
    name: str
    title: str
    commands: dict[str, list[str]]
    """Name -> arguments of Python."""

    @property
    def sides(self) -> tuple[str, ...]:
        """Who takes turns."""
        return tuple(self.commands)

    def shortened(self) -> "Startup":
        """Return the row: it is short."""
        return self

    def key(self) -> dict[str, Any]:
        """Return what must be equal for earlier rounds to count."""
        return asdict(self)


Row = Speed | Race | Growth | Startup

CARTPOLE_PPO: dict[str, Any] = {
    "num_steps": 32,
    "batch_size": 256,
    "update_epochs": 20,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "clip_coef": 0.2,
    "clip_coef_schedule": "linear",
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "hidden_sizes": (64, 64),
}
CHEETAH_PPO: dict[str, Any] = {
    "num_steps": 2_048,
    "batch_size": 64,
    "update_epochs": 10,
    "learning_rate": 3e-4,
    "hidden_sizes": (64, 64),
}
CARTPOLE_DQN: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "target_update_every_timesteps": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "hidden_sizes": (256, 256),
}
CHEETAH_SAC: dict[str, Any] = {
    "learning_rate": 3e-4,
    "batch_size": 256,
    "buffer_size": 1_000_000,
    "learning_starts": 100,
    "train_freq": 1,
    "gradient_steps": 1,
    "hidden_sizes": (256, 256),
}
CHEETAH_TD3 = CHEETAH_SAC | {"learning_rate": 1e-3}
BREAKOUT_PPO: dict[str, Any] = {
    "num_steps": 128,
    "batch_size": 256,
    "update_epochs": 4,
    "learning_rate": 2.5e-4,
    "learning_rate_schedule": "linear",
    "clip_coef": 0.1,
    "clip_coef_schedule": "linear",
    "ent_coef": 0.01,
    "features_dim": 512,
    "hidden_sizes": (),
}
BREAKOUT_DQN: dict[str, Any] = {
    "learning_rate": 1e-4,
    "batch_size": 32,
    "buffer_size": 10_000,
    "learning_starts": 500,
    "train_freq": 4,
    "gradient_steps": 1,
    "target_update_every_timesteps": 1_000,
    "exploration_final_eps": 0.01,
    "features_dim": 512,
    "hidden_sizes": (),
}
RECURRENT = CARTPOLE_PPO | {
    "core_size": 64,
    "sequence_length": 16,
    "hidden_sizes": (64,),
    "activation": "relu",
}
NATIVE: dict[str, Any] = {
    "env_id": "ALE/Breakout-v5",
    "env_backend": "native",
    "env_kwargs": {"num_threads": 1},
}


def _cheetah(name: str, title: str, algo: str, settings: dict[str, Any], **more: Any) -> Speed:
    """Return a row of one update per step with one HalfCheetah."""
    return Speed(name, title, algo, "HalfCheetah-v5", 1, 960, 240, settings, (SB3, SBX), **more)


SPEED = (
    Speed(
        "ppo_cartpole", "PPO, CartPole-v1", "ppo", "CartPole-v1", 8, 51_200, 5_120, CARTPOLE_PPO,
        (SB3, SBX, TIANSHOU, RLOX), {SB3: 3.6, SBX: 1.9}, unit=256, steps_of={TIANSHOU: 10_240, RLOX: 20_480},
    ),
    Speed(
        "ppo_half_cheetah", "PPO, HalfCheetah-v5", "ppo", "HalfCheetah-v5", 1, 8_192, 2_048, CHEETAH_PPO,
        (SB3, SBX), {SB3: 2.8, SBX: 2.3}, unit=2_048,
    ),
    Speed(
        "dqn_cartpole", "DQN, CartPole-v1", "dqn", "CartPole-v1", 1, 10_240, 2_560, CARTPOLE_DQN,
        (SB3, SBX), {SB3: 2.8, SBX: 1.1}, unit=256,
    ),
    _cheetah(
        "sac_half_cheetah", "SAC, HalfCheetah-v5", "sac", CHEETAH_SAC, targets={SB3: 1.6, SBX: 1.03},
        limit_target=0.85,
    ),
    _cheetah(
        "td3_half_cheetah", "TD3, HalfCheetah-v5, 256 x 256", "td3", CHEETAH_TD3,
        targets={SB3: 1.25, SBX: 1.03},
    ),
    _cheetah(
        "td3_half_cheetah_400", "TD3, HalfCheetah-v5, 400 x 300", "td3",
        CHEETAH_TD3 | {"hidden_sizes": (400, 300)}, targets={SB3: 1.25, SBX: 1.03},
    ),
    Speed(
        "a2c_cartpole", "A2C, CartPole-v1", "a2c", "CartPole-v1", 8, 40_000, 4_000,
        {"num_steps": 5, "hidden_sizes": (64, 64)}, (SB3,), {SB3: 3.0}, unit=40,
    ),
    Speed(
        "ppo_atari", "PPO, Breakout, 8 games", "ppo", "BreakoutNoFrameskip-v4", 8, 2_048, 1_024, BREAKOUT_PPO,
        (SB3,), {SB3: 1.5}, preprocessing="atari", unit=1_024, variants={"ours, native": NATIVE},
    ),
    Speed(
        "dqn_atari", "DQN, Breakout, 1 game", "dqn", "BreakoutNoFrameskip-v4", 1, 1_600, 800, BREAKOUT_DQN,
        (SB3,), {SB3: 1.5}, preprocessing="atari", unit=4,
    ),
    Speed(
        "recurrent_ppo_cartpole", "RecurrentPPO, CartPole-v1", "recurrent_ppo", "CartPole-v1", 8, 5_120, 1_024,
        RECURRENT, (CONTRIB,), {CONTRIB: 5.0}, unit=256, variants={"ours, GRU": {"core": "gru"}},
    ),
)  # fmt: skip

RACE = Race(
    "time_to_475", "PPO, CartPole-v1, to a mean return of 475", "ppo/cartpole", SB3, "ppo_cartpole", 475.0, 102_400,
    evaluate_every=1_024, num_episodes=20, target=3.0,
)  # fmt: skip


def _points(name: str, values: tuple[int, ...], steps: int, warm_up: int) -> dict[str, dict[str, Any]]:
    return {str(value): {name: value, "steps": steps, "warm_up": warm_up} for value in values}


GROWTH = (
    Growth(
        "growth_num_envs", "PPO, CartPole-v1: environments, 2,048 transitions per rollout", "ppo_cartpole",
        {
            str(n): {"num_envs": n, "num_steps": 2_048 // n, "update_epochs": 4, "steps": 20_480, "warm_up": 4_096}
            for n in (1, 4, 16, 64, 256)
        },
        exponent=0.0,
    ),
    Growth(
        "growth_batch_size", "SAC, HalfCheetah-v5: batch size", "sac_half_cheetah",
        _points("batch_size", (32, 64, 128, 256, 512, 1_024), 200, 130), exponent=1.0,
    ),
    Growth(
        "growth_width", "SAC, HalfCheetah-v5: width of two hidden layers", "sac_half_cheetah",
        {
            str(width): {"hidden_sizes": (width, width), "steps": steps, "warm_up": 120}
            for width, steps in ((64, 400), (128, 300), (256, 200), (512, 100), (1_024, 50))
        },
        exponent=2.0,
    ),
    Growth(
        "growth_replay", "DQN, CartPole-v1: transitions in a full replay buffer", "dqn_cartpole",
        {
            str(size): {"buffer_size": size, "learning_starts": size, "steps": 5_120, "warm_up": size + 2_048}
            for size in (10_000, 100_000, 1_000_000)
        },
        exponent=0.0,
    ),
)  # fmt: skip

STARTUP = Startup(
    "startup",
    "Start-up",
    {
        "import stable_baselines3": ["-c", "import stable_baselines3"],
        "import rl_training": ["-c", "import rl_training"],
        "from rl_training.algorithms import PPO": ["-c", "from rl_training.algorithms import PPO"],
        "rl-training --help": ["-m", "rl_training", "--help"],
    },
)

ROWS: dict[str, Row] = {row.name: row for row in (*SPEED, RACE, *GROWTH, STARTUP)}
