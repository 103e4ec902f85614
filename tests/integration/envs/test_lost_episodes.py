"""Episodes that do not come back after a resume: nothing that was known of them leaks into those that follow."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load_file

from rl_training.algorithms.ppo import PPOConfig
from rl_training.algorithms.sac import SACConfig
from rl_training.algorithms.td3 import TD3Config
from rl_training.config import TrainConfig
from rl_training.core.seeding import set_generator_state
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.policies.noise import OrnsteinUhlenbeckNoise
from support.callbacks import StopAtUpdate

GAMMA = 0.9


class Nameless(gymnasium.Env):
    """Shows which episode it is, by a number that no seed decides, and the time; pays 1; ends after 300 steps."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = np.random.default_rng().random(), 0
        return self._obs(), {}

    def step(self, action):
        self.time += 1
        return self._obs(), 1.0, False, self.time >= 300, {}

    def _obs(self):
        return np.array([self.episode, self.time / 300], np.float32)


ON_POLICY = PPOConfig(num_steps=8, batch_size=16, update_epochs=1, hidden_sizes=(8,), gamma=GAMMA)
REPLAY = {"batch_size": 8, "learning_starts": 0, "buffer_size": 200, "hidden_sizes": (8,), "gamma": GAMMA}


def lost(tmp_path: Path, algo: str, settings, before: int, after: int, **changes) -> tuple[Path, Path]:
    """Train for `before` timesteps, then resume for `after` more; return both checkpoints."""
    config = TrainConfig(
        algo=algo, env_id="Nameless", num_envs=2, output_dir=str(tmp_path), total_timesteps=1000,
        eval_every_timesteps=0, checkpoint_every_timesteps=0, num_eval_episodes=1, algorithm=settings, **changes,
    )  # fmt: skip
    first = train(config, factory=Nameless, callbacks=[StopAtUpdate(before)])
    assert first.metrics["global_step"] == before
    with pytest.warns(UserWarning, match=r"environments \[0, 1\] are not deterministic"):
        second = resume(first.run_dir, factory=Nameless, callbacks=[StopAtUpdate(before + after)])
    assert second.metrics["global_step"] == before + after
    return first.checkpoint_path, second.checkpoint_path


def geometric(steps: int) -> float:
    return sum(GAMMA**step for step in range(steps))


@pytest.mark.parametrize(
    ("algo", "settings"),
    [("ppo", ON_POLICY), ("sac", SACConfig(**REPLAY, train_freq=16))],
    ids=["ppo", "sac"],
)
def test_the_scale_of_rewards_does_not_go_on_with_the_return_of_a_lost_episode(tmp_path, algo, settings):
    first, second = lost(tmp_path, algo, settings, before=32, after=16, normalize_reward=True)
    returns = [load_file(path / "source.safetensors")["running_returns"] for path in (first, second)]
    assert returns[0] == pytest.approx([geometric(16)] * 2)
    assert returns[1] == pytest.approx([geometric(8)] * 2)


def test_no_transition_leads_from_a_lost_episode_into_another(tmp_path):
    """The windows of three steps that wait for their last reward wait in vain."""
    _, second = lost(tmp_path, "sac", SACConfig(**REPLAY, n_step=3, train_freq=4), before=24, after=24)
    listed = json.loads((second / "manifest.json").read_text(encoding="utf-8"))["facts"]["replay"]
    files = [entry["name"] for entry in listed["transitions"]["segments"]]
    rows = [load_file(second.parent / "replay" / name) for name in files]
    obs, following, rewards = (
        np.concatenate([row[name] for row in rows]) for name in ("obs", "next_obs", "rewards")
    )
    # in each of two lives each of two environments took 12 steps, of which the last two still wait
    assert len(obs) == 2 * 2 * 10
    assert len(set(obs[:, 0].tolist())) == 4, "every environment began one episode in each life"
    assert (obs[:, 0] == following[:, 0]).all()
    assert rewards == pytest.approx(geometric(3))
    assert following[:, 1] - obs[:, 1] == pytest.approx(3 / 300, abs=1e-6)


def test_correlated_noise_begins_anew_with_the_episode(tmp_path):
    settings = TD3Config(**REPLAY, train_freq=2, action_noise="ornstein_uhlenbeck", action_noise_sigma=0.5)
    first, second = lost(tmp_path, "td3", settings, before=32, after=2)
    stood, stands = (
        load_file(path / "sampler.safetensors")["explorer/noise/value"] for path in (first, second)
    )
    assert (np.abs(stood) > 0.01).all(), "the noise stood at 0: the test would say nothing"
    saved = json.loads((first / "manifest.json").read_text(encoding="utf-8"))["state"]["sampler"]["explorer"]
    rng = np.random.default_rng()
    set_generator_state(rng, saved["rng"])
    assert stands.tolist() == OrnsteinUhlenbeckNoise((2, 1), 0.5).sample(rng).tolist()
