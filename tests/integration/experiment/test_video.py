"""Videos where frames cannot be drawn: one sentence, with MuJoCo's switch in it where that is what is missing."""

import importlib.util
import os
import subprocess
import sys
import types
from typing import Any

import pytest
import tiny_envs

from rl_training.algorithms import PPO
from rl_training.core.errors import UserError
from rl_training.experiment.video import record_video

pytest.importorskip("imageio_ffmpeg")


class Undrawable(tiny_envs.Clockwork):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()

    def render(self) -> Any:
        raise RuntimeError("no OpenGL\n  context")


def refused(tiny: Any, tmp_path: Any) -> str:
    model = PPO(tiny(env_id="Undrawable"), env=Undrawable)
    with pytest.raises(UserError) as raised:
        record_video(model.agent, tmp_path / "videos")
    assert not (tmp_path / "videos").exists()
    return str(raised.value)


def test_a_simulator_without_a_screen_names_its_switch(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", types.ModuleType("mujoco"))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    said = refused(tiny, tmp_path)
    assert said == (
        "environment 'Undrawable' cannot render frames: RuntimeError: no OpenGL context; MUJOCO_GL is not set: without "
        "a display, try MUJOCO_GL=egl or MUJOCO_GL=osmesa"
    )
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert "MUJOCO_GL is 'glfw', which does not work here" in refused(tiny, tmp_path)


def test_others_do_not_speak_of_it(tiny, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    assert (
        refused(tiny, tmp_path)
        == "environment 'Undrawable' cannot render frames: RuntimeError: no OpenGL context"
    )


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="needs MuJoCo")
def test_a_real_simulator_without_a_screen(tiny, tmp_path):
    model = PPO(tiny(env_id="HalfCheetah-v5", max_eval_episode_steps=2))
    model.save(tmp_path / "agent")
    known = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", "eval", tmp_path / "agent", "--num-episodes", "1", "--record", "videos"],
        env=known | {"MUJOCO_GL": "glfw"}, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    *warned, error = done.stderr.splitlines()
    assert "try MUJOCO_GL=egl or MUJOCO_GL=osmesa" in error
    assert all(line.startswith("warning: ") for line in warned), done.stderr
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()
