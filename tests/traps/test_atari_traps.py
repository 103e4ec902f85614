"""One test per known mistake with Atari games, through whole runs on a console whose every frame is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.config import TrainConfig
from rl_training.core.types import Progress
from rl_training.envs.factory import make_env
from rl_training.envs.preprocessing import atari
from rl_training.envs.stepper_factory import evaluation_stepper, training_stepper
from rl_training.experiment import start
from rl_training.experiment.building import build_parts
from rl_training.experiment.logs.rows import read_rows
from rl_training.runtime.sampler import LocalSampler
from support.configs import tiny_config
from support.fake_ale import FakeGame, fake_opencv

SCORE = 100.0 - 40.0 + 3.0
STEPS_OF_A_GAME = 5


@pytest.fixture(autouse=True)
def without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "opencv", fake_opencv)


def game(**kwargs: Any) -> FakeGame:
    """Twenty frames, in which two of three lives are lost and points are won and lost."""
    rewards = {2: 100.0, 9: -40.0, 17: 3.0}
    return FakeGame(rewards=rewards, lives_from={0: 3, 6: 2, 14: 1}, ends_at=20, **kwargs)


def config(algo: str, folder: Path, **settings: Any) -> TrainConfig:
    usual = {"preprocessing": "atari", "noop_max": 0, "fire_reset": False, "image_size": 3, "encoder": "flat"}
    return tiny_config(algo, folder, **usual | settings)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_the_score_of_whole_games_is_reported_while_clipped_rewards_are_learned_from(
    algo: str, tmp_path: Path
) -> None:
    settings = config(algo, tmp_path, eval_every_timesteps=32)
    run_dir = start.train(settings, factory=game).run_dir
    row = read_rows(run_dir / "metrics.jsonl")[-1]
    assert (row["rollout/ep_rew_mean"], row["rollout/ep_len_mean"]) == (SCORE, STEPS_OF_A_GAME)
    for evaluation in read_rows(run_dir / "evaluations.jsonl"):
        assert evaluation["returns"] == [SCORE, SCORE]
        assert evaluation["lengths"] == [STEPS_OF_A_GAME, STEPS_OF_A_GAME]


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("clips", [True, False])
def test_reward_clipping_reaches_what_is_learned_from_and_nothing_else(
    algo: str, clips: bool, tmp_path: Path
) -> None:
    settings = config(algo, tmp_path, clip_reward=clips, num_envs=1)
    stepper = training_stepper(settings, game)
    stepper.reset()
    parts = build_parts(settings, stepper.spec)
    sampler = LocalSampler(stepper, parts.actor.explorer, parts.source)
    collected = sampler.collect(STEPS_OF_A_GAME, Progress(total_timesteps=9))
    buffer = parts.source.buffer  # type: ignore[attr-defined]
    stored = (
        buffer.rewards[:STEPS_OF_A_GAME, 0] if algo == "ppo" else buffer.rows["rewards"][:STEPS_OF_A_GAME]
    )
    paid = [100.0, 0.0, -40.0, 0.0, 3.0]
    assert torch.as_tensor(stored).tolist() == (np.sign(paid).tolist() if clips else paid)
    assert [episode.total_reward for episode in collected.episodes] == [SCORE]


def test_evaluations_never_clip(tmp_path: Path) -> None:
    stepper = evaluation_stepper(config("ppo", tmp_path), 1, game)
    assert stepper.out.signal is stepper.out.reward


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_lost_life_ends_the_bootstrap_but_neither_the_game_nor_the_episode(
    algo: str, tmp_path: Path
) -> None:
    """Lives are lost in the second and the fourth of five steps."""
    built: list[FakeGame] = []

    def factory(**kwargs: Any) -> FakeGame:
        built.append(game(**kwargs))
        return built[-1]

    settings = config(algo, tmp_path, num_envs=1)
    stepper = training_stepper(settings, factory)
    stepper.reset()
    resets = len(built[0].played)
    parts = build_parts(settings, stepper.spec)
    sampler = LocalSampler(stepper, parts.actor.explorer, parts.source)
    sampler.collect(STEPS_OF_A_GAME - 1, Progress(total_timesteps=9))
    assert len(built[0].played) == resets
    sampler.collect(1, Progress(total_timesteps=9))
    buffer = parts.source.buffer  # type: ignore[attr-defined]
    if algo == "ppo":
        assert buffer.cuts[:STEPS_OF_A_GAME, 0].tolist() == [False, True, False, True, False]
        assert buffer.dones[:STEPS_OF_A_GAME, 0].tolist() == [False, False, False, False, True]
    else:
        assert (buffer.rows["discounts"][:STEPS_OF_A_GAME] == 0).tolist() == [False, True, False, True, True]


def test_the_frame_skip_of_a_game_is_never_doubled() -> None:
    """ALE/*-v5 skips 4 frames itself: under preprocessing one action is four frames all the same, not 16."""
    pytest.importorskip("ale_py")
    for env_id in ("ALE/Pong-v5", "PongNoFrameskip-v4"):
        settings = TrainConfig(algo="ppo", env_id=env_id, preprocessing="atari", noop_max=0, image_size=8)
        env = make_env(settings, 0)()
        env.reset()
        before = env.unwrapped.ale.getEpisodeFrameNumber()  # type: ignore[attr-defined]
        env.step(0)
        assert env.unwrapped.ale.getEpisodeFrameNumber() - before == 4  # type: ignore[attr-defined]
        env.close()
