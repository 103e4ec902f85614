"""The number of threads of a run, and the cores that `num_threads: auto` borrows without changing a byte."""

import hashlib
import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
import yaml
from safetensors.torch import load_file
from threadpoolctl import threadpool_info

from rl_training import PPO
from rl_training.cli import main
from rl_training.cli.train import config_from_flags
from rl_training.config import TrainConfig, config_from_dict
from rl_training.core.errors import ConfigError
from rl_training.experiment import threads
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.experiment.threads import SpareCores
from rl_training.runtime.callbacks import Callback
from support.runs import paused_run


class Watch(Callback):
    """Remembers the threads of torch and of BLAS in every update."""

    def __init__(self):
        self.seen = set()

    def on_update(self, progress, result):
        blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        self.seen.add((torch.get_num_threads(), *blas))


@pytest.fixture
def borrowed(monkeypatch):
    """The numbers of threads that updates asked for."""
    seen, real = set(), threads.thread_setter

    def watched(*arguments):
        set_threads = real(*arguments)
        return lambda number: (seen.add(number), set_threads(number))

    monkeypatch.setattr(threads, "thread_setter", watched)
    return seen


@pytest.fixture
def spare_cores(monkeypatch):
    """A machine with an idle core, on which even the smallest update is worth a second thread."""
    monkeypatch.setattr(threads, "available_cores", lambda: 2)
    monkeypatch.setattr(threads, "WORTHWHILE", 1)
    monkeypatch.setattr(threads.IdleCores, "since_last_look", lambda self: 1.0)
    monkeypatch.setattr(SpareCores, "UNTIMED", 0)
    monkeypatch.setattr(SpareCores, "TIMED", 0)
    monkeypatch.setattr(SpareCores, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(SpareCores, "GAIN", 1e9)  # small products are not faster with two threads


def borrowed_config(result, **changes):
    return read_checkpoint(result.checkpoint_path).config.with_overrides(**changes)


def weights(run_dir):
    return (run_dir / "checkpoints" / "step_64" / "model.safetensors").read_bytes()


class TestRecords:
    def test_auto_is_the_default_and_one_for_small_networks(self, tiny, monkeypatch):
        monkeypatch.setattr(threads, "available_cores", lambda: 64)
        watch, config = Watch(), tiny()
        assert config.num_threads == "auto"
        train(config, callbacks=[watch])
        assert watch.seen == {(1, 1)}

    def test_a_number_is_in_everything_that_tells_of_the_run(self, tiny, borrowed):
        watch = Watch()
        result = train(tiny(num_threads=2), callbacks=[watch])
        assert borrowed == {1, 2}
        assert watch.seen == {(1, 1)}, "acting has one thread, as in other processes"
        assert yaml.safe_load((result.run_dir / "config.yaml").read_text())["num_threads"] == 2
        assert json.loads((result.run_dir / "metadata.json").read_text())["num_threads"] == 2
        checkpoint = read_checkpoint(result.checkpoint_path)
        assert checkpoint.config.num_threads == 2
        assert checkpoint.facts["surroundings"]["num_threads"] == 2

    def test_it_makes_no_other_experiment_of_a_run(self, tiny):
        assert len({tiny(num_threads=number).fingerprint() for number in ("auto", 1, 2)}) == 1


def test_initial_weights_do_not_depend_on_the_threads_of_the_caller(tiny):
    """Orthogonal initialization decomposes a matrix, which torch does in parallel."""
    model = PPO(tiny(hidden_sizes=(64, 64)))
    torch.set_num_threads(2)
    try:
        before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    finally:
        torch.set_num_threads(1)
    model.learn(1, progress=False)
    saved = load_file(model.run_dir / "checkpoints" / "step_0" / "model.safetensors")
    assert all(torch.equal(before[name], tensor) for name, tensor in saved.items())


class TestBorrowedCores:
    @pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn", "sac", "td3", "recurrent_ppo"])
    def test_they_change_no_byte(self, tiny, algo, spare_cores, borrowed):
        watch = Watch()
        result = train(tiny(algo), callbacks=[watch])
        assert borrowed == {1, 2}
        assert watch.seen == {(1, 1)}, "only updates borrow"
        single = train(borrowed_config(result, num_threads=1))
        assert weights(result.run_dir) == weights(single.run_dir)

    @pytest.mark.parametrize("algo", ["ppo", "sac"])
    def test_nor_when_a_run_is_resumed(self, tiny, algo, spare_cores, monkeypatch):
        whole = train(tiny(algo)).run_dir
        run_dir = paused_run(tiny(algo), 32)
        monkeypatch.setattr(threads, "available_cores", lambda: 1)
        watch = Watch()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing has changed around it
            resume(run_dir, callbacks=[watch])
        assert watch.seen == {(1, 1)}
        assert weights(run_dir) == weights(whole)


class TestFlag:
    @pytest.mark.parametrize(("text", "number"), [("auto", "auto"), ("3", 3), ("2e0", 2)])
    def test_it_takes_a_number_or_auto(self, text, number):
        config, _ = config_from_flags("ppo", None, ["--env-id", "X", "--num-threads", text], "prog")
        assert config.num_threads == number

    def test_a_config_and_a_flag_on_top(self):
        base = TrainConfig(algo="ppo", env_id="X", num_threads=4)
        for flags, number in (([], 4), (["--num-threads", "auto"], "auto"), (["--num-threads", "2"], 2)):
            assert config_from_flags("ppo", base, flags, "prog")[0].num_threads == number

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("many", "--num-threads is 'many'; use auto, or a whole number"),
            ("1.5", "--num-threads is '1.5'; use auto, or a whole number"),
            ("0", "settings: num_threads is 0; use a number from 1 to 1024"),
            ("-1", "settings: num_threads is -1; use a number from 1 to 1024"),
            ("2147483648", "settings: num_threads is 2147483648; use a number from 1 to 1024"),
        ],
    )
    def test_anything_else_is_one_sentence(self, text, sentence, capsys):
        assert main(["train", "ppo", "--env-id", "CartPole-v1", f"--num-threads={text}"]) == 2
        assert capsys.readouterr().err == f"error: {sentence}\n"

    @pytest.mark.parametrize(
        ("value", "sentence"),
        [
            ("atuo", "num_threads is 'atuo'; use auto, or a whole number; did you mean 'auto'?"),
            (0, "num_threads is 0; use a number from 1 to 1024"),
            (1.5, "num_threads is 1.5; use a whole number such as 5000"),
        ],
    )
    def test_in_a_config_too(self, value, sentence):
        with pytest.raises(ConfigError) as caught:
            config_from_dict({"algo": "ppo", "env_id": "CartPole-v1", "num_threads": value})
        assert caught.value.problems == [sentence]


SAC = """
from rl_training.config import TrainConfig
from rl_training.experiment.start import train
from rl_training.experiment.threads import SpareCores
config = TrainConfig(algo="sac", env_id="Pendulum-v1", output_dir="runs", total_timesteps=24, num_envs=1,
    num_eval_episodes=1, eval_every_timesteps=0, rebuild_envs="off", use_action_masks="off", num_threads=1,
    max_episode_steps=10)
train(config.with_overrides(buffer_size=1000, learning_starts=8))
"""


def test_environment_variables_of_blas_do_not_count(tmp_path):
    """NumPy's products have threads of their own; a run gives them its number, whatever they were told before."""
    learned = set()
    for number in ("1", "2"):
        folder = tmp_path / number
        folder.mkdir()
        variables = {"OPENBLAS_NUM_THREADS": number, "OMP_NUM_THREADS": number}
        subprocess.run(
            [sys.executable, "-c", SAC], cwd=folder, env=os.environ | variables, timeout=120, check=True,
            capture_output=True,
        )  # fmt: skip
        (model,) = folder.glob("runs/*/checkpoints/step_24/model.safetensors")
        learned.add(hashlib.sha256(model.read_bytes()).hexdigest())
    assert len(learned) == 1
