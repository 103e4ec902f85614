"""Two players in turn, with the numbers written out; and what rows that wait mean for each part of the data."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from records import act_arrays, step_arrays

from rl_training.core.columns import Column
from rl_training.core.returns import own_rewards, own_turn_gae
from rl_training.core.types import Obs, Progress
from rl_training.data.recurrent_rollout_buffer import RecurrentRolloutBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import ReplaySource, RolloutSource
from rl_training.models.normalizer import RewardNormalizer

GAMMA, LAMBDA = 0.5, 0.5
# white and black move in turn; white's second move wins
MOVES = [[True, False], [False, True], [True, False]]
PAID = [[0.0, 0.0], [0.0, 0.0], [1.0, -1.0]]
VALUES = [[0.5, 9.0], [9.0, 0.25], [0.75, 9.0]]


def won_game(recorder: Any) -> Any:
    for step, (valid, reward, value) in enumerate(zip(MOVES, PAID, VALUES, strict=True)):
        obs = np.full((2, 1), step, np.float32)
        acted = act_arrays(2, step, value=value)
        action = (acted,) if not isinstance(recorder, ReplayBuffer) else (acted.action,)
        recorder.record_action(obs, *action)
        over = step == 2
        outcome = step_arrays(obs + 10, reward, terminated=over, valid=valid, final_obs=obs + 0.5)
        recorder.record_outcome(outcome, *action[: not isinstance(recorder, ReplayBuffer)])
    return recorder


def rollout_buffer(num_steps: int = 3, num_envs: int = 2, kind: Any = RolloutBuffer, **options: Any) -> Any:
    return kind(
        num_steps=num_steps,
        num_envs=num_envs,
        obs_shape=(1,),
        action_shape=(),
        turns=True,
        action_dtype=np.int64,
        **options,
    )


def replay_buffer(n_step: int = 1, num_envs: int = 2, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(
        **{"capacity": 50, "num_envs": num_envs, "obs_shape": (1,), "action_shape": (), "turns": True}
        | options,
        action_dtype=np.int64,
        n_step=n_step,
        gamma=GAMMA,
    )


# ------------------------------------------------------------------------------------------------------- rollouts


def test_a_won_game_is_worth_plus_one_to_the_mover_and_minus_one_to_the_one_who_waits() -> None:
    buffer = won_game(rollout_buffer())
    buffer.compute_returns_and_advantages(torch.tensor([7.0, np.nan]), GAMMA, LAMBDA)
    batch = buffer.flat()
    # white's first move: 0 + 0.5 * 0.75 - 0.5 = -0.125, and a trace of 0.5 * 0.5 of its last move's advantage
    # black's only move: the loss, which comes one step later; white's last move: the win
    assert batch.actions.tolist() == [0, 1, 2]
    assert batch.obs.flatten().tolist() == [0.0, 1.0, 2.0]
    assert batch.advantages.tolist() == [-0.125 + 0.25 * 0.25, -1.0 - 0.25, 1.0 - 0.75]
    assert batch.returns.tolist() == [0.5 - 0.0625, -1.0, 1.0]


def test_what_is_paid_while_waiting_is_not_discounted() -> None:
    rewards = torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0]])
    valid = torch.tensor([[True], [False], [False], [True], [False]])
    dones = torch.zeros(5, 1, dtype=torch.bool)
    assert own_rewards(rewards, dones, valid).flatten().tolist() == [7.0, 0.0, 0.0, 24.0, 0.0]
    dones[1] = True  # it dies while it waits
    assert own_rewards(rewards, dones, valid).flatten().tolist() == [3.0, 0.0, 0.0, 24.0, 0.0]
    valid[0] = False  # it had not acted
    assert own_rewards(rewards, dones, valid).flatten().tolist() == [0.0, 0.0, 0.0, 24.0, 0.0]
    assert rewards.flatten().tolist() == [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize(
    ("last", "learned", "advantages"),
    [
        # it acts next: 3 + 0.5 * 4 - 1, and 0.5 * 0.5 of that for the move before
        (4.0, [True, False, True, False], [2.0 + 0.5 * 1 - 1 + 0.25 * 4.0, 0.0, 4.0, 0.0]),
        # it waits: the last move is not learned from, and the one before is followed by its value
        (np.nan, [True, False, False, False], [2.0 + 0.5 * 1 - 1, 0.0, 0.0, 0.0]),
    ],
)
def test_a_move_whose_outcome_is_not_known_yet_is_dropped(
    last: float, learned: list[bool], advantages: list[float]
) -> None:
    out = torch.full((4, 1), 5.0)
    found = own_turn_gae(
        torch.tensor([[2.0], [0.0], [3.0], [0.0]]),
        torch.ones(4, 1),
        torch.zeros(4, 1),
        torch.tensor([last]),
        torch.zeros(4, 1, dtype=torch.bool),
        torch.tensor([[True], [False], [True], [False]]),
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        out=out,
    )
    assert found.flatten().tolist() == learned
    assert out.flatten().tolist() == advantages


def test_a_time_limit_that_ends_a_game_while_a_row_waits_is_followed_by_the_value_then() -> None:
    buffer = rollout_buffer(2, 1)
    for step, valid in enumerate([True, False]):
        obs = np.zeros((1, 1), np.float32)
        acted = act_arrays(1, step, value=1.0, final_value=8.0 * step)
        buffer.record_action(obs, acted)
        buffer.record_outcome(step_arrays(obs, [3.0], truncated=step == 1, valid=valid), acted)
    buffer.compute_returns_and_advantages(torch.tensor([1e6]), GAMMA, LAMBDA)
    assert buffer.flat().returns.tolist() == [3.0 + 3.0 + 0.5 * 8.0]


def test_vtrace_is_refused() -> None:
    buffer = won_game(rollout_buffer())
    with pytest.raises(ValueError, match=r"V-trace.*use no lag"):
        buffer.compute_returns_and_advantages(torch.zeros(2), GAMMA, LAMBDA, ratios=torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"V-trace.*use no lag"):
        RolloutSource(buffer, gamma=GAMMA, gae_lambda=LAMBDA, log_prob=lambda obs, actions: actions)


@pytest.mark.parametrize("kind", [RolloutBuffer, RecurrentRolloutBuffer])
def test_a_rollout_without_a_row_to_learn_from_is_dropped(kind: Any) -> None:
    options = {"extra": (Column("episode_starts", dtype=np.bool_),)} if kind is RecurrentRolloutBuffer else {}
    source = RolloutSource(rollout_buffer(2, 1, kind, **options), gamma=GAMMA, gae_lambda=LAMBDA)
    obs = np.zeros((1, 1), np.float32)
    for valid, expected in ((False, 0), (True, 1), (False, 0)):
        for _ in range(2):
            acted = act_arrays(1, 0)
            source.record_action(obs, acted)
            source.record_outcome(step_arrays(obs, [1.0], valid=valid), acted)
        source.end_collect(act_arrays(1, last_value=2.0))
        assert len(list(source.batches(Progress()))) == expected
        assert source.buffer.row == 0


def test_sequences_in_which_nobody_acts_are_left_out() -> None:
    buffer = rollout_buffer(
        4, 2, RecurrentRolloutBuffer, extra=(Column("episode_starts", dtype=np.bool_),), sequence_length=2
    )
    obs = np.zeros((2, 1), np.float32)
    for step in range(4):
        buffer.record_action(obs, act_arrays(2, step))
        buffer.record_outcome(step_arrays(obs, [0.0, 0.0], valid=[step == 3, True]), act_arrays(2))
    buffer.compute_returns_and_advantages(torch.zeros(2), GAMMA, LAMBDA)
    batch = buffer.flat()
    assert batch.sequences.tolist() == [[1, 3], [4, 6], [5, 7]]
    assert batch.valid is not None
    assert batch.valid.tolist() == [False, True, False, True, False, True, True, True]


# --------------------------------------------------------------------------------------------------------- replay


def test_a_won_game_gives_one_transition_per_move() -> None:
    buffer = won_game(replay_buffer())
    rows = {int(row["actions"]): row for row in buffer.rows[: len(buffer)]}
    names = ("obs", "rewards", "discounts", "next_obs")
    assert {action: [float(row[name].item()) for name in names] for action, row in rows.items()} == {
        0: [0.0, 0.0, 0.5, 2.0],  # white sees the board again in step 2
        1: [1.0, -1.0, 0.0, 2.5],  # black waits when it loses
        2: [2.0, 1.0, 0.0, 2.5],
    }


def test_a_transition_is_open_until_the_row_acts_again() -> None:
    buffer = replay_buffer(num_envs=1)
    for step, (valid, found) in enumerate([(True, 0), (False, 0), (False, 0), (True, 1), (False, 1)]):
        obs = np.full((1, 1), step, np.float32)
        buffer.record_action(obs, np.array([step]))
        buffer.record_outcome(step_arrays(obs + 1, [2.0**step], valid=valid))
        assert len(buffer) == found
        assert buffer.window.waiting()["actions"].tolist() == [0 if step < 3 else 3]
    assert buffer.rows[0][["rewards", "discounts"]].tolist() == (1.0 + 2.0 + 4.0, GAMMA)
    assert buffer.window.waiting()["rewards"].tolist() == [8.0 + 16.0]
    buffer.forget([0])
    assert len(buffer.window.waiting()) == 0


def test_stacks_cannot_be_stored_frame_by_frame() -> None:
    with pytest.raises(ValueError, match=r"frame_stack is 2, but rows may wait.*leave it out"):
        replay_buffer(obs_shape=(2, 3, 3), frame_stack=2)


def replay_source(num_envs: int = 2, **options: Any) -> ReplaySource:
    return ReplaySource(
        replay_buffer(num_envs=num_envs),
        batch_size=1,
        train_freq=1,
        gradient_steps=1,
        learning_starts=0,
        rng=np.random.default_rng(0),
        **options,
    )


def test_observations_count_for_statistics_where_a_row_acts_on_them() -> None:
    counted: list[list[float]] = []

    def observe(obs: Obs) -> None:
        assert not isinstance(obs, dict)
        counted.append(obs[:, 0].tolist())

    source = replay_source(observe=observe)
    for step, valid in enumerate([[True, False], [False, True], [False, False]]):
        obs = np.array([[step], [step + 0.5]], np.float32)
        source.record_action(obs, act_arrays(2))
        obs[:] = -1.0
        source.record_outcome(step_arrays(obs, [0.0, 0.0], valid=valid), act_arrays(2))
    assert counted == []
    source.end_collect(act_arrays(2))
    assert counted == [[0.0], [1.5], []]
    assert source.recorded == 2


# ---------------------------------------------------------------------------------------------------- reward scale


def test_returns_of_own_actions_are_merged_when_they_are_complete() -> None:
    scaler = RewardNormalizer(GAMMA)
    carry, unfinished = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.bool)
    true, false = torch.tensor([[True]]), torch.tensor([[False]])
    steps = [  # reward, ended, valid, returns that are complete
        (5.0, false, false, []),  # before its first own action
        (1.0, false, true, []),
        (2.0, false, false, []),
        (4.0, false, true, [3.0]),
        (-1.0, true, false, [3.0, 0.5 * 3.0 + 3.0]),
        (9.0, false, false, [3.0, 4.5]),  # it is dead
        (2.0, true, true, [3.0, 4.5, 2.0]),
    ]
    for reward, ended, valid, expected in steps:
        scaler.update_own_turns(torch.tensor([[reward]]), ended, valid, carry, unfinished)
        assert int(scaler.moments.count) == len(expected)
        if expected:
            assert float(scaler.moments.mean) == pytest.approx(np.mean(expected))
    assert carry.tolist() == [0.0]


def test_what_is_learned_from_are_scaled_rewards_of_own_actions() -> None:
    class Tenth:
        """Divides by ten and clips; statistics are of no interest here."""

        def update(self, *arguments: Any) -> None:
            raise AssertionError

        def update_own_turns(self, *arguments: Any) -> None: ...

        def __call__(self, rewards: torch.Tensor) -> torch.Tensor:
            return (rewards / 10).clamp(-0.05, 1.0)

    source = RolloutSource(rollout_buffer(), gamma=GAMMA, gae_lambda=LAMBDA, reward_scaler=Tenth())
    won_game(source)
    source.end_collect(act_arrays(2, last_value=[7.0, np.nan]))
    (batch,) = source.batches(Progress())
    # black's loss comes while it waits: clipped, not lost
    expected = [0.5 + 0.5 * 0.75 - 0.5 + 0.25 * (0.1 - 0.75), -0.05, 0.1]
    np.testing.assert_allclose(batch.returns, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["rollout", "replay"])
def test_running_returns_are_saved_restored_and_forgotten(kind: str) -> None:
    def make() -> Any:
        scaler = RewardNormalizer(GAMMA)
        if kind == "replay":
            return replay_source(reward_scaler=scaler)
        return RolloutSource(rollout_buffer(1), gamma=GAMMA, gae_lambda=LAMBDA, reward_scaler=scaler)

    def record(source: Any, reward: float, valid: list[bool]) -> None:
        obs = np.zeros((2, 1), np.float32)
        source.record_action(obs, act_arrays(2))
        source.record_outcome(step_arrays(obs, [reward, reward], valid=valid), act_arrays(2))
        source.end_collect(act_arrays(2))
        if kind == "rollout":
            list(source.batches(Progress()))

    one, other = make(), make()
    record(one, 1.0, [True, True])
    state = one.state_dict()
    assert state["running_returns"].tolist() == [1.0, 1.0]
    assert state["unfinished"].tolist() == [True, True]
    if kind == "rollout":
        other.load_state_dict(state)
    else:
        other._running_returns.load_state_dict(state)
    one.forget([1])
    other.forget([1])
    assert state["unfinished"].tolist() == [True, True]
    for source in (one, other):
        record(source, 2.0, [False, False])  # the second row has not acted
        assert source.state_dict()["running_returns"].tolist() == [3.0, 0.0]
        assert source.state_dict()["unfinished"].tolist() == [True, False]


def test_spaces_pass_the_flag_on() -> None:
    for kind, sizes in ((RolloutBuffer, {"num_steps": 2}), (ReplayBuffer, {"capacity": 5})):
        buffer: Any = kind
        made = buffer.for_spaces(spaces.Box(0, 1, (2,)), spaces.Discrete(2), num_envs=1, turns=True, **sizes)
        assert made.turns
        assert not buffer.for_spaces(spaces.Box(0, 1, (2,)), spaces.Discrete(2), num_envs=1, **sizes).turns
