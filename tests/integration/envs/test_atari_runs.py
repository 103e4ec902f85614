"""Real games through whole runs: exact resume, the same pictures as a loop written by hand, hints and videos."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs.determinism import check_determinism
from rl_training.envs.factory import make_env
from rl_training.experiment.console import Console
from rl_training.experiment.loading import load_agent
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.experiment.video import record_video
from support.callbacks import StopAtUpdate
from support.compared_runs import assert_same_run, manifest, tensors
from support.fake_ale import FakeGame

ale_py = pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")

TINY = {
    "env_id": "ALE/Breakout-v5", "preprocessing": "atari", "image_size": 8, "frame_stack": 2, "encoder": "flat",
    "env_kwargs": {"max_num_frames_per_episode": 160}, "total_timesteps": 132, "keep_checkpoints": 99,
    "rebuild_envs": "off", "num_eval_episodes": 1,
}  # fmt: skip
"""Games that the clock stops after 40 steps at most; actions are sticky, and no-ops drawn."""


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_resumed_ppo_run_equals_an_uninterrupted_one_in_the_middle_of_games(tiny, rows, backend):
    config = tiny(**TINY, num_steps=11, batch_size=11, env_backend=backend)
    whole = train(config).run_dir
    paused = train(config, callbacks=[StopAtUpdate(88)]).run_dir
    state = manifest(paused / "checkpoints" / "step_88")["state"]["sampler"]["envs"]
    assert max(state["lengths"]) > 0, "no game was unfinished: the test would say nothing"
    assert min(state["episodes"]) > 0, "no game had ended"
    resume(paused)
    assert_same_run(paused, whole, rows)


def test_a_resumed_dqn_run_with_priorities_equals_an_uninterrupted_one(tiny):
    config = tiny("dqn", **TINY, prioritized=True, n_step=3)
    whole = train(config).run_dir
    paused = train(config, callbacks=[StopAtUpdate(90)]).run_dir
    resume(paused)
    last = (whole / "checkpoints" / "last").read_text(encoding="utf-8").strip()
    assert last == (paused / "checkpoints" / "last").read_text(encoding="utf-8").strip()
    assert tensors(paused / "checkpoints" / last) == tensors(whole / "checkpoints" / last)


@pytest.mark.parametrize("env_id", ["ALE/Berzerk-v5", "ALE/Breakout-v5", "MsPacmanNoFrameskip-v4"])
def test_a_used_game_plays_like_a_fresh_one(env_id):
    """Berzerk keeps something of the game before; the run's own check finds nothing left of that."""
    config = TrainConfig(
        algo="ppo", env_id=env_id, preprocessing="atari", image_size=42, frame_stack=1, noop_max=3
    )
    finding = check_determinism(config)
    assert (finding.rebuild, finding.problems) == (False, [])
    fresh, used = make_env(config, 0)(), make_env(config, 0)()
    for _ in range(2):
        used.reset()
        for number in range(80):
            used.step(number % 3)
    used.episode = -1
    assert np.array_equal(fresh.reset()[0], used.reset()[0])
    for number in range(80):
        one, other = fresh.step(number % 4), used.step(number % 4)
        assert np.array_equal(one[0], other[0])
        assert one[1:] == other[1:]


def test_a_game_shows_pays_and_ends_as_a_loop_written_by_hand_says():
    """Without chance, over two whole games with their lost lives; the policy is random."""
    off: dict[str, Any] = {"noop_max": 0, "env_kwargs": {"repeat_action_probability": 0.0}}
    config = TrainConfig(algo="ppo", env_id="ALE/Breakout-v5", preprocessing="atari", frame_stack=1, **off)
    env = make_env(config, 0)()
    raw = gymnasium.make("ALE/Breakout-v5", frameskip=1, obs_type="grayscale", repeat_action_probability=0.0)
    rng, lost = np.random.default_rng(0), 0

    def begin() -> Any:
        raw.reset()
        return raw.step(1)[0]

    def small(screen: Any) -> Any:
        return cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)[None]

    for _ in range(2):
        before, fires, ended = begin(), False, False
        lives = raw.unwrapped.ale.lives()  # type: ignore[attr-defined]
        assert np.array_equal(env.reset()[0], small(before))
        while not ended:
            action, paid = int(rng.integers(4)), 0.0
            for _ in range(4):
                previous = before
                before, reward, ended, _, info = raw.step(1 if fires else action)
                paid += float(reward)
                if ended:
                    break
            fires = info["lives"] < lives and not ended
            lost += fires
            lives = info["lives"]
            obs, reward, terminated, truncated, info = env.step(action)
            assert np.array_equal(obs, small(np.maximum(previous, before)))
            assert (reward, terminated, truncated, info) == (
                paid, ended, False, {"cut_bootstrap": True} if fires else {},
            )  # fmt: skip
    assert lost == 8
    raw.close()


def test_a_frame_skip_among_the_arguments_is_refused():
    config = TrainConfig(algo="ppo", env_id="ALE/Pong-v5", preprocessing="atari", env_kwargs={"frameskip": 4})
    with pytest.raises(UserError, match="leave it out and set frame_skip"):
        make_env(config, 0)()


class Notices(Console):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


def test_a_run_on_a_raw_game_begins_with_a_hint(tiny):
    console = Notices()
    train(tiny(), factory=lambda: FakeGame(ends_at=6), console=console)
    (text,) = console.texts
    assert "--preprocessing atari" in text


def test_a_video_shows_the_game_in_colours_and_at_its_speed(tiny, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    run_dir = train(tiny(**TINY | {"total_timesteps": 32})).run_dir
    (video,) = record_video(load_agent(run_dir), tmp_path / "videos")
    reader = ffmpeg.read_frames(str(video))
    facts = next(reader)
    assert facts["size"] == (160, 210)
    assert facts["fps"] == 15.0
    frame = np.frombuffer(next(reader), np.uint8).reshape(210, 160, 3)
    assert np.abs(frame[:, :, 0].astype(int) - frame[:, :, 2]).max() > 100, "the bricks of Breakout are red"
    reader.close()
