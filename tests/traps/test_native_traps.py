"""Vector environments of others' making, and what they do to their neighbours; docs/correctness.md lists them."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper


class Undeclared(VectorEnv[Any, Any, Any]):
    """Says nothing of its autoreset mode."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)


class Careless(Undeclared):
    """Declares its mode in the dict that it has from the base class, as ale-py does: for everybody."""

    def __init__(self, num_envs: int, *, fails: bool = False) -> None:
        super().__init__(num_envs)
        self.metadata["autoreset_mode"] = AutoresetMode.SAME_STEP
        if fails:
            raise ValueError("out of order")


for _kind in (Undeclared, Careless):
    gymnasium.register(f"{_kind.__name__}-v0", vector_entry_point=_kind)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _clean_base_class() -> Iterator[None]:
    before = dict(VectorEnv.metadata)
    yield
    VectorEnv.metadata.clear()
    VectorEnv.metadata.update(before)


def native(env_id: str, **env_kwargs: Any) -> VectorEnv[Any, Any, Any]:
    return make_vector_env(
        TrainConfig(algo="ppo", env_id=env_id, num_envs=2, env_backend="native", env_kwargs=env_kwargs)
    )


def test_what_one_native_env_writes_into_class_wide_metadata_is_not_said_of_others() -> None:
    before = dict(VectorEnv.metadata)
    careless = native("Careless-v0")
    assert careless.metadata == before | {"autoreset_mode": AutoresetMode.SAME_STEP}
    assert VectorStepper(careless).same_step
    assert VectorEnv.metadata == before
    with pytest.warns(UserWarning, match="missing AutoresetMode"):
        undeclared = native("Undeclared-v0")
    with pytest.raises(UserError, match="Undeclared declares autoreset mode None"):
        VectorStepper(undeclared)


def test_an_undeclared_env_is_refused_even_if_class_wide_metadata_was_written_before() -> None:
    Careless(1)
    written = dict(VectorEnv.metadata)
    assert "autoreset_mode" in written
    with pytest.warns(UserWarning, match="missing AutoresetMode"):
        undeclared = native("Undeclared-v0")
    with pytest.raises(UserError, match="Undeclared declares autoreset mode None"):
        VectorStepper(undeclared)
    assert VectorEnv.metadata == written  # it is not ours


def test_class_wide_metadata_is_as_it_was_after_a_native_env_that_could_not_be_built() -> None:
    before = dict(VectorEnv.metadata)
    with pytest.raises(UserError, match="out of order"):
        native("Careless-v0", fails=True)
    assert VectorEnv.metadata == before
