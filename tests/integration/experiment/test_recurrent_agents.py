"""An agent with a memory in a user's hands: predict with a state, evaluations that carry it, the page as it stands."""

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training
from loading import ROOT
from rl_training.algorithms import PPO
from rl_training.contrib import RecurrentPPO
from rl_training.core.errors import UserError
from rl_training.envs.tasks.memory import MemoryCorridor


@pytest.fixture
def model(tiny: Any, tmp_path: Path) -> RecurrentPPO:
    corridor = "rl_training.envs.tasks:rl_training/MemoryCorridor-v0"
    return RecurrentPPO(tiny("recurrent_ppo", env_id=corridor, core="gru", share_core=True)).learn()


def test_a_state_goes_on_and_a_start_forgets_it(model: RecurrentPPO) -> None:
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 1, (4, 3, 2)).astype(np.float32)
    _, first = model.predict(seen[0])
    assert first is not None
    assert [part.shape for part in first] == [(3, 6)]
    _, second = model.predict(seen[1], first, np.array([False, True, False]))
    _, fresh = model.predict(seen[1])
    assert second is not None
    assert fresh is not None
    np.testing.assert_array_equal(second[0][1], fresh[0][1])
    assert not np.array_equal(second[0][0], fresh[0][0])
    _, all_fresh = model.predict(seen[1], first, episode_start=True)
    np.testing.assert_array_equal(all_fresh[0], fresh[0])  # type: ignore[index]
    alone, state = model.predict(seen[0][2])
    assert np.shape(alone) == ()
    np.testing.assert_allclose(state[0][0], first[0][2], rtol=1e-5)  # type: ignore[index]


def test_a_state_of_another_kind_is_refused(model: RecurrentPPO) -> None:
    _, state = model.predict(np.zeros((3, 2), np.float32))
    with pytest.raises(
        UserError, match=r"state has parts of shape \[\(3, 6\)\], but the policy has \[\(1, 6\)\]"
    ):
        model.predict(np.zeros(2, np.float32), state)
    with pytest.raises(UserError, match=r"episode_start has shape \(2,\).* for each of 3 rows"):
        model.predict(np.zeros((3, 2), np.float32), state, [True, False])


def test_a_policy_without_memory_takes_no_notice_of_a_state(tiny: Any) -> None:
    model = PPO(tiny("ppo")).learn()
    obs = model.agent.spec.observation_space.sample()
    action, state = model.predict(obs, None, True, deterministic=True)
    assert state is None
    np.testing.assert_array_equal(model.predict(obs, (np.zeros(3),))[0], action)


def test_evaluations_are_what_predicting_step_by_step_gives(model: RecurrentPPO, tmp_path: Path) -> None:
    model.save(tmp_path / "agent")
    again = rl_training.load(tmp_path / "agent")
    summary = again.evaluate(1)
    from rl_training.core.seeding import EVALUATION_EPISODES
    from rl_training.envs.factory import make_env

    played = make_env(again.config, 0, stream=EVALUATION_EPISODES)()
    obs, _ = played.reset()
    state, total, steps, ended = None, 0.0, 0, False
    while not ended:
        action, state = again.predict(obs, state)
        obs, reward, terminated, truncated, _ = played.step(action)
        total, steps, ended = total + float(reward), steps + 1, terminated or truncated
    assert (summary["returns"], summary["lengths"]) == ([total], [steps])
    assert isinstance(played.unwrapped, MemoryCorridor)


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        exec(code, names)
    assert names["state"][0].shape == (1, 64)
    assert names["ended"]
