"""Whether episodes reached their goal, as environments tell it: logged, evaluated, saved, resumed."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train
from rl_training.runtime.callbacks import StopAtSuccess
from rl_training.runtime.metrics import RecentEpisodes
from support.compared_runs import assert_same_run, crashed


class Goal(gymnasium.Env[Any, Any]):
    """Four steps; the goal is reached in every episode whose seed drew heads. Says so at the end alone, or always."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, always: bool = False, silent: bool = False) -> None:
        self.always, self.silent = always, silent

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.heads = 0, bool(self.np_random.random() < 0.5)
        return np.array([self.heads], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        over = self.count == 4
        says = not self.silent and (over or self.always)
        info = {"is_success": over and self.heads} if says else {}
        return np.array([self.heads], np.float32), float(self.heads), over, False, info


gymnasium.register("Goal-v0", entry_point=Goal)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("always", [True, False])
def test_the_rate_is_that_of_the_returns(tiny, rows, backend, always):
    config = tiny(
        "ppo", env_id="Goal-v0", env_kwargs={"always": always}, env_backend=backend, eval_every_timesteps=32
    )
    result = train(config.with_overrides(num_eval_episodes=5))
    logged = rows(result.run_dir / "metrics.jsonl")
    assert logged[-1]["rollout/success_rate"] == logged[-1]["rollout/ep_rew_mean"] / 4
    assert 0 < logged[-1]["rollout/success_rate"] < 1
    assert logged[-1]["eval/success_rate"] == logged[-1]["eval/mean_reward"] / 4
    summary = evaluate_checkpoint(result.run_dir, 5)
    assert summary["success_rate"] == summary["mean_reward"] / 4
    assert result.metrics["eval/success_rate"] == summary["success_rate"]


def test_nothing_is_said_where_nothing_is_told(tiny, rows):
    result = train(tiny("ppo", env_id="Goal-v0", env_kwargs={"silent": True}))
    assert not [name for row in rows(result.run_dir / "metrics.jsonl") for name in row if "success" in name]
    assert "success_rate" not in evaluate_checkpoint(result.run_dir, 2)


def test_it_survives_an_interruption(tiny, rows):
    config = tiny("dqn", env_id="Goal-v0", checkpoint_every_timesteps=24, log_every_timesteps=16)
    whole, killed = train(config).run_dir, crashed(config, 40)
    resume(killed)
    assert_same_run(killed, whole, rows)


def test_what_was_saved_before_success_was_known_is_read():
    episodes = RecentEpisodes()
    episodes.load_state_dict({"recent": [[1.0, 2, 0.1], [2.0, 3, 0.1, 1.0]], "total_episodes": 2})
    assert episodes.means()["rollout/success_rate"] == 1.0
    assert episodes.state_dict()["recent"] == [[1.0, 2, 0.1], [2.0, 3, 0.1, 1.0]]


def test_the_command_tells_it(tiny, cli):
    run_dir = train(tiny("ppo", env_id="Goal-v0")).run_dir
    outcome = cli("eval", run_dir, "--num-episodes", 4)
    assert "% reached their goal)" in outcome.out


def test_it_may_end_a_run(tiny):
    config = tiny("ppo", env_id="Goal-v0", eval_every_timesteps=32)
    assert train(config, callbacks=[StopAtSuccess(1.01)]).stop_reason is None
    assert "success rate" in str(train(config, callbacks=[StopAtSuccess(0.0)]).stop_reason)
    silent = config.with_overrides(env_kwargs={"silent": True})
    assert train(silent, callbacks=[StopAtSuccess(0.0)]).stop_reason is None
