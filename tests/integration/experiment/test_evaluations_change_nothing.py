"""What is learned does not depend on evaluations, videos or agents that callbacks evaluate."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import Dropping
from tiny_envs import Clockwork

from rl_training import PPO
from rl_training.core.seeding import global_generators, seed_global_generators
from rl_training.experiment.video import record_video
from rl_training.runtime.callbacks import Callback
from support.compared_runs import tensors


class Careless(Clockwork):
    """Draws from the global generators: when it is built, reset and stepped."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode, self.shift = render_mode, np.random.normal()

    def _obs(self) -> Any:
        drawn = (np.random.normal(), random.random(), float(torch.rand(())))
        return np.clip(super()._obs() + 0.1 * np.array(drawn, np.float32) + 0.1 * self.shift, -9, 9).astype(
            np.float32
        )

    def render(self) -> Any:
        return np.zeros((32, 32, 3), np.uint8)


class Evaluating(Callback):
    """Evaluates the agent after every collect, and draws nothing itself."""

    def on_start(self, context: Any) -> None:
        self.agent = context.agent

    def on_collect(self, progress: Any) -> None:
        self.summary = self.agent.evaluate(2)


class Recording(Evaluating):
    def on_collect(self, progress: Any) -> None:
        self.files = record_video(self.agent, Path("videos"))


def weights(tiny: Any, callbacks: Any = (), **settings: Any) -> dict[str, bytes]:
    config = tiny("ppo", env_id="Careless", rebuild_envs="off", use_action_masks="off", **settings)
    model = PPO(config, env=Careless, encoder=Dropping)
    seed_global_generators(3)  # training environments are built with the caller's
    model.learn(callbacks=callbacks)
    return {name: tensors(model.agent.path)[name] for name in ("model.safetensors", "optimizer.safetensors")}


def test_weights_are_the_same_with_and_without_evaluations(tiny):
    plain = weights(tiny)
    assert weights(tiny, eval_every_timesteps=32, num_eval_episodes=3) == plain
    assert weights(tiny, callbacks=[Evaluating()]) == plain


def test_weights_are_the_same_with_and_without_videos(tiny, tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.chdir(tmp_path)
    recording = Recording()
    assert weights(tiny, callbacks=[recording]) == weights(tiny)
    assert recording.files


def test_evaluations_repeat_their_numbers_whatever_was_drawn_before(tiny):
    model = PPO(tiny("ppo", env_id="Careless", rebuild_envs="off"), env=Careless)
    first = model.agent.evaluate(3)
    np.random.random(7)
    torch.rand(7)
    before = global_generators()
    assert model.agent.evaluate(3) == first
    after = global_generators()
    assert before["python"] == after["python"]
    assert before["numpy"] == after["numpy"]
    assert torch.equal(before["torch"], after["torch"])
