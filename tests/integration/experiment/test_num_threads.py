"""The number of threads: what `auto` found is in the run's records, and a run goes on with it on any machine."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from threadpoolctl import threadpool_info

from rl_training.cli import main
from rl_training.cli.train import config_from_flags
from rl_training.config import TrainConfig, config_from_dict
from rl_training.core.errors import ConfigError
from rl_training.experiment import resources
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
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
def two_cores(monkeypatch):
    """A machine on which even the smallest network is worth a thread for each of two cores."""
    monkeypatch.setattr(resources, "available_cores", lambda: 2)
    monkeypatch.setattr(resources, "WORK_PER_THREAD", 1)


def weights(run_dir):
    return (run_dir / "checkpoints" / "step_64" / "model.safetensors").read_bytes()


class TestRecords:
    def test_auto_is_the_default_and_one_for_small_networks(self, tiny, monkeypatch):
        monkeypatch.setattr(resources, "available_cores", lambda: 64)
        watch, config = Watch(), tiny()
        assert config.num_threads == "auto"
        train(config, callbacks=[watch])
        assert watch.seen == {(1, 1)}

    @pytest.mark.parametrize("given", ["auto", 2])
    def test_the_number_is_in_everything_that_tells_of_the_run(self, tiny, two_cores, given):
        watch = Watch()
        result = train(tiny(num_threads=given), callbacks=[watch])
        assert watch.seen == {(2, 2)}
        assert yaml.safe_load((result.run_dir / "config.yaml").read_text())["num_threads"] == 2
        assert json.loads((result.run_dir / "metadata.json").read_text())["num_threads"] == 2
        checkpoint = read_checkpoint(result.checkpoint_path)
        assert checkpoint.config.num_threads == 2
        assert checkpoint.facts["surroundings"]["num_threads"] == 2

    def test_it_makes_no_other_experiment_of_a_run(self, tiny):
        assert len({tiny(num_threads=number).fingerprint() for number in ("auto", 1, 2)}) == 1


class TestResume:
    @pytest.mark.parametrize("algo", ["ppo", "sac"])
    def test_another_machine_uses_the_number_that_was_found(self, tiny, two_cores, algo, monkeypatch):
        whole = train(tiny(algo)).run_dir
        run_dir = paused_run(tiny(algo), 32)
        monkeypatch.setattr(resources, "available_cores", lambda: 1)
        watch = Watch()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing has changed around it
            resume(run_dir, callbacks=[watch])
        assert watch.seen == {(2, 2)}
        assert weights(run_dir) == weights(whole)

    def test_so_does_one_that_begins_it_again(self, tiny, two_cores, monkeypatch):
        class Fault(Callback):
            def on_start(self, context):
                raise KeyError("before anything is learned")

        with pytest.raises(KeyError):
            train(config := tiny(), callbacks=[Fault()])
        (run_dir,) = Path(config.output_dir).iterdir()
        shutil.rmtree(run_dir / "checkpoints")  # as if it had been killed a moment earlier
        monkeypatch.setattr(resources, "available_cores", lambda: 1)
        watch = Watch()
        resume(run_dir, callbacks=[watch])
        assert watch.seen == {(2, 2)}


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
