"""`num_threads: auto`: a rule on sizes and cores, never a stopwatch."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_info

from rl_training.config import TrainConfig
from rl_training.core.types import EnvSpec
from rl_training.experiment import resources as threads
from rl_training.experiment.resources import available_cores, settle_threads, using_threads

VECTOR = spaces.Box(-1.0, 1.0, (17,), np.float32)
FRAMES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
BOARD = spaces.Box(0, 1, (10, 10, 4), np.float32)
TASK = spaces.Dict({"camera": spaces.Box(0, 255, (96, 96, 3), np.uint8), "speed": VECTOR})
CONTINUOUS, DISCRETE = spaces.Box(-1.0, 1.0, (6,), np.float32), spaces.Discrete(4)

RULE = [
    ("ppo, as it comes", "ppo", VECTOR, {}, 1),
    ("ppo, a wide batch", "ppo", VECTOR, {"num_steps": 2048, "batch_size": 16_384}, 1),
    ("ppo, wide", "ppo", VECTOR, {"num_steps": 512, "batch_size": 4096, "hidden_sizes": (256, 256)}, 2),
    ("ppo, a wide critic", "ppo", VECTOR, {"batch_size": 256, "critic_hidden_sizes": (1024, 1024)}, 2),
    ("a2c, as it comes", "a2c", VECTOR, {}, 1),
    ("dqn, as it comes", "dqn", VECTOR, {}, 1),
    ("td3, as it comes", "td3", VECTOR, {}, 1),
    ("sac, as it comes", "sac", VECTOR, {}, 1),
    ("sac, 512 wide", "sac", VECTOR, {"hidden_sizes": (512, 512)}, 1),
    ("sac, 1024 wide", "sac", VECTOR, {"hidden_sizes": (1024, 1024)}, 2),
    ("sac, a wide critic", "sac", VECTOR, {"critic_hidden_sizes": (1024, 1024)}, 2),
    ("sac, 2048 wide", "sac", VECTOR, {"hidden_sizes": (2048, 2048)}, 4),
    ("memory", "recurrent_ppo", VECTOR, {"core_size": 1024, "num_steps": 64, "batch_size": 512}, 1),
    ("Nature CNN", "ppo", FRAMES, {"num_steps": 128, "batch_size": 256}, 4),
    ("Nature CNN, a2c", "a2c", FRAMES, {"num_envs": 16, "num_steps": 5}, 2),
    ("Nature CNN, batch 32", "dqn", FRAMES, {"batch_size": 32}, 1),
    ("memory and images", "recurrent_ppo", FRAMES, {"num_steps": 128, "batch_size": 256}, 4),
    ("images beside numbers", "sac", TASK, {"batch_size": 256}, 4),
    ("images as numbers", "dqn", FRAMES, {"encoder": "flat", "batch_size": 32}, 1),
    ("a board", "ppo", BOARD, {"num_steps": 32, "batch_size": 256}, 1),
    ("another device", "sac", VECTOR, {"hidden_sizes": (2048, 2048), "device": "meta"}, 1),
]  # fmt: skip


def settled(algo, space, overrides, cores, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    monkeypatch.setattr(
        threads, "choose_device", lambda name: torch.device("cpu" if name == "auto" else name)
    )
    config = TrainConfig(algo=algo, env_id="X").with_overrides(**overrides)
    actions = CONTINUOUS if algo in ("sac", "td3") else DISCRETE
    return settle_threads(config, EnvSpec(space, actions, config.num_envs)).num_threads


class TestTheRule:
    @pytest.mark.parametrize(
        ("algo", "space", "overrides", "wanted"), [row[1:] for row in RULE], ids=[row[0] for row in RULE]
    )
    def test_sizes_decide(self, algo, space, overrides, wanted, monkeypatch):
        assert settled(algo, space, overrides, 64, monkeypatch) == wanted

    @pytest.mark.parametrize(("cores", "wanted"), [(1, 1), (2, 2), (3, 3), (4, 4), (128, 4)])
    def test_never_more_than_there_are_cores(self, cores, wanted, monkeypatch):
        overrides = {"num_steps": 128, "batch_size": 256}
        assert settled("ppo", FRAMES, overrides, cores, monkeypatch) == wanted

    @pytest.mark.parametrize("number", [1, 7, 1024])
    def test_a_number_stays_what_it_is(self, number, monkeypatch):
        assert settled("ppo", FRAMES, {"num_threads": number}, 2, monkeypatch) == number


class TestCores:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch, tmp_path):
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
        monkeypatch.setattr(threads, "QUOTA", tmp_path / "cpu.max")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        self.quota = tmp_path / "cpu.max"

    def test_those_that_the_process_may_use(self):
        assert available_cores() == 8

    @pytest.mark.parametrize(
        ("text", "wanted"), [("3", 3), ("16", 8), ("0", 8), ("many", 8), ("2,1", 2), ("", 8)]
    )
    def test_no_more_than_openmp_is_allowed(self, text, wanted, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert available_cores() == wanted

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("200000 100000\n", 2),
            ("50000 100000\n", 1),
            ("250000 100000\n", 2),
            ("max 100000\n", 8),
            ("?", 8),
        ],
    )
    def test_no_more_than_a_container_is_given(self, text, wanted):
        self.quota.write_text(text)
        assert available_cores() == wanted

    def test_a_system_that_does_not_tell(self, monkeypatch):
        monkeypatch.delattr(threads.os, "sched_getaffinity")
        monkeypatch.setattr(threads.os, "cpu_count", lambda: None)
        assert available_cores() == 1


def test_torch_and_blas_have_the_same_number_and_get_theirs_back():
    def pools():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    before = torch.get_num_threads(), pools()
    with using_threads(3):
        assert (torch.get_num_threads(), pools()) == (3, {3})
        with using_threads(1):
            assert (torch.get_num_threads(), pools()) == (1, {1})
        assert (torch.get_num_threads(), pools()) == (3, {3})
    assert (torch.get_num_threads(), pools()) == before
