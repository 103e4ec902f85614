"""Runs on images that `preprocessing: image` stacks: a resumed one shows what an uninterrupted one showed."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.envs.stepper_factory import probe_spec
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtUpdate
from support.compared_runs import assert_same_run, manifest


class Flicker(gymnasium.Env[Any, Any]):
    """Random pictures beside a number, all drawn into the same memory; an episode lasts 17 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "picture": spaces.Box(0, 255, (8, 7, 2), np.uint8),
                "speed": spaces.Box(0.0, 1.0, (1,), np.float32),
            }
        )
        self.action_space = spaces.Discrete(2)
        self.picture = np.zeros((8, 7, 2), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), float(action), False, self.count == 17, {}

    def _observe(self) -> Any:
        self.picture[...] = self.np_random.integers(256, size=self.picture.shape)
        return {"picture": self.picture, "speed": self.np_random.random(1, np.float32)}


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_resumed_run_on_stacked_images_equals_an_uninterrupted_one(tiny, rows, backend):
    config = tiny(
        env_id="Flicker", preprocessing="image", frame_stack=3, features_dim=8, env_backend=backend,
        num_steps=11, batch_size=11, total_timesteps=132, keep_checkpoints=99,
    )  # fmt: skip
    whole = train(config, factory=Flicker).run_dir
    paused = train(config, factory=Flicker, callbacks=[StopAtUpdate(88)]).run_dir
    state = manifest(paused / "checkpoints" / "step_88")["state"]["sampler"]["envs"]
    assert state["lengths"] == [10, 10], "no episode was unfinished: the test would say nothing"
    spec = probe_spec(config, Flicker)
    assert spec.observation_space["picture"].shape == (6, 8, 7)
    resume(paused, factory=Flicker)
    assert_same_run(paused, whole, rows)
