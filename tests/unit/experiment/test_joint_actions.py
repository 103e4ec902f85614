"""Joint actions of a game: every agent's action at its place, and memories as in training."""

from typing import Any

import numpy as np
import pytest

from rl_training.config import TrainConfig
from rl_training.envs.factory import make_env
from rl_training.experiment.joint_actions import JointActions
from support.games import JointGame, Plot, Role, TurnGame


class Counting:
    """A policy that counts how often a memory was used, and acts by agent."""

    def __init__(self) -> None:
        self.memories: list[list[float]] = []

    def initial_state(self, rows: int) -> Any:
        return (np.zeros((rows, 1)),)

    def act(self, obs: Any, state: Any, *, deterministic: bool, rng: Any) -> Any:
        (memory,) = state
        self.memories.append(memory[:, 0].tolist())
        return np.arange(len(memory)), (memory + 1,)


def played(kind: Any, order: tuple[int, ...], steps: int) -> tuple[Counting, Any]:
    plot = Plot((Role(),) * 3, length=9, order=order)
    config = TrainConfig(algo="ppo", env_id="Plot", seed=1, rebuild_envs="off")
    env = make_env(config, 0, factory=lambda **_: kind(plot))()
    joint: Any = env.unwrapped
    policy = Counting()
    players = JointActions(joint.game, policy)  # type: ignore[arg-type]
    obs, _ = env.reset()
    for _ in range(steps):
        action = players.act(obs, deterministic=True, rng=np.random.default_rng(0))
        obs, *_ = env.step(action)
    return policy, joint.raw


@pytest.mark.parametrize(("kind", "order"), [(JointGame, (0,)), (TurnGame, (2, 0, 1))])
def test_every_agent_does_what_its_row_chose(kind: Any, order: tuple[int, ...]) -> None:
    _, game = played(kind, order, 3)
    assert {agent: int(action) for agent, action in game.played[-1][1]} == {
        "agent_0": 0,
        "agent_1": 1,
        "agent_2": 2,
    }


def test_a_memory_begins_with_the_first_own_action() -> None:
    """Agent 1 waits for two moves; before its own, its memory is empty, and afterwards it also grows while it waits."""
    policy, _ = played(TurnGame, (0, 0, 1), 5)
    assert [memory[1] for memory in policy.memories] == [0, 0, 0, 1, 2]
    assert [memory[0] for memory in policy.memories] == [0, 1, 2, 3, 4]
    assert [memory[2] for memory in policy.memories] == [0, 0, 0, 0, 0]
