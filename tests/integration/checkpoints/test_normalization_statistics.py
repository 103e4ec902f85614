"""Normalisation statistics are part of the model: saved with each checkpoint, frozen whenever nobody learns."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import rl_training
from rl_training.algorithms import PPO
from rl_training.experiment.start import train


@pytest.fixture
def normalised(tiny):
    return lambda **changes: tiny(
        env_id="tiny_envs:Lottery-v0", normalize_obs=True, normalize_reward=True, **changes
    )


def test_best_and_last_have_each_their_own(normalised, read_pointer, rows):
    config = normalised(total_timesteps=320, eval_every_timesteps=32, learning_rate=1e-12)
    run_dir = train(config).run_dir
    evaluations = rows(run_dir / "evaluations.jsonl")
    best = max(evaluations, key=lambda row: row["mean_reward"])["timesteps"]
    assert best < 320
    for pointer, steps in (("best", best), ("last", 320)):
        weights = load_file(read_pointer(run_dir, pointer) / "model.safetensors")
        assert float(weights["normalizer.moments.count"]) == steps
        assert float(weights["reward_normalizer.moments.count"]) == steps
    moments = [load_file(read_pointer(run_dir, p) / "model.safetensors") for p in ("best", "last")]
    assert not np.array_equal(moments[0]["normalizer.moments.mean"], moments[1]["normalizer.moments.mean"])


@pytest.mark.parametrize("pointer", ["best", "last"])
def test_a_loaded_agent_repeats_the_evaluation_of_its_checkpoint(normalised, rows, read_pointer, pointer):
    """Only possible with the statistics of that moment: those of another step give other actions."""
    run_dir = train(normalised(total_timesteps=320, eval_every_timesteps=32, num_eval_episodes=8)).run_dir
    model = rl_training.load(run_dir / pointer)
    (recorded,) = [r for r in rows(run_dir / "evaluations.jsonl") if r["timesteps"] == model.agent.timesteps]
    del recorded["timesteps"]
    assert model.evaluate(8) == recorded
    assert model.agent.path == read_pointer(run_dir, pointer)


def test_the_recorded_statistics_are_those_of_the_observations(tiny):
    """Against NumPy over everything the environments said in training."""
    from tiny_envs import Lottery

    seen = []

    class Telling(Lottery):
        def _obs(self):
            obs = super()._obs()
            self.said = obs
            return obs

        def step(self, action):
            seen.append(self.said.copy())  # what the policy acted on
            return super().step(action)

    config = tiny(
        env_id="Lottery", normalize_obs=True, total_timesteps=128, learning_rate=1e-12
    ).with_overrides(
        rebuild_envs="off",  # only the run itself is to be seen
        use_action_masks="off",
    )
    model = PPO(config, env=Telling)
    model.learn()
    weights = load_file(model.agent.path / "model.safetensors")
    assert len(seen) > 128  # the evaluation comes after the last update, and must not count
    training = np.stack(seen[:128]).astype(np.float64)
    assert weights["normalizer.moments.mean"] == pytest.approx(training.mean(axis=0), rel=1e-6, abs=1e-9)
    assert weights["normalizer.moments.var"] == pytest.approx(training.var(axis=0), rel=1e-6)


def test_evaluating_and_predicting_change_nothing(normalised, tmp_path):
    model = PPO(normalised()).learn()
    model.save(tmp_path / "before")
    buffers = {name: value.clone() for name, value in model.agent.policy.state_dict().items()}
    model.evaluate(5)
    model.predict(np.full((4, 3), 7.0, np.float32))
    for name, value in model.agent.policy.state_dict().items():
        assert np.array_equal(value, buffers[name]), name
    model.save(tmp_path / "after")
    for path in (tmp_path / "before").iterdir():
        assert path.read_bytes() == (tmp_path / "after" / path.name).read_bytes()


def test_reported_returns_stay_raw(tiny, rows):
    """Scaled rewards are for learning; the clock's best return is 8 in every file."""

    def row(**changes):
        result = train(tiny(learning_rate=1e-12, **changes))
        return rows(result.run_dir / "metrics.jsonl")[-1]

    raw, scaled = row(), row(normalize_reward=True)
    for name in ("rollout/ep_rew_mean", "eval/mean_reward"):
        assert raw[name] == scaled[name]
    assert raw["train/value_loss"] != scaled["train/value_loss"]
