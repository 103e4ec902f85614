import copy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from records import CountingEnv, DrawingEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault
from rl_training.core.seeding import EVALUATION_EPISODES, episode_seed
from rl_training.envs.episodes import SeededEpisodes, trace, trace_of_rewards
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.stepper import VectorStepper

CONFIG = TrainConfig(algo="ppo", env_id="Drawing", seed=5)


def play(env: gymnasium.Env[Any, Any], episodes: int) -> list[list[list[float]]]:
    """Every observation of the first episodes."""
    played = []
    for _ in range(episodes):
        obs, _ = env.reset()
        seen, over = [obs.tolist()], False
        while not over:
            obs, _, terminated, truncated, _ = env.step(0)
            seen.append(obs.tolist())
            over = terminated or truncated
        played.append(seen)
    return played


def vector_play(backend: str, num_envs: int, num_steps: int = 14) -> list[list[list[float]]]:
    """The observations of each environment, in the order they were seen, finals included."""
    stepper = VectorStepper(make_vector_env(CONFIG, num_envs, factory=DrawingEnv, backend=backend))
    try:
        stepper.reset()
        out, seen = stepper.out, [[stepper.out.obs[n].tolist()] for n in range(num_envs)]  # type: ignore[index,call-overload]
        for _ in range(num_steps):
            stepper.step(np.zeros(num_envs, np.int64))
            for n in range(num_envs):
                if out.ended[n]:
                    seen[n].append(out.final_obs[n].tolist())  # type: ignore[index,call-overload]
                seen[n].append(out.obs[n].tolist())  # type: ignore[index,call-overload]
    finally:
        stepper.close()
    return seen


def flat(episodes: list[list[list[float]]]) -> list[list[float]]:
    return [obs for episode in episodes for obs in episode]


def test_episodes_depend_on_seed_env_and_number_alone() -> None:
    first = play(SeededEpisodes(DrawingEnv(), seed=5, env_index=1), 4)
    assert play(SeededEpisodes(DrawingEnv(), seed=5, env_index=1), 4) == first
    assert len({str(episode[0]) for episode in first}) == 4
    assert play(SeededEpisodes(DrawingEnv(), seed=6, env_index=1), 4)[0] != first[0]
    assert play(SeededEpisodes(DrawingEnv(), seed=5, env_index=2), 4)[0] != first[0]
    evaluation = SeededEpisodes(DrawingEnv(), seed=5, env_index=1, stream=EVALUATION_EPISODES)
    assert play(evaluation, 4)[0] != first[0]


def test_an_episode_does_not_depend_on_how_the_one_before_was_played() -> None:
    played, abandoned = (SeededEpisodes(DrawingEnv(), seed=5, env_index=0) for _ in range(2))
    expected = play(played, 2)[1]
    abandoned.reset()
    assert play(abandoned, 1)[0] == expected


def test_a_stream_can_be_joined_at_any_episode() -> None:
    expected = play(SeededEpisodes(DrawingEnv(), seed=5, env_index=0), 4)[3]
    later = SeededEpisodes(DrawingEnv(), seed=5, env_index=0)
    later.episode = 2  # the last one that was played
    assert play(later, 1)[0] == expected


def test_a_reset_with_a_seed_starts_a_new_stream() -> None:
    env = SeededEpisodes(DrawingEnv(), seed=5, env_index=3)
    play(env, 2)
    env.reset(seed=8)
    second = play(env, 1)[0]
    assert second == play(SeededEpisodes(DrawingEnv(), seed=8, env_index=3), 2)[1]


def test_the_environment_gets_the_derived_seed() -> None:
    env = DrawingEnv()
    SeededEpisodes(env, seed=5, env_index=2).reset()
    assert env.np_random_seed == episode_seed(5, 2, 0)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_sync_environments_play_the_same_episodes_whatever_their_number(num_envs: int) -> None:
    for index, seen in enumerate(vector_play("sync", num_envs)):
        expected = flat(play(make_env(CONFIG, index, factory=DrawingEnv)(), 15))
        assert seen == expected[: len(seen)]


def test_async_environments_play_the_same_episodes_as_sync_ones() -> None:
    assert vector_play("async", 2) == vector_play("sync", 4)[:2]


def test_action_spaces_are_seeded_per_environment() -> None:
    def draws(seed: int, index: int) -> list[int]:
        env = SeededEpisodes(DrawingEnv(), seed=seed, env_index=index)
        return [int(env.action_space.sample()) for _ in range(40)]

    assert draws(5, 0) == draws(5, 0)
    assert draws(5, 0) != draws(5, 1)
    assert draws(5, 0) != draws(6, 0)


def test_the_last_observation_survives_a_reset_that_reuses_its_memory() -> None:
    env = SeededEpisodes(CountingEnv(lengths=(1,), reuse=True), seed=0, env_index=0)
    env.reset()
    last = env.step(0)[0]
    kept = copy.deepcopy(last)
    env.reset()
    np.testing.assert_array_equal(last, kept)


def test_final_observations_are_true_though_the_environment_reuses_its_memory() -> None:
    factory = partial(CountingEnv, lengths=(2,), reuse=True)
    stepper = VectorStepper(make_vector_env(CONFIG, 2, factory=factory))
    stepper.reset()
    for _ in range(2):
        stepper.step(np.zeros(2, np.int64))
    assert stepper.out.final_obs.tolist() == [[0, 2], [0, 2]]  # type: ignore[union-attr]
    assert stepper.out.obs.tolist() == [[1, 0], [1, 0]]  # type: ignore[union-attr]


class Breaking(CountingEnv):
    def __init__(self, at: str) -> None:
        super().__init__(lengths=(5,))
        self.at = at

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.at == "reset" and self.episode == 0:
            raise RuntimeError("no more episodes")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.at == "step" and self.count == 2:
            raise RuntimeError("motor burnt")
        return super().step(action)


def test_a_fault_tells_where_it_happened() -> None:
    env = SeededEpisodes(Breaking("step"), seed=0, env_index=7)
    env.reset()
    env.step(0)
    env.step(0)
    message = r"environment 7 \(Breaking\) raised RuntimeError in step, step 3 of its episode 0: motor burnt"
    with pytest.raises(EnvironmentFault, match=message):
        env.step(0)
    env = SeededEpisodes(Breaking("reset"), seed=0, env_index=1)
    env.reset()
    with pytest.raises(EnvironmentFault, match=r"environment 1 .* in reset, .*episode 1: no more episodes"):
        env.reset()


def test_an_environment_is_built_anew_for_every_episode_under_its_wrappers() -> None:
    built: list[DrawingEnv] = []
    closed: list[DrawingEnv] = []

    class Closing(DrawingEnv):
        def close(self) -> None:
            closed.append(self)

    def chain() -> gymnasium.Env[Any, Any]:
        built.append(Closing())
        return TimeLimit(OrderEnforcing(built[-1]), 9)

    for wrapped in (True, False):
        built.clear(), closed.clear()
        env = make_env(
            CONFIG.with_overrides(rebuild_envs="on"),
            0,
            factory=chain if wrapped else lambda: chain().unwrapped,
        )()
        outermost = env.env
        played = play(env, 3)
        assert played == play(make_env(CONFIG, 0, factory=DrawingEnv)(), 3)
        assert len(built) == 3
        assert closed == built[:2]
        assert env.unwrapped is built[2]
        assert (env.env is outermost) is wrapped


def test_without_being_asked_an_environment_stays() -> None:
    for setting in ("auto", "off"):
        env = make_env(CONFIG.with_overrides(rebuild_envs=setting), 0, factory=DrawingEnv)()
        first = env.unwrapped
        play(env, 2)
        assert env.unwrapped is first


def test_a_step_that_fails_without_a_word_is_told_by_its_line() -> None:
    class Silent(CountingEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            raise AssertionError

    env = SeededEpisodes(Silent(lengths=(5,)), seed=0, env_index=0)
    env.reset()
    with pytest.raises(
        EnvironmentFault, match=r"episode 0: no message; raised by 'raise AssertionError' in .*test_episodes"
    ):
        env.step(0)


GRID = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (GRID, GRID.copy(), GRID + 1),
        (GRID.T, np.ascontiguousarray(GRID.T), GRID),
        (GRID[:, ::2], GRID[:, ::2].copy(), GRID[:, 1::2]),
        (np.int64(3), 3, 4),
        (0.5, np.float64(0.5), 0.25),
        ({"a": GRID, "b": (1, GRID)}, {"a": GRID.copy(), "b": (1, GRID)}, {"a": GRID, "b": (2, GRID)}),
        ((GRID, {"c": GRID[::2]}), (GRID, {"c": GRID[::2].copy()}), (GRID, {"c": GRID[1:]})),
    ],
)
def test_equal_observations_have_equal_hashes_and_others_have_not(one: Any, same: Any, other: Any) -> None:
    assert trace(one) == trace(same) != trace(other)
    assert trace(one, 5) != trace(one, 6)


def test_the_order_and_the_number_of_rewards_count() -> None:
    assert trace_of_rewards([1, 0.5]) == trace_of_rewards([np.float64(1), np.float32(0.5)])
    assert len({trace_of_rewards(each) for each in ([], [0.0], [0.0, 0.0], [1, 0.5], [0.5, 1])}) == 5


class Flicker(DrawingEnv):
    """Shows in its last step what its seed says, and before that, or in what it pays, what its life was."""

    lives = 0

    def __init__(self, where: str) -> None:
        super().__init__()
        Flicker.lives += 1
        self.where, self.life = where, Flicker.lives

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        self.left = 9
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        strange = self.left == 7
        if strange and self.where == "observation":
            obs = obs + np.float32(self.life)
        return obs, reward + (self.life if strange and self.where == "reward" else 0), *rest


def interrupted(where: str) -> tuple[VectorStepper, dict[str, Any]]:
    first, second = (
        VectorStepper(make_vector_env(CONFIG, 2, factory=lambda: Flicker(where))) for _ in range(2)
    )
    first.reset()
    for _ in range(4):
        first.step(np.zeros(2, np.int64))
    return second, first.state_dict()


def test_a_difference_in_the_middle_of_an_episode_is_noticed() -> None:
    """The last observation is the same: only the hash can tell."""
    stepper, state = interrupted("observation")
    assert stepper.resume(state) == [0, 1]
    assert [len(actions) for _, actions in stepper.env.call("episode_state")] == [0, 0]  # type: ignore[attr-defined]


def test_a_difference_in_the_rewards_is_told() -> None:
    stepper, state = interrupted("reward")
    with pytest.warns(
        UserWarning, match=r"environments \[0, 1\] returned the same observations but other rewards"
    ):
        assert stepper.resume(state) == []
