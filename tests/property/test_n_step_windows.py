"""Transitions of n steps equal those cut out of whole episodes by hand, in order, for every environment."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.core.types import StepArrays
from rl_training.data.replay_buffer import ReplayBuffer

LAW = settings(deadline=None, database=None, derandomize=True, max_examples=150)

GOES_ON, TERMINATES, IS_TRUNCATED, BOTH = range(4)
kinds = st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATES, IS_TRUNCATED, BOTH])


@dataclass
class Episode:
    """What one environment really showed: one observation more than actions and rewards."""

    obs: list[float]
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    end: int = GOES_ON


def expected_rows(episodes: list[Episode], n: int, gamma: float) -> list[tuple[float, ...]]:
    """Return (obs, action, reward, discount, next_obs) of every transition whose rewards are complete."""
    rows = []
    for episode in episodes:
        length = len(episode.actions)
        for start in range(length):
            stop = min(start + n, length)
            if stop - start < n and episode.end == GOES_ON:
                continue  # still waiting
            over = stop == length and episode.end in (TERMINATES, BOTH)
            rewards = episode.rewards[start:stop]
            rows.append(
                (
                    episode.obs[start],
                    episode.actions[start],
                    sum(reward * gamma**k for k, reward in enumerate(rewards)),
                    0.0 if over else gamma ** len(rewards),
                    episode.obs[stop],
                )
            )
    return rows


@LAW
@given(
    n=st.integers(1, 5),
    gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    num_envs=st.integers(1, 4),
    same_step=st.booleans(),
    data=st.data(),
)
def test_stored_transitions_equal_those_cut_from_whole_episodes(
    n: int, gamma: float, num_envs: int, same_step: bool, data: st.DataObject
) -> None:
    num_steps = data.draw(st.integers(1, 25))
    ends = data.draw(
        st.lists(
            st.lists(kinds, min_size=num_envs, max_size=num_envs), min_size=num_steps, max_size=num_steps
        )
    )
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(
        capacity=num_steps * num_envs,
        num_envs=num_envs,
        obs_shape=(),
        action_shape=(),
        action_dtype=np.int64,
        n_step=n,
        gamma=gamma,
    )
    clock = iter(range(10_000))  # every observation and every action is a number of its own
    past: list[list[Episode]] = [[Episode([float(next(clock))])] for _ in range(num_envs)]
    shown = np.array([episodes[0].obs[0] for episodes in past], np.float32)
    dead = np.zeros(num_envs, np.bool_)
    owner: dict[int, int] = {}
    counted = 0

    for kinds_now in ends:
        actions = np.array([next(clock) for _ in range(num_envs)])
        owner |= {int(action): env for env, action in enumerate(actions)}
        buffer.record_action(shown, actions)
        reward = rng.integers(-3, 4, num_envs).astype(np.float64)
        obs, final = np.zeros(num_envs, np.float32), np.full(num_envs, -1.0, np.float32)
        valid = ~dead
        terminated, truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        for env, kind in enumerate(kinds_now):
            if not valid[env]:  # this step only resets
                reward[env] = 1e6
                obs[env] = next(clock)
                past[env].append(Episode([float(obs[env])]))
                continue
            episode = past[env][-1]
            obs[env] = next(clock)
            episode.obs.append(float(obs[env]))
            episode.actions.append(int(actions[env]))
            episode.rewards.append(float(reward[env]))
            episode.end = kind
            if kind != GOES_ON:
                terminated[env], truncated[env] = kind != IS_TRUNCATED, kind != TERMINATES
                final[env] = obs[env]
                if same_step:
                    obs[env] = next(clock)
                    past[env].append(Episode([float(obs[env])]))
        ended = terminated | truncated
        dead = ended & (not same_step)
        buffer.record_outcome(
            StepArrays(
                obs,
                final,
                reward,
                terminated,
                truncated,
                ended,
                valid,
                np.zeros_like(valid),
                any_ended=bool(ended.any()),
                num_valid=int(valid.sum()),
            )
        )
        counted += int(valid.sum())
        shown[:] = obs

    rows = buffer.rows[: len(buffer)]
    for env, episodes in enumerate(past):
        stored = [
            (r["obs"], r["actions"], r["rewards"], r["discounts"], r["next_obs"])
            for r in rows
            if owner[int(r["actions"])] == env
        ]
        expected = expected_rows(episodes, n, gamma)
        assert len(stored) == len(expected)
        np.testing.assert_allclose(
            np.array(stored, float).reshape(-1, 5), np.reshape(expected, (-1, 5)), rtol=1e-5, atol=1e-6
        )
    if n == 1:
        assert buffer.total_rows == counted
