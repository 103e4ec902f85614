"""`train --start-from RUN`: a new run with the weights and statistics of another, which stays as it is."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import rl_training
from loading import ROOT
from rl_training.algorithms import ALGORITHMS, DQN, PPO
from rl_training.cli import load_config
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.warm_start import FOLDER
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtCollect
from support.configs import CONTINUOUS, ONLINE

WEIGHTS = {"ppo": ["model"], "a2c": ["model"], "recurrent_ppo": ["model"], "dqn": ["model", "target"]}
WEIGHTS |= {"sac": ["model", "critics"], "td3": ["model", "critics", "target_actor"]}


def contents(folder: Path) -> dict[str, str]:
    """Every file and what is in it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def metadata(run_dir: Path):
    return json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))


def same(one: Path, other: Path) -> bool:
    first, second = load_file(one), load_file(other)
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)


@pytest.fixture
def origin(tiny):
    def build(algo="ppo", **settings):
        return train(tiny(algo, normalize_obs=True, normalize_reward=True, **settings))

    return build


class TestWhatItBeginsWith:
    @pytest.mark.parametrize("algo", ONLINE)
    def test_weights_and_statistics_and_a_fresh_optimizer(self, origin, cli, algo):
        old = origin(algo)
        before = contents(old.run_dir)
        flags = ["--checkpoint-every-timesteps", 1, "--keep-checkpoints", 99, "--seed", 7]
        outcome = cli("train", "--start-from", old.run_dir, *flags)
        assert outcome.code == 0, outcome.err
        (new,) = set(old.run_dir.parent.iterdir()) - {old.run_dir}
        first = new / "checkpoints" / "step_0"
        for group in WEIGHTS[algo]:
            name = f"{group}.safetensors"
            assert same(first / name, old.checkpoint_path / name), group
        moments = load_file(first / "optimizer.safetensors")
        assert all(not np.any(part) for key, part in moments.items() if "flat" not in key), moments.keys()
        assert open_checkpoint(first).progress.updates == 0
        assert open_checkpoint(new).progress.timesteps == 64
        assert not same(new / "checkpoints" / "step_64" / "model.safetensors", first / "model.safetensors")
        assert contents(old.run_dir) == before

    def test_the_metadata_and_the_console_say_so(self, origin, cli, tmp_path):
        old = origin()
        outcome = cli(
            "train", "--start-from", old.run_dir, "--learning-rate", "1e-5", "--output-dir", tmp_path / "new"
        )
        assert outcome.code == 0, outcome.err
        assert f"starts with the weights of {old.checkpoint_path}, trained for 64 steps" in outcome.out
        (new,) = (tmp_path / "new").iterdir()
        manifest = json.loads((old.checkpoint_path / "manifest.json").read_text(encoding="utf-8"))
        assert metadata(new)["started_from"] == {
            "path": str(old.checkpoint_path.resolve()),
            "timesteps": 64,
            "config_fingerprint": metadata(old.run_dir)["config_fingerprint"],
            "sha256": manifest["sha256"],
        }
        expected = load_config(old.run_dir / "config.yaml").with_overrides(
            learning_rate=1e-5, output_dir=str(tmp_path / "new")
        )
        assert load_config(new / "config.yaml") == expected
        assert "started_from" not in metadata(old.run_dir)

    def test_a_saved_agent_best_and_a_checkpoint_will_do(self, origin, cli, tmp_path):
        old = origin()
        PPO.load(old.run_dir).save(tmp_path / "agent")
        for path in (tmp_path / "agent", old.run_dir / "best", old.checkpoint_path):
            outcome = cli("train", "--start-from", path, "--quiet")
            assert outcome.code == 0, outcome.err
            first = load_file(Path(outcome.out.strip()) / FOLDER / "model.safetensors")
            assert np.array_equal(
                first["normalizer.moments.mean"],
                load_file(old.checkpoint_path / "model.safetensors")["normalizer.moments.mean"],
            )

    def test_statistics_of_wrappers_come_along_and_go_on(self, tiny):
        settings = {"env_id": "CartPole-v1", "env_wrappers": ["gymnasium.wrappers:NormalizeObservation"]}
        old = train(tiny(**settings))
        new = PPO.start_from(old.run_dir, keep_checkpoints=9, checkpoint_every_timesteps=32).learn()
        folders = Path(new.agent.path).parent
        counts = []
        for folder in (old.checkpoint_path, folders / "step_0", folders / "step_64"):
            state = open_checkpoint(folder).state["sampler"]["envs"]["statistics"]
            counts.append([float(next(iter(state[str(i)].values()))["count"]) for i in range(2)])
        assert np.allclose(counts[0], counts[1], atol=1.5)  # the first observation is one more
        assert min(counts[2]) > max(counts[0])

    def test_another_environment_with_the_same_spaces(self, origin, cli):
        old = origin()
        outcome = cli("train", "--start-from", old.run_dir, "--env-id", "tiny_envs:Lottery-v0", "--quiet")
        assert outcome.code == 0, outcome.err
        assert load_config(Path(outcome.out.strip()) / "config.yaml").env_id == "tiny_envs:Lottery-v0"


class TestPython:
    def test_it_predicts_learns_and_counts_from_zero(self, origin):
        old = origin()
        model = PPO.start_from(old.run_dir, learning_rate=1e-5)
        assert model.config.algorithm.learning_rate == 1e-5
        obs = np.zeros(3, np.float32)
        assert model.predict(obs)[0] == PPO.load(old.run_dir).predict(obs)[0]
        model.learn(96)
        assert model.agent.timesteps == 96
        assert metadata(Path(model.agent.path).parents[1])["started_from"]["timesteps"] == 64
        model.learn(32)  # as ever, it goes on
        assert model.agent.timesteps == 128

    def test_it_takes_a_function_for_an_environment(self, tiny):
        from tiny_envs import Clockwork

        old = PPO(tiny(), env=Clockwork).learn()
        path = old.agent.path
        with pytest.raises(UserError, match="give the function"):
            PPO.start_from(path).learn()
        assert PPO.start_from(path, env=Clockwork).learn(32).agent.timesteps == 32


class TestMisfits:
    def refused(self, cli, *flags) -> str:
        before = len(list(Path(self.runs).iterdir()))
        outcome = cli("train", *flags)
        assert outcome.code == 2, outcome.err
        assert len(list(Path(self.runs).iterdir())) == before
        return outcome.sentence

    def test_each_gets_a_sentence_and_leaves_no_folder(self, origin, cli, tmp_path):
        old = origin()
        self.runs, start = old.run_dir.parent, ["--start-from", old.run_dir]
        assert "was trained with observation_space" in self.refused(cli, *start, "--env-id", "CartPole-v1")
        assert "is for ppo, not for dqn" in self.refused(cli, "dqn", *start)
        sentence = self.refused(cli, *start, "--hidden-sizes", 16)
        assert (
            "does not fit the networks of this run; the settings differ: hidden_sizes is (16,) and was (8,)"
            in sentence
        )
        assert "normalize_obs is False and was True" in self.refused(cli, *start, "--no-normalize-obs")
        assert "give one of them" in self.refused(cli, *start, "--config", "ppo/cartpole")
        assert "does not exist" in self.refused(cli, "--start-from", tmp_path / "nowhere")
        assert "--start-from needs a run" in self.refused(cli, "--start-from")
        assert "--trust-modules is for --start-from" in self.refused(cli, "ppo", "--trust-modules")

    def test_in_python_as_well(self, origin, tiny):
        old = origin()
        with pytest.raises(UserError, match="holds a ppo agent"):
            DQN.start_from(old.run_dir)
        with pytest.raises(UserError, match="is a ppo agent, but this is a run of dqn"):
            train(tiny("dqn"), learned=open_checkpoint(old.run_dir))


class TestResume:
    @pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
    def test_to_the_same_bytes_without_the_origin(self, tiny, algo):
        settings = {"env_id": "Pendulum-v1" if algo in CONTINUOUS else "tiny_envs:Lottery-v0"}
        old = train(tiny(algo, **settings))
        options = {"total_timesteps": 128, "seed": 5}
        face = ALGORITHMS[algo]
        whole = face.start_from(old.run_dir, **options).learn()
        paused = face.start_from(old.run_dir, **options)
        paused.learn(callbacks=[StopAtCollect(64)])
        run_dir = Path(paused.agent.path).parents[1]
        shutil.rmtree(old.run_dir)
        again = resume(run_dir)
        for path in sorted(Path(whole.agent.path).glob("*.safetensors")):
            assert path.read_bytes() == (again.checkpoint_path / path.name).read_bytes(), path.name
        assert metadata(run_dir)["started_from"]["timesteps"] == 64

    def test_after_a_kill_before_the_first_checkpoint(self, tiny, monkeypatch):
        old = train(tiny(env_id="tiny_envs:Lottery-v0"))
        whole = PPO.start_from(old.run_dir, seed=5).learn()
        before = set(old.run_dir.parent.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(
                "rl_training.experiment.run.Run.execute", lambda *_: (_ for _ in ()).throw(KeyError("power"))
            )
            with pytest.raises(KeyError, match="power"):
                PPO.start_from(old.run_dir, seed=5).learn()
        (run_dir,) = set(old.run_dir.parent.iterdir()) - before
        assert not (run_dir / "checkpoints").exists()
        shutil.rmtree(old.run_dir)
        again = resume(run_dir)
        name = "model.safetensors"
        assert (Path(whole.agent.path) / name).read_bytes() == (again.checkpoint_path / name).read_bytes()
        assert metadata(run_dir)["started_from"]["timesteps"] == 64

    def test_after_sigkill(self, tiny, tmp_path):
        old = train(tiny(env_id="tiny_envs:Lottery-v0"))
        command = [sys.executable, "-m", "rl_training", "train", "--start-from", str(old.run_dir), "--quiet"]
        flags = [
            "--output-dir",
            str(tmp_path / "new"),
            "--total-timesteps",
            "100000",
            "--checkpoint-every-timesteps",
            "64",
        ]
        paths = [str(ROOT / "tests" / "integration"), *sys.path]
        process = subprocess.Popen(
            [*command, *flags],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while not list((tmp_path / "new").glob("*/checkpoints/step_64*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.wait()
        shutil.rmtree(old.run_dir)
        (run_dir,) = (path for path in (tmp_path / "new").iterdir() if not path.name.startswith("."))
        done = open_checkpoint(run_dir).progress.timesteps
        assert resume(run_dir, total_timesteps=done + 64).metrics["global_step"] == done + 64
        assert metadata(run_dir)["started_from"]["timesteps"] == 64


class TestStrangers:
    @pytest.fixture
    def foreign(self, tmp_path, tiny, monkeypatch):
        (tmp_path / "modules").mkdir()
        (tmp_path / "modules" / "somebodys_starts.py").write_text(
            "import gymnasium\nclass Theirs(gymnasium.Wrapper): pass\ndef half(fraction): return 0.5\n",
            encoding="utf-8",
        )
        monkeypatch.syspath_prepend(tmp_path / "modules")
        parts = {
            "env_wrappers": ["somebodys_starts:Theirs"],
            "learning_rate_schedule": "somebodys_starts:half",
        }
        run_dir = train(tiny(env_id="CartPole-v1", **parts)).run_dir
        sys.modules.pop("somebodys_starts", None)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
        monkeypatch.chdir(tmp_path)
        yield run_dir
        sys.modules.pop("somebodys_starts", None)

    def test_what_they_name_is_not_imported_without_leave(self, foreign, cli):
        own = ["--learning-rate-schedule", "linear", "--env-wrappers", "gymnasium.wrappers:OrderEnforcing"]
        for flags, setting in (([], "learning_rate_schedule"), (own[:2], "env_wrappers")):
            outcome = cli("train", "--start-from", foreign, *flags)
            assert outcome.code == 2
            assert setting in outcome.sentence
            assert "--trust-modules" in outcome.sentence
        with pytest.raises(UserError, match="somebodys_starts"):
            PPO.start_from(foreign).learn()
        assert "somebodys_starts" not in sys.modules
        outcome = cli("train", "--start-from", foreign, *own, "--quiet")
        assert outcome.code == 0, outcome.err
        assert "somebodys_starts" not in sys.modules
        outcome = cli("train", "--start-from", foreign, "--trust-modules", "--quiet")
        assert outcome.code == 0, outcome.err
        assert "somebodys_starts" in sys.modules

    def test_they_do_not_choose_where_folders_are_made(self, foreign, cli, tmp_path):
        before = contents(foreign.parent)
        outcome = cli("train", "--start-from", foreign, "--trust-modules", "--quiet")
        assert Path(outcome.out.strip()).parent == Path("runs")
        assert contents(foreign.parent).keys() - before.keys() == {
            str(path) for path in Path(tmp_path / outcome.out.strip()).rglob("*") if path.is_file()
        }


def test_a_start_can_be_loaded_like_any_agent(origin):
    old = origin()
    new = PPO.start_from(old.run_dir).learn()
    begun = rl_training.load(Path(new.agent.path).parents[1] / FOLDER)
    obs = np.full((5, 3), 0.3, np.float32)
    assert np.array_equal(begun.predict(obs)[0], PPO.load(old.run_dir).predict(obs)[0])
