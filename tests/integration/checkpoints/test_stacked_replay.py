"""A run on stacked images: replay keeps each frame once, in memory and on disk, and resumes to the same bytes."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load_file

from rl_training.config import TrainConfig
from rl_training.config.preprocessing import Frames
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.format import manifest_hash
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtUpdate

STACK, CHANNELS = 3, 2


class Film(gymnasium.Env):
    """Shows the last three of its random colour frames; episodes of 1 to 12 steps, in which lives are lost."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (STACK * CHANNELS, 4, 4), np.uint8)
        self.action_space = spaces.Discrete(2)

    def _frame(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (CHANNELS, 4, 4), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 13))
        self.frames = [self._frame()] * STACK
        return np.concatenate(self.frames), {}

    def step(self, action: Any) -> Any:
        self.frames = [*self.frames[1:], self._frame()]
        self.left -= 1
        info = {"cut_bootstrap": bool(self.np_random.random() < 0.1)}
        return np.concatenate(self.frames), float(action), self.left == 0, False, info


@pytest.fixture
def config(tiny, monkeypatch):
    """150 rows are kept of 600, in two environments; Film stacks its frames itself."""
    frames = Frames(image_size=None, grayscale=False, stack=STACK)
    monkeypatch.setattr(TrainConfig, "frames", property(lambda self: frames))

    def build(**changes: Any) -> TrainConfig:
        settings = {"encoder": "flat", "n_step": 3, "prioritized": True, "buffer_size": 150}
        jobs = {"total_timesteps": 600, "checkpoint_every_timesteps": 100, "keep_checkpoints": 99}
        return tiny("dqn", **settings | jobs | changes)

    return build


def last(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text(encoding="utf-8").strip()


def manifest(run_dir: Path) -> dict[str, Any]:
    return json.loads((last(run_dir) / "manifest.json").read_text(encoding="utf-8"))


def rows_on_disk(run_dir: Path, kind: str) -> dict[str, np.ndarray]:
    """The rows that the last checkpoint needs, column by column, and how many there ever were."""
    listed = manifest(run_dir)["facts"]["replay"][kind]
    first = listed["total_rows"] - listed["kept_rows"]
    parts: dict[str, list[np.ndarray]] = {}
    for segment in listed["segments"]:
        columns = load_file(run_dir / "checkpoints" / "replay" / segment["name"])
        for name, column in columns.items():
            parts.setdefault(name, []).append(column[max(first - segment["start"], 0) :])
    return {name: np.concatenate(part) for name, part in parts.items()} | {
        "total": np.array(listed["total_rows"])
    }


def frame_segments(run_dir: Path) -> list[Path]:
    listed = manifest(run_dir)["facts"]["replay"]["frames"]["segments"]
    return [run_dir / "checkpoints" / "replay" / segment["name"] for segment in listed]


@pytest.mark.parametrize("settings", [{}, {"n_step": 1, "prioritized": False, "env_backend": "async"}])
@pytest.mark.parametrize("stop", [None, RuntimeError])
def test_a_resumed_run_on_stacked_frames_is_the_same_to_the_byte(config, settings, stop):
    whole = train(config(**settings), factory=Film).run_dir
    callbacks = [StopAtUpdate(350, *([stop] if stop else []))]
    if stop is None:
        run_dir = train(config(**settings), factory=Film, callbacks=callbacks).run_dir
    else:
        before = set(whole.parent.iterdir())
        with pytest.raises(RuntimeError, match="stopped here"):
            train(config(**settings), factory=Film, callbacks=callbacks)
        (run_dir,) = set(whole.parent.iterdir()) - before
    resume(run_dir, factory=Film)
    assert last(run_dir).name == last(whole).name
    for path in last(whole).glob("*.safetensors"):
        assert path.read_bytes() == (last(run_dir) / path.name).read_bytes(), path.name
    for kind in ("transitions", "frames"):
        ours, theirs = rows_on_disk(run_dir, kind), rows_on_disk(whole, kind)
        assert ours.keys() == theirs.keys()
        for name, column in theirs.items():
            np.testing.assert_array_equal(ours[name], column, err_msg=name)


def test_segments_hold_each_frame_once_and_only_frames_that_rows_may_need(config):
    run_dir = train(config(), factory=Film).run_dir
    frames, rows = rows_on_disk(run_dir, "frames"), rows_on_disk(run_dir, "transitions")
    assert len(rows["actions"]) == 150
    assert rows["obs"].shape == (150, STACK), "numbers, not pictures"
    pictures = frames["frames"]
    assert pictures.shape[1:] == (CHANNELS, 4, 4)
    assert len(np.unique(pictures, axis=0)) == len(pictures)
    # an episode of L steps has L + 1 frames; more were seen than are kept
    assert len(np.unique(rows["obs"])) <= len(pictures) <= 2 * 150
    assert frames["total"] > 600


def test_a_damaged_segment_of_frames_is_named_and_an_older_checkpoint_used(config):
    run_dir = train(config(), factory=Film).run_dir
    path = frame_segments(run_dir)[-1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match=f"{path.name}.*falling back to step_500"):
        result = resume(run_dir, factory=Film, total_timesteps=700)
    assert result.metrics["global_step"] == 700


def test_rows_whose_frames_are_not_listed_are_refused_in_a_sentence(config):
    run_dir = train(config(keep_checkpoints=1), factory=Film).run_dir
    path, data = last(run_dir) / "manifest.json", manifest(run_dir)
    listed = data["facts"]["replay"]["frames"]
    assert len(listed["segments"]) > 1
    listed["segments"] = listed["segments"][-1:]
    listed["kept_rows"] = listed["total_rows"] - listed["segments"][0]["start"]
    path.write_text(json.dumps(data | {"sha256": manifest_hash(data)}), encoding="utf-8")
    with pytest.raises(UserError, match=r"frames \d+ to \d+ are needed, \d+ to \d+ are there"):
        resume(run_dir, factory=Film, total_timesteps=700)
