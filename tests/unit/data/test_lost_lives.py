"""A lost life: nothing after it counts for what came before, and the episode goes on."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from records import act_arrays, step_arrays

from rl_training.core.errors import EnvironmentFault
from rl_training.core.rows import Rows
from rl_training.core.types import Progress
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import RolloutSource
from rl_training.envs.info_keys import CUT
from rl_training.envs.stepper import VectorStepper
from rl_training.models.normalizer import RewardNormalizer
from rl_training.policies.explorers import ContinuousExplorer
from rl_training.policies.noise import OrnsteinUhlenbeckNoise
from rl_training.runtime.episodes import RunningEpisodes

GAMMA, LAMBDA = 0.5, 0.5


class Lives(gymnasium.Env[Any, Any]):
    """Observes the step; a life is lost at step 2 and the game with the last one, after 4 steps."""

    def __init__(self, first: int = 2) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)
        self.first = first

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        obs = np.full(1, self.count, np.float32)
        lost = self.count in (self.first, 4)
        return obs, 1.0, self.count == 4, False, {CUT: True} if lost else {}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_the_stepper_marks_a_cut_unless_the_episode_has_ended(mode: AutoresetMode) -> None:
    builders = [partial(Lives, first) for first in (2, 1)]
    stepper = VectorStepper(SyncVectorEnv(builders, autoreset_mode=mode))
    stepper.reset()
    seen = []
    for _ in range(6):
        stepper.step(np.zeros(2, np.int64))
        out = stepper.out
        seen.append((out.cut.tolist(), out.any_cut, out.ended.tolist()))
    no, both = [False, False], [True, True]
    cuts = [([False, True], True, no), ([True, False], True, no), (no, False, no), (no, False, both)]
    assert seen[:4] == cuts
    assert seen[4] == ((no, False, no) if mode is AutoresetMode.NEXT_STEP else cuts[0])
    stepper.reset()
    assert not stepper.out.any_cut
    assert not stepper.out.cut.any()


def test_a_cut_ends_neither_the_episode_nor_its_statistics_nor_noise() -> None:
    running = RunningEpisodes(Rows.one_per_env(1))
    assert running.record(step_arrays(np.zeros((1, 1)), [1.0], cut=True)) == []
    (episode,) = running.record(step_arrays(np.zeros((1, 1)), [2.0], terminated=True))
    assert (episode.total_reward, episode.length) == (3.0, 2)
    noise = OrnsteinUhlenbeckNoise((1, 2), 1.0)
    noise.value[:] = 4.0
    explorer = ContinuousExplorer(None, np.random.default_rng(0), learning_starts=0, noise=noise)  # type: ignore[arg-type]
    explorer.after_step(step_arrays(np.zeros((1, 1)), [1.0], cut=True), act_arrays(1))
    assert (noise.value == 4.0).all()


def recorded(kind: str) -> RolloutBuffer:
    """Four steps of reward 1 and value 10; something happens at the second."""
    buffer = RolloutBuffer(num_steps=4, num_envs=1, obs_shape=(1,), action_shape=())
    for number in range(4):
        acted = act_arrays(1, value=10.0)
        buffer.record_action(np.zeros((1, 1)), acted)
        flags = {kind: True} if kind and number == 1 else {}
        buffer.record_outcome(step_arrays(np.zeros((1, 1)), [1.0], **flags), acted)
    buffer.compute_returns_and_advantages(torch.tensor([10.0]), GAMMA, LAMBDA)
    return buffer


def test_advantages_are_cut_as_by_a_termination() -> None:
    cut, terminated, neither = recorded("cut"), recorded("terminated"), recorded("")
    assert torch.equal(cut.advantages, terminated.advantages)
    assert not torch.equal(cut.advantages[:2], neither.advantages[:2])
    assert torch.equal(cut.advantages[2:], neither.advantages[2:])
    assert cut.advantages[1].item() == pytest.approx(1.0 - 10.0)
    assert cut.dones.sum() == 0


def test_a_rewound_buffer_has_no_cuts() -> None:
    buffer = recorded("cut")
    assert buffer.cuts.any()
    buffer.reset()
    assert not buffer.cuts.any()


def test_the_scale_of_rewards_follows_whole_episodes() -> None:
    def running(kind: str) -> float:
        scaler = RewardNormalizer(GAMMA)
        source = RolloutSource(recorded(kind), gamma=GAMMA, gae_lambda=LAMBDA, reward_scaler=scaler)
        list(source.batches(Progress()))
        return float(source.state_dict()["running_returns"][0])

    assert running("cut") == running("")
    assert running("terminated") != running("")


def test_n_step_windows_end_at_a_cut_and_begin_anew() -> None:
    buffer = ReplayBuffer(
        capacity=16, num_envs=1, obs_shape=(1,), action_shape=(), action_dtype=np.int64, n_step=3, gamma=GAMMA
    )
    for number in range(6):
        buffer.record_action(np.full((1, 1), number, np.float32), np.zeros(1, np.int64))
        step = step_arrays(np.full((1, 1), number + 1, np.float32), [1.0], cut=number == 3)
        buffer.record_outcome(step)
    rows = buffer.rows[: len(buffer)]
    found = [(float(row["obs"][0]), float(row["rewards"]), float(row["discounts"])) for row in rows]
    assert found == [
        (0.0, 1.75, 0.125),
        (1.0, 1.75, 0.0),
        (2.0, 1.5, 0.0),
        (3.0, 1.0, 0.0),
    ], "steps 4 and 5 belong to the next life and wait for their third reward"
    assert rows["next_obs"][:, 0].tolist() == [3.0, 4.0, 4.0, 4.0]


def test_one_step_returns_do_not_look_past_a_cut() -> None:
    buffer = ReplayBuffer(capacity=4, num_envs=2, obs_shape=(1,), action_shape=(), gamma=GAMMA)
    buffer.record_action(np.zeros((2, 1)), np.zeros(2))
    buffer.record_outcome(step_arrays(np.ones((2, 1)), [1.0, 1.0], cut=[True, False]))
    assert buffer.rows["discounts"][:2].tolist() == [0.0, GAMMA]
    assert buffer.rows["next_obs"][:2, 0].tolist() == [1.0, 1.0]


class LastLife(gymnasium.Env[Any, Any]):
    """Ends by the clock after two steps, with a life lost in the same step or whatever else it says."""

    def __init__(self, said: Any, truncated: bool = True) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)
        self.said, self.truncated = said, truncated

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        last = self.count == 2
        return np.ones(1, np.float32), 1.0, False, last and self.truncated, {CUT: self.said} if last else {}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_life_lost_in_the_step_of_the_time_limit_is_an_end_of_the_task(mode: AutoresetMode) -> None:
    builders = [partial(LastLife, said) for said in (True, False)]
    stepper = VectorStepper(SyncVectorEnv(builders, autoreset_mode=mode))
    stepper.reset()
    for _ in range(2):
        stepper.step(np.zeros(2, np.int64))
    out = stepper.out
    assert out.terminated.tolist() == [True, False]
    assert out.truncated.tolist() == [False, True]
    assert (out.cut.tolist(), out.any_cut, out.ended.tolist()) == ([False, False], False, [True, True])


@pytest.mark.parametrize("said", ["False", 1, 0.5, np.array([True]), {"a": True}, float("nan")], ids=str)
def test_anything_but_true_or_false_is_refused(said: Any) -> None:
    stepper = VectorStepper(
        SyncVectorEnv([partial(LastLife, said, False)], autoreset_mode=AutoresetMode.SAME_STEP)
    )
    stepper.reset()
    stepper.step(np.zeros(1, np.int64))
    with pytest.raises(EnvironmentFault, match=r"info\['cut_bootstrap'\] that is not a bool"):
        stepper.step(np.zeros(1, np.int64))


def test_numpys_true_is_true() -> None:
    builders = [partial(LastLife, np.True_, False), partial(LastLife, np.False_, False)]
    stepper = VectorStepper(SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP))
    stepper.reset()
    for _ in range(2):
        stepper.step(np.zeros(2, np.int64))
    assert stepper.out.cut.tolist() == [True, False]
