"""Remarks about what will hurt a run: by `check-env` and at the start of `train`, and never where nothing hurts."""

import re
import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_training
from rl_training.config import TrainConfig, load_config
from rl_training.experiment import environment_check
from rl_training.experiment import environment_remarks as environment_remarks_module
from rl_training.experiment.environment_remarks import Observed, environment_remarks, images_per_second
from rl_training.models.cnn import AutoCNN

PLAIN = TrainConfig(algo="ppo", env_id="CartPole-v1")
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)


class Painful(gymnasium.Env):
    """Ends after ten steps; hurts in one way."""

    def __init__(self, way: str = "") -> None:
        self.way = way
        self.observation_space = spaces.Box(0, 255, (120, 160, 3), np.uint8) if way == "image" else VECTOR
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        if self.way == "slow":
            time.sleep(0.006)
        return self.observe(), -2e3 if self.way == "reward" else 1.0, self.count >= 10, False, {}

    def observe(self):
        if self.way == "image":
            return np.zeros(self.observation_space.shape, np.uint8)
        return np.full(3, -5e4 if self.way == "observation" else 2.0, np.float32)


def slow():
    return Painful("slow")


def large():
    return Painful("observation")


WAYS = [
    (
        "image",
        r"images of 120x160 are large: .* [\d,]+ of them per second .*--preprocessing image --image-size 84",
    ),
    ("observation", r"observations reach 5e\+04.*--normalize-obs"),
    ("reward", r"rewards reach 2e\+03.*--normalize-reward"),
    ("slow", r"a step takes \d+ ms, so one process makes about [\d,]+ steps per second.*--env-backend async"),
]


@pytest.mark.parametrize(("way", "words"), WAYS)
def test_check_env_and_train_make_the_same_remark(way, words, monkeypatch):
    monkeypatch.setattr(environment_remarks_module, "usable_cores", lambda: 4)
    (checked,) = rl_training.check_env(lambda: Painful(way)).remarks
    (trained,) = environment_remarks(PLAIN, lambda: Painful(way))
    for remark in (checked, trained):
        assert re.search(words, remark), remark


def test_what_is_cured_is_not_remarked():
    seen = Observed(VECTOR)
    seen.add(np.full(3, 1e6), 1e6, 1.0)
    cured = PLAIN.with_overrides(normalize_obs=True, normalize_reward=True, env_backend="async")
    assert seen.remarks(cured) == []
    game = PLAIN.with_overrides(preprocessing="atari", normalize_obs=True, env_backend="async")
    assert seen.remarks(game) == [], "rewards are clipped"


def test_a_slow_step_on_the_only_core_that_may_be_used(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    seen = Observed(VECTOR)
    seen.add(np.zeros(3), 0.0, 1.0)
    assert seen.remarks(PLAIN) == []


def test_images_that_are_shrunk_already_or_read_by_another_network():
    seen = Observed(spaces.Box(0, 255, (128, 128, 3), np.uint8))
    assert len(seen.remarks(PLAIN)) == 1
    assert seen.remarks(PLAIN.with_overrides(preprocessing="image", image_size=128)) == []
    assert seen.remarks(PLAIN.with_overrides(encoder="flat")) == []


def test_huge_images_are_remarked_without_a_measurement(monkeypatch):
    monkeypatch.setattr(environment_remarks_module, "AutoCNN", lambda *_: pytest.fail("it was measured"))
    (remark,) = Observed(spaces.Box(0, 255, (4000, 4000, 3), np.uint8)).remarks(PLAIN)
    assert remark == (
        "images of 4000x4000 are large: --preprocessing image --image-size 84 --grayscale shrinks them"
    )


def test_images_are_measured_with_one_thread(monkeypatch):
    threads, real = [], torch.get_num_threads()

    def network(*arguments):
        threads.append(torch.get_num_threads())
        return AutoCNN(*arguments)

    monkeypatch.setattr(environment_remarks_module, "AutoCNN", network)
    try:
        torch.set_num_threads(2)
        images_per_second(1, 84, 84)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(real)
    assert threads == [1]


def test_entries_are_named():
    seen = Observed(spaces.Dict({"far": VECTOR, "near": VECTOR, "kind": spaces.Discrete(500)}))
    seen.add({"far": np.full(3, 200.0), "near": np.ones(3), "kind": 499}, 0.0, 0.0)
    (remark,) = seen.remarks(PLAIN)
    assert remark.startswith("observations (entry 'far') reach 200")


def test_the_estimate_is_measured():
    assert images_per_second(1, 84, 84) > images_per_second(3, 240, 240) > 1


def test_an_environment_that_fails_is_left_to_the_run():
    def broken():
        raise RuntimeError("no simulator here")

    assert environment_remarks(PLAIN, broken) == []


def test_train_prints_it_once_and_not_on_resume(cli, tmp_path):
    flags = (
        "--total-timesteps",
        64,
        "--num-envs",
        2,
        "--num-steps",
        16,
        "--batch-size",
        16,
        "--output-dir",
        tmp_path,
    )
    factory = ("--env-factory", f"{__name__}:large")
    outcome = cli("train", "ppo", *factory, *flags, "--max-time", 1e-6)
    assert outcome.out.count("observations reach") == 1
    (run_dir,) = tmp_path.iterdir()
    assert "observations reach" not in cli("resume", run_dir, *factory).out
    assert "observations reach" in cli("train", "ppo", *factory, *flags, "--rebuild-envs", "off").out
    assert "observations reach" not in cli("train", "ppo", *factory, *flags, "--normalize-obs").out
    assert "observations reach" not in cli("train", "ppo", *factory, *flags, "--quiet").out


KNOWN = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1"]
KNOWN += [f"rl_training.envs.tasks:rl_training/{name}-v0" for name in ("Catch", "MemoryCorridor")]


@pytest.mark.parametrize("env_id", [*KNOWN, "LunarLander-v3", "HalfCheetah-v5"])
def test_nothing_is_remarked_about_environments_that_learn_as_they_are(env_id, monkeypatch):
    """Some of their spaces have no bounds, but their numbers are small."""
    monkeypatch.setattr("rl_training.experiment.environment_remarks.SLOW_STEP", 1.0)  # of a busy machine
    config = PLAIN.with_overrides(env_id=env_id)
    try:
        gymnasium.make(env_id.rpartition(":")[2]).close()
    except gymnasium.error.Error:
        if not env_id.startswith("rl_training"):
            pytest.skip(f"{env_id} is not installed")
    assert environment_remarks(config, None) == []
    monkeypatch.setattr(environment_check, "EPISODES", 2)
    assert rl_training.check_env(env_id).remarks == []


def test_nothing_is_remarked_about_a_grid():
    pytest.importorskip("minigrid")
    settings = {
        "env_id": "rl_training.envs.tasks:rl_training/MiniGrid-v0",
        "env_kwargs": {"game": "MiniGrid-Empty-5x5-v0"},
    }
    assert environment_remarks(PLAIN.with_overrides(**settings), None) == []


@pytest.mark.parametrize("preset", ["ppo/breakout_atari", "dqn/breakout_atari"])
def test_nothing_is_remarked_about_the_atari_presets(preset):
    pytest.importorskip("ale_py")
    config = load_config(preset).with_overrides(env_backend="sync")
    assert environment_remarks(config, None) == []


def test_a_raw_atari_game_gets_one_remark_with_its_flag(monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setattr(environment_check, "EPISODES", 1)
    monkeypatch.setattr(environment_check, "MAX_STEPS", 20)
    report = rl_training.check_env("ALE/Pong-v5")
    remarks = [remark for remark in report.remarks if "--preprocessing" in remark]
    assert len(remarks) == 1
    assert "--preprocessing atari" in remarks[0]
