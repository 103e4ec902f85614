import re
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from records import CountingEnv

from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.envs.stepper import VectorStepper
from rl_training.runtime.episodes import RunningEpisodes

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
MODES = [SAME, NEXT]


def make_stepper(mode: AutoresetMode, *settings: dict[str, Any]) -> VectorStepper:
    """One counting environment per entry of `settings`, freshly reset."""
    env = SyncVectorEnv([partial(CountingEnv, **kwargs) for kwargs in settings], autoreset_mode=mode)
    stepper = VectorStepper(env)
    stepper.reset()
    return stepper


def trace(stepper: VectorStepper, num_steps: int, *names: str) -> list[tuple[Any, ...]]:
    """The named arrays of `out` after each step, as lists."""
    found = []
    for _ in range(num_steps):
        stepper.step(np.zeros(stepper.spec.num_envs, np.int64))
        found.append(tuple(np.asarray(getattr(stepper.out, name)).tolist() for name in names))
    return found


def test_same_step_shows_the_next_episode_and_keeps_the_true_last_observation() -> None:
    stepper = make_stepper(SAME, {"lengths": (2, 3)})
    rows = []
    for _ in range(5):
        stepper.step(np.zeros(1, np.int64))
        out = stepper.out
        rows.append((out.obs[0].tolist(), out.final_obs[0].tolist() if out.ended[0] else None, out.reward[0]))
    assert rows == [
        ([0, 1], None, 1.0),
        ([1, 0], [0, 2], 2.0),
        ([1, 1], None, 1.0),
        ([1, 2], None, 2.0),
        ([2, 0], [1, 3], 3.0),
    ]


def test_same_step_never_has_a_dead_row() -> None:
    stepper = make_stepper(SAME, {"lengths": (1,)}, {"lengths": (2,)})
    assert trace(stepper, 3, "valid", "num_valid") == [([True, True], 2)] * 3


def test_next_step_shows_the_true_last_observation_and_then_a_dead_row() -> None:
    stepper = make_stepper(NEXT, {"lengths": (2,)})
    assert trace(stepper, 5, "obs", "ended", "valid", "num_valid", "reward") == [
        ([[0, 1]], [False], [True], 1, [1.0]),
        ([[0, 2]], [True], [True], 1, [2.0]),
        ([[1, 0]], [False], [False], 0, [0.0]),
        ([[1, 1]], [False], [True], 1, [1.0]),
        ([[1, 2]], [True], [True], 1, [2.0]),
    ]
    assert stepper.out.final_obs.tolist() == [[1, 2]]  # type: ignore[union-attr]


def test_next_step_marks_only_the_rows_that_are_dead() -> None:
    stepper = make_stepper(NEXT, {"lengths": (1,)}, {"lengths": (3,)})
    assert trace(stepper, 5, "ended", "valid", "num_valid") == [
        ([True, False], [True, True], 2),
        ([False, False], [False, True], 1),
        ([True, True], [True, True], 2),
        ([False, False], [False, False], 0),
        ([True, False], [True, True], 2),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_valid_rows_count_the_true_steps_of_the_environments(mode: AutoresetMode) -> None:
    stepper = make_stepper(mode, {"lengths": (1, 4)}, {"lengths": (2,)}, {"lengths": (7, 3)})
    valid = 0
    for _ in range(40):
        stepper.step(np.zeros(3, np.int64))
        assert stepper.out.num_valid == stepper.out.valid.sum()
        valid += stepper.out.num_valid
    assert isinstance(stepper.env, SyncVectorEnv)
    assert valid == sum(env.total_steps for env in stepper.env.envs)  # type: ignore[attr-defined]
    assert (valid == 120) is (mode is SAME)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("terminates", "truncates", "expected"),
    [(True, False, (True, False)), (False, True, (False, True)), (True, True, (True, False))],
)
def test_terminated_wins_if_both_flags_are_set(
    mode: AutoresetMode, terminates: bool, truncates: bool, expected: tuple[bool, bool]
) -> None:
    stepper = make_stepper(mode, {"lengths": (1,), "terminates": terminates, "truncates": truncates})
    stepper.step(np.zeros(1, np.int64))
    out = stepper.out
    assert (out.terminated[0], out.truncated[0]) == expected
    assert out.ended[0]
    assert out.any_ended


def test_a_dead_row_that_still_claims_an_end_or_a_reward_is_silenced() -> None:
    class Echo(VectorEnv[Any, Any, Any]):
        metadata = {"autoreset_mode": NEXT}  # noqa: RUF012
        num_envs = 1
        single_observation_space = spaces.Box(-1, 1, (1,))
        single_action_space = spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros((1, 1), np.float32), {}

        def step(self, actions: Any) -> Any:
            return np.zeros((1, 1), np.float32), np.ones(1), np.array([True]), np.array([False]), {}

    stepper = VectorStepper(Echo())
    stepper.reset()
    assert trace(stepper, 4, "ended", "valid", "reward", "any_ended") == [
        ([True], [True], [1.0], True),
        ([False], [False], [0.0], False),
        ([True], [True], [1.0], True),
        ([False], [False], [0.0], False),
    ]


def test_what_a_next_step_environment_pays_on_its_dead_row_is_not_counted() -> None:
    class Paying(VectorEnv[Any, Any, Any]):
        """Pays 7 whatever happens, also on the row where it only resets; env n ends every n + 2 true steps."""

        metadata = {"autoreset_mode": NEXT}  # noqa: RUF012
        num_envs = 2
        single_observation_space = spaces.Box(0, 99, (1,))
        single_action_space = spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.count = np.zeros(2, np.int64)
            return self.count[:, None].astype(np.float32), {}

        def step(self, actions: Any) -> Any:
            limits = np.array([2, 3])
            self.count = np.where(self.count == limits, 0, self.count + 1)
            obs = self.count[:, None].astype(np.float32)
            return obs, np.full(2, 7.0), self.count == limits, np.zeros(2, np.bool_), {}

    stepper = VectorStepper(Paying())
    stepper.reset()
    running, episodes, paid = RunningEpisodes(stepper.rows), [], []
    for _ in range(12):
        stepper.step(np.zeros(2, np.int64))
        paid.append(stepper.out.reward.tolist())
        episodes += running.record(stepper.out)
    assert [row[0] for row in paid] == [7, 7, 0] * 4
    assert [row[1] for row in paid] == [7, 7, 7, 0] * 3
    assert {(e.total_reward, e.length) for e in episodes} == {(14.0, 2), (21.0, 3)}


def test_a_reset_forgets_that_an_episode_had_ended() -> None:
    stepper = make_stepper(NEXT, {"lengths": (1,)})
    stepper.step(np.zeros(1, np.int64))
    stepper.reset()
    assert not stepper.out.ended.any()
    assert trace(stepper, 1, "valid", "num_valid") == [([True], 1)]


@pytest.mark.parametrize("mode", MODES)
def test_every_step_writes_into_the_same_memory(mode: AutoresetMode) -> None:
    stepper = make_stepper(mode, {"lengths": (2,)}, {"lengths": (3,)})
    names = ("obs", "final_obs", "reward", "terminated", "truncated", "ended", "valid")
    before = {name: getattr(stepper.out, name).ctypes.data for name in names}
    out = stepper.out
    trace(stepper, 10)
    assert stepper.out is out
    assert {name: getattr(out, name).ctypes.data for name in names} == before


@pytest.mark.parametrize("declared", [None, AutoresetMode.DISABLED, "Disabled", "sometimes"])
def test_an_undeclared_or_disabled_mode_is_refused(declared: Any) -> None:
    env = SyncVectorEnv([CountingEnv])
    env.metadata = dict(env.metadata) | {"autoreset_mode": declared}
    if declared is None:
        del env.metadata["autoreset_mode"]
    with pytest.raises(
        UserError, match=r"SyncVectorEnv declares autoreset mode .*metadata\['autoreset_mode'\]"
    ):
        VectorStepper(env)


@pytest.mark.parametrize(
    ("declared", "same"), [(SAME, True), ("SameStep", True), (NEXT, False), ("NextStep", False)]
)
def test_the_mode_is_read_from_the_metadata(declared: Any, same: bool) -> None:
    env = SyncVectorEnv([CountingEnv])
    env.metadata = dict(env.metadata) | {"autoreset_mode": declared}
    assert VectorStepper(env).same_step is same


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("poison", "quantity"),
    [
        ({"poison": {(0, 1): 0.0}}, "observation"),
        ({"poisoned_rewards": {(0, 1): 0.0}}, "reward"),
    ],
)
def test_non_finite_numbers_are_refused_by_env_and_quantity(
    mode: AutoresetMode, bad: float, poison: dict[str, Any], quantity: str
) -> None:
    name, place = next(iter(poison.items()))
    stepper = make_stepper(mode, {}, {}, {name: dict.fromkeys(place, bad)})
    with pytest.raises(
        EnvironmentFault, match=f"environment 2 returned an? {quantity} that is {bad} at step 1"
    ):
        stepper.step(np.zeros(3, np.int64))


def test_large_rewards_that_fit_are_taken() -> None:
    paid = [3.4e38, -3.4e38, 3.4e38]
    stepper = make_stepper(SAME, *({"poisoned_rewards": {(0, 1): reward}} for reward in paid))
    stepper.step(np.zeros(3, np.int64))
    assert stepper.out.reward.tolist() == paid


@pytest.mark.parametrize("bad", [1e39, -3.5e38, 1e200])
@pytest.mark.parametrize("mode", MODES)
def test_a_reward_that_is_finite_but_not_as_it_is_stored_is_refused(mode: AutoresetMode, bad: float) -> None:
    stepper = make_stepper(
        mode, {}, {"poisoned_rewards": {(0, 1): 3.4e38}}, {"poisoned_rewards": {(0, 1): bad}}
    )
    sentence = re.escape(
        f"environment 2 returned a reward of {bad:g} at step 1 of this run, which does not fit float32"
    )
    with pytest.raises(EnvironmentFault, match=sentence):
        stepper.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("mode", "quantity"), [(SAME, "final observation"), (NEXT, "observation")])
def test_a_non_finite_final_observation_is_refused(mode: AutoresetMode, quantity: str, bad: float) -> None:
    stepper = make_stepper(mode, {}, {"lengths": (2,), "poison": {(0, 2): bad}})
    stepper.step(np.zeros(2, np.int64))
    with pytest.raises(
        EnvironmentFault, match=f"environment 1 returned an? {quantity} that is {bad} at step 2"
    ):
        stepper.step(np.zeros(2, np.int64))


def test_a_non_finite_first_observation_is_refused() -> None:
    env = SyncVectorEnv([partial(CountingEnv, poison={(0, 0): np.nan})], autoreset_mode=SAME)
    with pytest.raises(
        EnvironmentFault, match=r"environment 0 returned an? observation that is nan at step 0"
    ):
        VectorStepper(env).reset()


class NestedEnv(gymnasium.Env[Any, Any]):
    """Dict and Tuple observations that tell the step; two steps per episode; takes off-centre Box actions."""

    def __init__(self, poison: bool = False) -> None:
        self.observation_space = spaces.Dict(
            {
                "in": spaces.Dict({"x": spaces.Box(-9, 9, (2,))}),
                "pair": spaces.Tuple([spaces.Discrete(9), spaces.Box(0, 9, (1,), np.uint8)]),
            }
        )
        self.action_space = spaces.Box(2.0, 4.0, (2, 1))
        self.poison = poison

    def _observe(self) -> Any:
        x = np.full(2, np.nan if self.poison and self.count == 2 else self.count, np.float32)
        return {"in": {"x": x}, "pair": (self.count, np.array([self.count], np.uint8))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), float(action.sum()), False, self.count == 2, {}


@pytest.mark.parametrize("mode", MODES)
def test_nested_observations_and_their_finals_are_flattened(mode: AutoresetMode) -> None:
    stepper = VectorStepper(SyncVectorEnv([NestedEnv, NestedEnv], autoreset_mode=mode))
    stepper.reset()
    for _ in range(2):
        stepper.step(np.zeros((2, 2), np.float32))
    out = stepper.out
    assert isinstance(out.obs, dict)
    assert isinstance(out.final_obs, dict)
    assert {key: array.tolist() for key, array in out.final_obs.items()} == {
        "in/x": [[2, 2], [2, 2]],
        "pair/0": [2, 2],
        "pair/1": [[2], [2]],
    }
    seen = 0 if mode is SAME else 2
    assert out.obs["pair/0"].tolist() == [seen, seen]
    assert out.reward.tolist() == [6.0, 6.0]  # the middle of both dimensions
    assert out.truncated.all()


def test_the_entry_of_a_bad_nested_final_observation_is_named() -> None:
    env = SyncVectorEnv([NestedEnv, partial(NestedEnv, poison=True)], autoreset_mode=SAME)
    stepper = VectorStepper(env)
    stepper.reset()
    stepper.step(np.zeros((2, 2), np.float32))
    with pytest.raises(
        EnvironmentFault, match="environment 1 returned a final observation 'in/x' that is nan"
    ):
        stepper.step(np.zeros((2, 2), np.float32))


def test_final_observations_may_come_as_one_array_for_all() -> None:
    class Batched(VectorEnv[Any, Any, Any]):
        metadata = {"autoreset_mode": SAME}  # noqa: RUF012
        num_envs = 2
        single_observation_space = spaces.Box(-9, 9, (1,))
        single_action_space = spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.seed = seed
            return np.zeros((2, 1), np.float32), {}

        def step(self, actions: Any) -> Any:
            final = np.array([[5.0], [np.nan]], np.float32)  # the second row did not end: it means nothing
            flags = np.array([True, False])
            return np.ones((2, 1), np.float32), np.ones(2), flags, ~flags & flags, {"final_obs": final}

    env = Batched()
    stepper = VectorStepper(env, seed=11)
    stepper.reset()
    assert env.seed == 11
    stepper.step(np.zeros(2, np.int64))
    assert isinstance(stepper.out.final_obs, np.ndarray)
    assert stepper.out.final_obs[0].tolist() == [5.0]
    assert stepper.out.obs.tolist() == [[1.0], [1.0]]  # type: ignore[union-attr]
