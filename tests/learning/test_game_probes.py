"""Games with known answers: learned in seconds if rewards, ends and masks reach the right agent at the right time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from support.games import JointGame, Plot, Role, TurnGame

GAMMA = 0.9
ON_POLICY: dict[str, Any] = {
    "num_steps": 32, "batch_size": 128, "learning_rate": 1e-2, "learning_rate_schedule": "linear",
    "hidden_sizes": (32,), "gamma": GAMMA,
}  # fmt: skip
MEMORY: dict[str, Any] = {"core_size": 32, "sequence_length": 8}
CLOCK = spaces.Box(0, 20, (2,), np.float32)


class Timed:
    """Observations are the time and whether the agent is the second one; actions do nothing unless a game says so."""

    plot: Plot

    def __init__(self) -> None:
        super().__init__(self.plot)  # type: ignore[call-arg]

    def seen_by(self, agent: str) -> Any:
        return np.array([self.clock, agent == "agent_1"], np.float32)  # type: ignore[attr-defined]


class LastMoverIsPaid(Timed, TurnGame):
    """Three moves; the last mover wins a point, and the other one loses it, without having moved since."""

    plot = Plot((Role(CLOCK), Role(CLOCK)), length=3, order=(0, 1, 0))

    def payments(self) -> dict[str, float]:
        over = self.clock == self.plot.length
        return {agent: (1.0 if agent == self.agent_selection else -1.0) * over for agent in self.agents}


class LivesDiffer(Timed, JointGame):
    """A point for every step alive: one agent dies after two, one comes late, one is cut off and might have gone on."""

    plot = Plot((Role(CLOCK), Role(CLOCK, dies=2), Role(CLOCK, comes=1, dies=4, is_truncated=True)), length=3)

    def payments(self) -> dict[str, float]:
        return dict.fromkeys(self.agents, 1.0)

    def seen_by(self, agent: str) -> Any:
        number = self.plot.agents.index(agent)
        return np.array([0.0 if number == 2 else self.clock + 1, number], np.float32)

    def ends(self) -> dict[str, tuple[bool, bool]]:
        ends = super().ends()
        over = self.clock >= self.plot.length
        return ends | ({"agent_2": (False, True)} if over and "agent_2" in ends else {})


class Nim(TurnGame):
    """Take one, two or three of seven stones; who takes the last one wins. Leave a multiple of four."""

    def __init__(self) -> None:
        mask = spaces.Box(0, 1, (3,), np.int8)
        self.seen = spaces.Dict({"observation": spaces.Box(0, 1, (8,), np.float32), "action_mask": mask})
        super().__init__(Plot((Role(), Role()), length=99, order=(0, 1)))
        self.left = 7

    def observation_space(self, agent: str) -> Any:
        return self.seen

    def begin(self, seed: int | None) -> None:
        super().begin(seed)
        self.left = int(self.rng.integers(1, 8))

    def seen_by(self, agent: str) -> Any:
        return {
            "observation": np.eye(8, dtype=np.float32)[self.left],
            "action_mask": np.arange(3) < self.left,
        }

    def take(self, agent: str, action: Any) -> None:
        assert action < self.left
        self.left -= int(action) + 1

    def payments(self) -> dict[str, float]:
        over = self.left == 0
        return {agent: (1.0 if agent == self.agent_selection else -1.0) * over for agent in self.agents}

    def ends(self) -> dict[str, tuple[bool, bool]]:
        return dict.fromkeys(self.agents, (self.left == 0, False))

    def told(self, agent: str) -> dict[str, Any]:
        return {}


class Locks(Timed, JointGame):
    """Masks in `info`: the highest allowed choice earns a point, and a forbidden one raises."""

    plot = Plot((Role(CLOCK, spaces.Discrete(4), "info"), Role(CLOCK, spaces.Discrete(5), "info")), length=4)

    def begin(self, seed: int | None) -> None:
        super().begin(seed)
        self.right: dict[str, bool] = {}

    def allowed(self, agent: str) -> Any:
        mask = super().allowed(agent)
        mask[-1] = (self.clock + int(self.start)) % 2
        mask[0] = 1
        return mask

    def take(self, agent: str, action: Any) -> None:
        super().take(agent, action)
        self.right[agent] = action == np.flatnonzero(self.allowed(agent))[-1]

    def payments(self) -> dict[str, float]:
        return {agent: float(self.right[agent]) for agent in self.agents}


def train(game: Any, folder: Path, timesteps: int, algo: str = "ppo", **settings: Any) -> Any:
    config = TrainConfig(
        algo=algo,
        env_id="Probe",
        seed=2,
        num_envs=4,
        total_timesteps=timesteps,
        eval_every_timesteps=0,
        checkpoint_every_timesteps=0,
        num_eval_episodes=40,
        rebuild_envs="off",
        output_dir=str(folder),
    )
    return ALGORITHMS[algo](config.with_overrides(**settings), env=lambda **_: game()).learn()


def value(model: Any, *seen: float) -> float:
    policy = model.agent.policy
    obs = np.array([seen], np.float32)
    return float(policy.values(obs)[0])


def test_the_one_who_waits_is_paid_for_its_last_move(tmp_path: Path) -> None:
    model = train(LastMoverIsPaid, tmp_path, 6_000, **ON_POLICY)
    expected = {(2.0, 0.0): 1.0, (1.0, 1.0): -1.0, (0.0, 0.0): GAMMA}
    for seen, answer in expected.items():
        assert value(model, *seen) == pytest.approx(answer, abs=0.05)
    known = {"mean_reward/agent_0": 1.0, "mean_reward/agent_1": -1.0}
    assert model.evaluate(4).items() >= known.items()


def test_lives_of_different_length(tmp_path: Path) -> None:
    """Death ends what is to come; a limit does not: that agent expects a point for ever, as it sees no time."""
    model = train(LivesDiffer, tmp_path, 10_000, **ON_POLICY)
    lives = {0: [1 + GAMMA + GAMMA**2, 1 + GAMMA, 1.0], 1: [1 + GAMMA, 1.0]}
    for agent, expected in lives.items():
        for clock, answer in enumerate(expected):
            assert value(model, clock + 1, agent) == pytest.approx(answer, abs=0.15), (agent, clock)
    assert value(model, 0.0, 2.0) == pytest.approx(1 / (1 - GAMMA), rel=0.06)


NIM: dict[str, tuple[int, dict[str, Any]]] = {
    "ppo": (12_000, ON_POLICY | {"ent_coef": 0.02}),
    "dqn": (
        8_000,
        {"learning_rate": 2e-3, "learning_starts": 500, "target_update_every_timesteps": 500, "gamma": GAMMA,
         "exploration_fraction": 0.5, "hidden_sizes": (64,), "train_freq": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("algo", NIM)
def test_nim_is_solved_by_playing_against_itself(algo: str, tmp_path: Path) -> None:
    timesteps, settings = NIM[algo]
    model = train(Nim, tmp_path, timesteps, algo, **settings)
    for left in (1, 2, 3, 5, 6, 7):
        seen = {"observation": np.eye(8, dtype=np.float32)[left], "action_mask": np.arange(3) < left}
        action, _ = model.predict({"agent_0": seen})
        assert action["agent_0"] + 1 == left % 4, f"{left} stones"


@pytest.mark.parametrize("policies", ["shared", "each"])
def test_masks_in_info_are_heeded(policies: str, tmp_path: Path) -> None:
    model = train(Locks, tmp_path, 8_000, policies=policies, **ON_POLICY)
    found = model.evaluate(20)
    assert found["mean_reward/agent_0"] == pytest.approx(4.0, abs=0.2)
    assert found["mean_reward/agent_1"] == pytest.approx(4.0, abs=0.2)


def test_masks_in_info_are_heeded_with_a_memory(tmp_path: Path) -> None:
    model = train(Locks, tmp_path, 8_000, "recurrent_ppo", **ON_POLICY, **MEMORY)
    assert model.evaluate(20)["mean_reward/agent_0"] == pytest.approx(4.0, abs=0.2)
