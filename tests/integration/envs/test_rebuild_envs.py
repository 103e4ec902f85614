"""Environments that keep something across resets: built anew, restored, or named; a resumed run is the same run."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from tiny_envs import Lottery

from rl_training.config import load_config
from rl_training.experiment.console import Console
from rl_training.experiment.loading import load_agent
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtUpdate


class Notes(Console):
    def __init__(self) -> None:
        self.told: list[str] = []

    def notice(self, text: str) -> None:
        self.told.append(text)


def tensors(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


def envs(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["state"]["sampler"]["envs"]


def evaluations(run_dir: Path) -> bytes:
    return (run_dir / "evaluations.jsonl").read_bytes()


def staggered(tiny, **changes):
    """Rollouts of 11 steps that end in the middle of episodes; evaluations before and after the interruption."""
    settings = {
        "env_id": "Lottery", "num_steps": 11, "batch_size": 11, "learning_rate": 1e-2, "total_timesteps": 220,
        "eval_every_timesteps": 44,
    } | changes  # fmt: skip
    return tiny(**settings)


def assert_resume_is_exact(config, at: int, factory=None) -> Path:
    """The last checkpoint, the environments' hashes and all evaluations are those of an uninterrupted run."""
    whole = train(config, factory=factory)
    paused = train(config, factory=factory, callbacks=[StopAtUpdate(at)])
    assert paused.paused
    assert max(envs(paused.checkpoint_path)["lengths"]) > 0, (
        "no episode was unfinished: nothing would be replayed"
    )
    resumed = resume(paused.run_dir, factory=factory)
    assert tensors(resumed.checkpoint_path) == tensors(whole.checkpoint_path)
    assert envs(resumed.checkpoint_path) == envs(whole.checkpoint_path)
    assert evaluations(resumed.run_dir) == evaluations(whole.run_dir)
    return resumed.run_dir


class Drifting(Lottery):
    """Goes on from where the episode before ended, in what it shows."""

    drift = np.float32(0.0)

    def step(self, action):
        self.drift = np.float32(0.5) * self.drift + np.float32(action)
        return super().step(action)

    def _obs(self):
        return super()._obs() + self.drift


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_what_is_left_from_the_episode_before_does_not_survive_a_reset(tiny, backend):
    notes = Notes()
    config = staggered(tiny, env_backend=backend)
    train(config, factory=Drifting, console=notes)
    assert any("keeps state across resets, so it is rebuilt" in text for text in notes.told)
    run_dir = assert_resume_is_exact(config, 110, Drifting)
    assert load_config(run_dir / "config.yaml").rebuild_envs == "on"
    assert yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))["rebuild_envs"] == "on"
    assert load_agent(run_dir, env=Drifting).config.rebuild_envs == "on"


def test_without_building_anew_the_difference_is_noticed(tiny):
    """The control of the test above."""
    config = staggered(tiny, rebuild_envs="off")
    paused = train(config, factory=Drifting, callbacks=[StopAtUpdate(110)])
    with pytest.warns(UserWarning, match="are not deterministic"):
        resume(paused.run_dir, factory=Drifting)


def test_an_evaluation_does_not_depend_on_the_one_before(tiny):
    config = staggered(tiny, rebuild_envs="on", learning_rate=1e-30, num_eval_episodes=4)
    rows = [json.loads(line) for line in evaluations(train(config, factory=Drifting).run_dir).splitlines()]
    assert len(rows) == 5
    assert all(row["returns"] == rows[0]["returns"] for row in rows)


def test_bipedal_walker_resumes_exactly(tiny):
    """Its Box2D world outlives resets; that shows after some episodes, where a body has several contacts."""
    pytest.importorskip("Box2D")
    config = tiny(
        env_id="BipedalWalker-v3", num_envs=1, num_steps=128, batch_size=128, total_timesteps=768,
        num_eval_episodes=1, learning_rate=1e-4,
    )  # fmt: skip
    run_dir = assert_resume_is_exact(config, 512)
    assert load_config(run_dir / "config.yaml").rebuild_envs == "on"


def normalised():
    return NormalizeReward(NormalizeObservation(Lottery()))


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_running_statistics_of_wrappers_go_on_where_they_were(tiny, backend):
    config = staggered(tiny, env_backend=backend)
    run_dir = assert_resume_is_exact(config, 110, normalised)
    saved = envs(run_dir / "checkpoints" / "step_220")["statistics"]
    counts = [saved[index]["0.return_rms"]["count"] for index in ("0", "1")]
    assert counts == pytest.approx([110, 110], abs=0.01), "they must span all episodes"


def test_evaluations_use_the_statistics_of_training_and_leave_them_alone(tiny):
    """So the checkpoint, evaluated in a process of its own, gives what the run wrote at that step."""
    config = staggered(tiny, checkpoint_every_timesteps=44, keep_checkpoints=99)
    result = train(config, factory=normalised)
    rows = [json.loads(line) for line in evaluations(result.run_dir).splitlines()]
    assert len({str(row["returns"]) for row in rows}) > 1
    for row in rows:
        agent = load_agent(result.run_dir / "checkpoints" / f"step_{row['timesteps']}", env=normalised)
        for _ in range(2):
            assert agent.evaluate(2)["returns"] == row["returns"]


class Whim(Lottery):
    def reset(self, **kwargs):
        _, info = super().reset(**kwargs)
        self.shift = np.random.default_rng().normal(size=3).astype(np.float32)
        return self._obs(), info


class Curriculum(gymnasium.Wrapper):
    episodes = 0

    def reset(self, **kwargs):
        self.episodes += 1
        return super().reset(**kwargs)

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + self.episodes, *rest


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (
            Whim,
            "'Lottery' is not deterministic: two new ones with the same seed and actions differ after 0 steps",
        ),
        (
            lambda: Curriculum(Lottery()),
            "'Lottery' keeps state across resets even if it is rebuilt",
        ),
    ],
)
def test_what_cannot_be_restored_is_named_at_the_start(tiny, factory, sentence):
    notes = Notes()
    result = train(tiny(env_id="Lottery"), factory=factory, console=notes)
    (note,) = notes.told
    assert sentence in note
    assert load_config(result.run_dir / "config.yaml").rebuild_envs == "off"


def test_a_curriculum_that_shows_in_the_rewards_is_noticed_on_resume(tiny):
    def make():
        return Curriculum(Lottery())

    paused = train(staggered(tiny), factory=make, callbacks=[StopAtUpdate(110)])
    with pytest.warns(UserWarning, match="other rewards when their actions were replayed"):
        resume(paused.run_dir, factory=make)
