"""Real Atari games: one meaning behind three backends, and training on ale-py's own vector environment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from rl_training.config import TrainConfig
from rl_training.core.types import StepArrays
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import NOT_RESUMABLE
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.console import Console
from rl_training.experiment.start import train
from support.configs import tiny_config

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

NUM_ENVS = 2
COMPARED = ("obs", "reward", "signal", "terminated", "truncated", "cut")


def played(
    backend: str, num_steps: int, env_kwargs: dict[str, Any], settings: dict[str, Any]
) -> Iterator[StepArrays]:
    """Yield the arrays after the reset and after every step; they are overwritten by the next one."""
    config = TrainConfig(
        algo="ppo",
        env_id="ALE/Breakout-v5",
        num_envs=NUM_ENVS,
        env_backend=backend,  # type: ignore[arg-type]
        env_kwargs={"repeat_action_probability": 0.0} | env_kwargs,
        preprocessing="atari",
        noop_max=0,
        **settings,
    )
    stepper = training_stepper(config, None)
    rng = np.random.default_rng(0)
    try:
        stepper.reset()
        yield stepper.out
        for _ in range(num_steps):
            stepper.step(rng.integers(4, size=NUM_ENVS))
            yield stepper.out
    finally:
        stepper.close()


def compare(num_steps: int, *, env_kwargs: dict[str, Any], **settings: Any) -> dict[str, int]:
    """Hold three backends against each other step by step; return how often each flag was seen."""
    seen = dict.fromkeys(("terminated", "truncated", "cut"), 0)
    newest = 1 if settings.get("grayscale", True) else 3
    streams = [played(backend, num_steps, env_kwargs, settings) for backend in ("sync", "async", "native")]
    for number, (sync, workers, native) in enumerate(zip(*streams, strict=True)):
        for other in (workers, native):
            for name in COMPARED:
                same = np.array_equal(getattr(sync, name), getattr(other, name))
                assert same, f"{name} differs after step {number}"
        final, final_of_workers, final_of_native = (
            np.asarray(out.final_obs) for out in (sync, workers, native)
        )
        ended, cut_off, over = sync.ended, sync.truncated, sync.terminated
        np.testing.assert_array_equal(final[ended], final_of_workers[ended])
        np.testing.assert_array_equal(final[cut_off], final_of_native[cut_off])
        # ale-py does not look at the screen that a game ends with
        np.testing.assert_array_equal(final[over, :-newest], final_of_native[over, :-newest])
        for name in seen:
            seen[name] += int(getattr(sync, name).sum())
    return seen


def test_three_backends_play_the_same_games() -> None:
    seen = compare(1000, env_kwargs={})
    assert seen["terminated"] >= 5
    assert seen["cut"] >= 20


def test_three_backends_play_the_same_games_with_other_settings() -> None:
    seen = compare(300, env_kwargs={}, frame_skip=3, max_pool=False, image_size=42, grayscale=False)
    assert seen["terminated"] >= 2
    assert seen["cut"] >= 8


def test_three_backends_stop_games_at_the_same_time_limit() -> None:
    # one frame of FIRE and 50 full steps
    seen = compare(260, env_kwargs={"max_num_frames_per_episode": 201})
    assert seen["truncated"] == 5 * NUM_ENVS
    assert seen["cut"] >= 8


def test_ale_py_writes_nothing_into_the_metadata_of_other_environments() -> None:
    before = dict(VectorEnv.metadata)
    config = TrainConfig(
        algo="ppo",
        env_id="ALE/Breakout-v5",
        num_envs=1,
        env_backend="native",
        preprocessing="atari",
    )
    env = make_vector_env(config)
    assert "autoreset_mode" in env.metadata
    assert VectorEnv.metadata == before


class Listening(Console):
    """Keeps what a run says at its start."""

    def __init__(self) -> None:
        super().__init__()
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def test_ppo_trains_on_the_native_backend_which_says_that_it_cannot_be_resumed(tmp_path: Path) -> None:
    config = tiny_config(
        "ppo",
        tmp_path,
        env_id="ALE/Breakout-v5",
        env_backend="native",
        env_kwargs={"num_threads": 1},
        preprocessing="atari",
        total_timesteps=512,
        max_eval_episode_steps=20,
    )
    console = Listening()
    with pytest.warns(UserWarning, match="cut off"):
        result = train(config, console=console)
    assert console.notices == [NOT_RESUMABLE]
    assert result.metrics["global_step"] == 512
    assert result.checkpoint_path.is_dir()
