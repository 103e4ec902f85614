from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from records import CountingEnv

from rl_training.core.types import Evaluation
from rl_training.envs.stepper import VectorStepper
from rl_training.runtime.evaluator import Evaluator

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


class Still:
    """Always plays action 0 and notes how it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, Any]] = []

    def initial_state(self, rows: int) -> Any:
        return ()

    def act(self, obs: Any, state: Any, *, deterministic: bool, rng: np.random.Generator) -> Any:
        self.asked.append((deterministic, rng))
        return np.zeros(len(obs), np.int64), state


class Counting(Still):
    """Remembers how many steps it acted in, and notes that beside the step that each row observes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, float]] = []

    def initial_state(self, rows: int) -> Any:
        return (np.zeros((rows, 1)),)

    def act(self, obs: Any, state: Any, **options: Any) -> Any:
        (counted,) = state
        self.seen += zip(obs[:, 1].tolist(), counted[:, 0].tolist(), strict=True)
        return np.zeros(len(obs), np.int64), (counted + 1,)


def make_evaluator(mode: AutoresetMode, *lengths: tuple[int, ...], policy: Still | None = None) -> Evaluator:
    builders = [partial(CountingEnv, lengths=each) for each in lengths]
    return Evaluator(VectorStepper(SyncVectorEnv(builders, autoreset_mode=mode)), policy or Still())


def lengths_of(evaluator: Evaluator, num_episodes: int) -> list[int]:
    evaluation = evaluator.evaluate(num_episodes, deterministic=True, rng=np.random.default_rng(0))
    assert evaluation.returns == [n * (n + 1) / 2 for n in evaluation.lengths]  # 1 + 2 + … + n
    return evaluation.lengths


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("num_episodes", "expected"),
    [
        (1, [1]),
        (2, [1, 7]),
        (3, [1, 7, 20]),
        (4, [1, 1, 7, 20]),
        (6, [1, 1, 7, 7, 20, 20]),
        (8, [1, 1, 1, 7, 7, 7, 20, 20]),
    ],
)
def test_every_environment_plays_its_quota_however_short_its_episodes(
    mode: AutoresetMode, num_episodes: int, expected: list[int]
) -> None:
    assert lengths_of(make_evaluator(mode, (1,), (7,), (20,)), num_episodes) == expected


@pytest.mark.parametrize("mode", MODES)
def test_the_first_episodes_of_each_environment_count_in_their_order(mode: AutoresetMode) -> None:
    assert lengths_of(make_evaluator(mode, (5, 2, 1), (3, 9, 1)), 4) == [5, 2, 3, 9]


@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_begins_with_fresh_episodes(mode: AutoresetMode) -> None:
    evaluator = make_evaluator(mode, (2,), (5,))
    assert lengths_of(evaluator, 3) == [2, 2, 5]
    assert lengths_of(evaluator, 3) == [2, 2, 5]


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_policy_is_asked_as_told(deterministic: bool) -> None:
    evaluator, rng = make_evaluator(MODES[0], (3,)), np.random.default_rng(0)
    evaluator.evaluate(1, deterministic=deterministic, rng=rng)
    assert evaluator.policy.asked == [(deterministic, rng)] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", MODES)
def test_episodes_that_do_not_end_are_cut_off_and_counted(mode: AutoresetMode) -> None:
    """Those that end on the very step of the limit are not; and after a cut the next episode begins anew."""
    evaluator = make_evaluator(mode, (50,), (10,), (3,), (9, 40, 2))
    evaluation = evaluator.evaluate(
        10, deterministic=True, rng=np.random.default_rng(0), max_episode_steps=10
    )
    assert evaluation.lengths == [10, 10, 10, 10, 10, 10, 3, 3, 9, 10]
    assert evaluation.returns == [n * (n + 1) / 2 for n in evaluation.lengths]
    assert evaluation.num_capped == 4
    assert evaluation.summary()["num_capped_episodes"] == 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_episode_steps", [None, 4])
def test_every_episode_begins_with_an_empty_memory(
    mode: AutoresetMode, max_episode_steps: int | None
) -> None:
    """Also after the step that only resets a row, in which the policy is asked for an action all the same."""
    policy, rng = Counting(), np.random.default_rng(0)
    evaluator = make_evaluator(mode, (2,), (5,), (1, 3), policy=policy)
    evaluator.evaluate(9, deterministic=True, rng=rng, max_episode_steps=max_episode_steps)
    ends = {0.0, 2.0, 5.0, 1.0, 3.0}  # a dead row shows the final observation, and has no memory
    assert {counted for step, counted in policy.seen if step == 0} == {0.0}
    assert all(counted == step or (counted == 0 and step in ends) for step, counted in policy.seen)


def test_the_summary_has_what_users_read() -> None:
    summary = Evaluation([1.0, 3.0, 8.0], [2, 4, 6]).summary()
    assert summary == {
        "mean_reward": 4.0,
        "std_reward": pytest.approx(np.sqrt((9 + 1 + 16) / 3)),
        "mean_ep_length": 4.0,
        "num_episodes": 3,
        "num_capped_episodes": 0,
        "returns": [1.0, 3.0, 8.0],
        "lengths": [2, 4, 6],
    }
