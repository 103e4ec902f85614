"""Native vector environments that show other than their space: the sentences that single ones get."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.core.errors import EnvironmentFault
from rl_training.experiment.start import train

BOX = spaces.Box(-1, 1, (3,), np.float32)
DICT = spaces.Dict({"a": BOX, "b": spaces.Discrete(4)})


class Odd(VectorEnv[Any, Any, Any]):
    """Right until step 5, where it does what it is told to; episodes end at every tenth step."""

    def __init__(self, num_envs: int, how: str, space: str = "box", mode: str = "NEXT_STEP") -> None:
        self.num_envs, self.how, self.time = num_envs, how, 0
        self.metadata = {"autoreset_mode": AutoresetMode[mode]}
        self.single_observation_space: Any = DICT if space == "dict" else BOX
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def _obs(self) -> Any:
        n = self.num_envs
        if isinstance(self.single_observation_space, spaces.Dict):
            return {"a": np.zeros((n, 3), np.float32), "b": np.zeros(n, np.int64)}
        return np.zeros((n, 3), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = 0
        return None if self.how == "reset" else (self._obs(), {})

    def step(self, actions: Any) -> Any:
        n, how = self.num_envs, self.how
        self.time += 1
        ended = np.full(n, self.time % 10 == 0)
        result = [self._obs(), np.zeros(n), ended, np.zeros(n, np.bool_), {}]
        if ended.any() and how != "no final":
            final = np.empty(n, object)
            for i in range(n):
                final[i] = np.zeros(2 if how == "final row" else 3, np.float32)
            result[4] = {"final_obs": np.zeros((n, 7), np.float32) if how == "final batch" else final}
        if self.time == 5:
            self._err(result)
        return result if how == "list" else tuple(result)

    def _err(self, result: list[Any]) -> None:
        n = self.num_envs
        errors: dict[str, tuple[int, Any]] = {
            "shape": (0, np.zeros((n, 4), np.float32)),
            "one for all": (0, np.zeros(3, np.float32)),
            "type": (0, np.full((n, 3), "x")),
            "nan": (0, np.full((n, 3), np.nan, np.float32)),
            "entry": (0, {"a": np.zeros((n, 3), np.float32)}),
            "entry shape": (0, {"a": np.zeros((n, 2), np.float32), "b": np.zeros(n, np.int64)}),
            "reward": (1, np.zeros((n, 2))),
            "one reward": (1, 0.0),
            "word": (1, ["good"] * n),
            "flag": (2, np.full(n, 0.5)),
            "one flag": (3, False),
            "info": (4, None),
        }
        if self.how == "raises":
            raise ValueError("out of order")
        if self.how == "exits":
            raise SystemExit(3)
        if self.how == "four":
            del result[3]
        elif self.how in errors:
            place, value = errors[self.how]
            result[place] = value


gymnasium.register("Odd-v0", vector_entry_point=Odd)  # type: ignore[arg-type]

CASES = {
    "shape": "returned an observation of shape (2, 4), but its space has (2, 3) (step, step 5 of this run)",
    "one for all": "returned an observation of shape (3,), but its space has (2, 3)",
    "type": "but its space has dtype float32",
    "reward": "returned rewards of shape (2, 2), but Gymnasium requires shape (2,)",
    "one reward": "returned rewards of shape (), but Gymnasium requires shape (2,)",
    "word": "returned rewards of type <U4; they must be numbers",
    "flag": "returned 'terminated' of type float64 and shape (2,); it must be true or false for each of 2",
    "one flag": "returned 'truncated' of type bool and shape (); it must be true or false for each of 2",
    "info": "returned None as info, but Gymnasium requires a dict",
    "four": "returned a tuple of 4 from step, but Gymnasium requires (observation, reward, terminated, ",
    "reset": "returned None from reset, but Gymnasium requires (observation, info) (reset, step 0 of this run)",
    "raises": "raised ValueError in step, step 5 of this run: out of order",
    "exits": "raised SystemExit in step, step 5 of this run: 3",
}


def fault(tiny: Any, **env_kwargs: Any) -> str:
    config = tiny("ppo", env_id="Odd-v0", env_backend="native", env_kwargs=env_kwargs, use_action_masks="off")
    with pytest.raises(EnvironmentFault) as raised:
        train(config)
    said = str(raised.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("how", CASES)
def test_it_is_told_in_our_words_by_name_and_step(tiny, how):
    said = fault(tiny, how=how)
    assert said.startswith("environment 'Odd-v0' (native, 2 at once) ")
    assert CASES[how] in said


def test_it_is_told_too_when_masks_are_looked_for(tiny):
    with pytest.raises(EnvironmentFault, match=r"\(native, 2 at once\) returned None from reset"):
        train(tiny("ppo", env_id="Odd-v0", env_backend="native", env_kwargs={"how": "reset"}))


def test_what_is_not_finite_is_told_as_before(tiny):
    assert "environment 0 returned an observation that is nan at step 5 of this run" in fault(tiny, how="nan")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("entry", "returned an observation that is a dict with entries ['a'], but its space has ['a', 'b']"),
        (
            "entry shape",
            "returned an observation whose entry 'a' is of shape (2, 2), but its space has (2, 3)",
        ),
    ],
)
def test_entries_of_a_dict(tiny, how, sentence):
    assert sentence in fault(tiny, how=how, space="dict")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("no final", "ended an episode without info['final_obs'], which same-step autoreset requires"),
        ("final row", "returned a final observation of shape (2,), but its space has (3,)"),
        ("final batch", "returned a final observation of shape (2, 7), but its space has (2, 3)"),
    ],
)
def test_final_observations_of_same_step_autoreset(tiny, how, sentence):
    said = fault(tiny, how=how, mode="SAME_STEP")
    assert sentence in said
    assert "step 10 of this run" in said


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
@pytest.mark.parametrize("how", ["nothing", "list"])
def test_what_is_right_is_let_pass(tiny, mode, how):
    if how == "list":
        assert "returned a list from step" in fault(tiny, how=how, mode=mode)
        return
    kwargs = {"how": how, "mode": mode}
    config = tiny("ppo", env_id="Odd-v0", env_backend="native", env_kwargs=kwargs, use_action_masks="off")
    assert train(config).metrics["global_step"] >= 64
