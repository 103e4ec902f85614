"""`env_wrappers`: around every single environment, in order, wherever one is built; wrong ones get a sentence each."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import ClipReward, TimeAwareObservation
from tiny_wrappers import Added, Scaled

import rl_training
from rl_training.algorithms import PPO
from rl_training.cli import load_config
from rl_training.config import TrainConfig, config_from_dict
from rl_training.core.errors import ConfigError, UserError
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train
from support.callbacks import StopAtCollect
from support.fake_ale import FakeGame, fake_opencv

ORDERED = ["tiny_wrappers:Scaled", "tiny_wrappers:Added"]


def config(*wrappers, **settings) -> TrainConfig:
    usual = {"algo": "ppo", "env_id": "tiny_envs:Clockwork-v0", "num_envs": 2, "env_wrappers": wrappers}
    return TrainConfig(**usual | settings)


def rewards(env, steps: int = 3) -> list[float]:
    """Rewards of the right actions, which are 1 without any wrapper."""
    env.reset()
    return [float(np.ravel(env.step(np.full(env.action_space.shape, i % 2))[1])[0]) for i in range(steps)]


class TestTheyAreApplied:
    @pytest.mark.parametrize("backend", ["sync", "async"])
    def test_in_order_to_each_environment(self, backend):
        for wrappers, expected in ((ORDERED, 3.0), (ORDERED[::-1], 4.0)):
            env = make_vector_env(config(*wrappers, env_backend=backend))
            try:
                assert rewards(env) == [expected] * 3
            finally:
                env.close()

    def test_with_arguments_and_to_what_a_function_builds(self):
        from tiny_envs import Clockwork

        env = make_env(config({"tiny_wrappers:Scaled": {"by": 5}}), 0, factory=Clockwork)()
        assert rewards(env) == [5.0] * 3

    def test_around_the_time_limit_that_they_may_ask_for(self):
        env = make_env(
            config("gymnasium.wrappers:TimeAwareObservation", env_id="CartPole-v1", max_episode_steps=9), 0
        )()
        assert env.observation_space.shape == (5,)
        env.reset()
        assert [env.step(i % 2)[3] for i in range(9)][-1]

    def test_below_the_preprocessing_of_images(self):
        entry = {"gymnasium.wrappers:AddRenderObservation": {"render_only": True}}
        settings = {"env_id": "CartPole-v1", "env_kwargs": {"render_mode": "rgb_array"}, "image_size": 20}
        pytest.importorskip("pygame")
        env = make_env(config(entry, **settings, preprocessing="image", frame_stack=2), 0)()
        assert env.observation_space.shape == (6, 20, 20)
        env.close()

    def test_below_the_preprocessing_of_games(self, monkeypatch):
        monkeypatch.setattr("rl_training.envs.preprocessing.atari.opencv", fake_opencv)
        game = {"preprocessing": "atari", "image_size": 2, "noop_max": 0, "fire_reset": False}
        env = make_env(config("tiny_wrappers:Scaled", **game), 0, factory=FakeGame)()
        plain = make_env(config(**game), 0, factory=FakeGame)()
        env.reset()
        plain.reset()
        assert env.step(0)[1] == 2.0 * plain.step(0)[1]
        with pytest.raises(UserError, match=r"tiny_wrappers:Fading.*preprocessing 'atari' reads the screen"):
            make_env(config("tiny_wrappers:Fading", **game), 0, factory=FakeGame)()

    def test_by_a_run_its_evaluation_and_a_loaded_model(self, tiny, rows):
        result = train(tiny(env_wrappers=["tiny_wrappers:Scaled", "tiny_wrappers:Added"]))
        played = rows(result.run_dir / "evaluations.jsonl")[-1]["returns"]
        assert all(value >= 8.0 for value in played)  # 8 steps of 0 or 1, doubled and raised
        assert evaluate_checkpoint(result.run_dir, 2)["returns"] == played
        raised = rl_training.load(result.run_dir, env_wrappers=[{"tiny_wrappers:Scaled": {"by": 0}}])
        assert raised.evaluate(1)["returns"] == [0.0]

    def test_by_videos(self, tiny, cli, tmp_path):
        pytest.importorskip("imageio_ffmpeg")
        pytest.importorskip("pygame")
        settings = {"env_id": "CartPole-v1", "max_episode_steps": 6}
        run_dir = train(tiny(env_wrappers=["tiny_wrappers:Added"], **settings)).run_dir
        outcome = cli("eval", run_dir, "--num-episodes", 1, "--record", tmp_path / "videos")
        assert outcome.code == 0, outcome.err
        assert [path.name for path in (tmp_path / "videos").iterdir()] == ["episode_0_return_12.mp4"]

    def test_by_check_env(self, cli):
        flags = ["--env-wrappers", "{tiny_wrappers:Scaled: {by: 70}}", "tiny_wrappers:Added"]
        outcome = cli("check-env", "tiny_envs:Clockwork-v0", *flags)
        assert outcome.code == 0, outcome.out
        assert "1 to 71" in outcome.out
        report = rl_training.check_env("tiny_envs:Clockwork-v0", env_wrappers=[Scaled, Added])
        assert "1 to 3" in report.facts["rewards"]


class TestForms:
    def test_a_config_keeps_them_and_reads_them_back(self):
        entries = [
            "tiny_wrappers:Added",
            {"gymnasium.wrappers:ClipReward": {"min_reward": -1, "max_reward": 1}},
        ]
        given = config(*entries)
        assert given.to_dict()["env_wrappers"] == entries
        assert config_from_dict(given.to_dict()) == given

    def test_classes_are_saved_by_their_names(self):
        given = config(Added, {ClipReward: {"min_reward": -1}}, TimeAwareObservation)
        assert given.env_wrappers == (
            "tiny_wrappers:Added",
            {"gymnasium.wrappers:ClipReward": {"min_reward": -1}},
            "gymnasium.wrappers:TimeAwareObservation",
        )
        assert make_env(given.with_overrides(env_id="CartPole-v1"), 0)().observation_space.shape == (5,)

    def test_one_alone_needs_no_list(self):
        assert config().with_overrides(env_wrappers="a:B").env_wrappers == ("a:B",)

    def test_flags_and_files(self, cli, tiny, tmp_path):
        path = tmp_path / "config.yaml"
        text = (
            tiny().to_yaml().replace("env_wrappers: []", "env_wrappers:\n- tiny_wrappers:Scaled:\n    by: 3")
        )
        path.write_text(text, encoding="utf-8")
        outcome = cli("train", "--config", path, "--quiet")
        assert outcome.code == 0, outcome.err
        saved = load_config(Path(outcome.out.strip()) / "config.yaml")
        assert saved.env_wrappers == ({"tiny_wrappers:Scaled": {"by": 3}},)
        flags = ["--env-wrappers", "tiny_wrappers:Added", "{tiny_wrappers:Scaled: {by: 3}}"]
        outcome = cli("train", "--config", path, "--quiet", *flags)
        assert outcome.code == 0, outcome.err
        saved = load_config(Path(outcome.out.strip()) / "config.yaml")
        assert saved.env_wrappers == ("tiny_wrappers:Added", {"tiny_wrappers:Scaled": {"by": 3}})

    @pytest.mark.parametrize(
        ("value", "remedy"),
        [
            ("gymnasium.wrappers.ClipReward", "write gymnasium.wrappers:ClipReward"),
            ("ClipReward", "module:Wrapper"),
            (3, "module:Wrapper"),
            ([3], "module:Wrapper"),
            ([{}], "module:Wrapper"),
            ([{"a:B": {}, "c:D": {}}], "module:Wrapper"),
            ([{"a:B": 3}], "map of arguments"),
            ([{"a:B": {3: 4}}], "map of arguments"),
            ([{"a:B": {"x": object()}}], "numbers, text"),
            ([{"wrapper": "a:B", "x": 1}], "module:Wrapper"),
            ("{a:B: [", "module:Wrapper"),
            ([lambda env: env], "top level of a module"),
        ],
    )
    def test_what_is_none_gets_a_sentence_with_key_and_remedy(self, value, remedy):
        with pytest.raises(ConfigError, match=f"env_wrappers is .*; .*{remedy}"):
            config().with_overrides(env_wrappers=value)


class TestWrongOnes:
    @pytest.mark.parametrize(
        ("entry", "words"),
        [
            ("no_such_module:Wrapper", "env_wrappers 'no_such_module:Wrapper' cannot be imported"),
            ("tiny_wrappers:Scale", "does not exist; did you mean 'Scaled'"),
            ("tiny_wrappers:NoWrapper", "is a class, not a gymnasium.Wrapper"),
            ("tiny_wrappers:function", "is a function, not a gymnasium.Wrapper"),
            ("gymnasium.wrappers.vector:ClipReward", "is for vector environments"),
            (
                {"tiny_wrappers:Scaled": {"bye": 1}},
                r"Scaled' with arguments \{'bye': 1\}.*unexpected keyword",
            ),
            (
                "gymnasium.wrappers:TransformReward",
                "TransformReward'.*missing 1 required positional argument",
            ),
            ("tiny_wrappers:Raises", "Raises'.*RuntimeError: not today"),
        ],
    )
    @pytest.mark.parametrize("backend", ["sync", "async"])
    def test_each_gets_one_sentence_and_leaves_no_folder(self, tiny, cli, tmp_path, entry, words, backend):
        path = tmp_path / "config.yaml"
        path.write_text(tiny(env_wrappers=[entry], env_backend=backend).to_yaml(), encoding="utf-8")
        outcome = cli("train", "--config", path)
        assert outcome.code == 2
        assert not (tmp_path / "runs").exists()
        with pytest.raises(UserError, match=words):
            raise UserError(outcome.sentence)

    def test_native_vectors_have_no_single_environments(self, tiny):
        with pytest.raises(
            UserError, match=r"env_wrappers need.*env_backend 'native' does not have; use env_backend 'sync'"
        ):
            train(tiny(env_id="tiny_envs:Pole-v0", env_backend="native", env_wrappers=ORDERED))


STATEFUL = {
    "of the episode": ["tiny_wrappers:Fading"],
    "running statistics": ["gymnasium.wrappers:NormalizeObservation", "gymnasium.wrappers:NormalizeReward"],
    "chance": [{"gymnasium.wrappers:StickyAction": {"repeat_action_probability": 0.5}}],
}


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_resumed_run_has_the_same_bytes(tiny, kind, backend):
    settings = tiny(
        env_id="tiny_envs:Lottery-v0", env_wrappers=STATEFUL[kind], total_timesteps=192, env_backend=backend
    )
    whole, paused = train(settings), train(settings, callbacks=[StopAtCollect(96)])
    assert paused.paused
    again = resume(paused.run_dir)
    names = ["model.safetensors", "optimizer.safetensors", "sampler.safetensors"]
    for name in names:
        assert (whole.checkpoint_path / name).read_bytes() == (again.checkpoint_path / name).read_bytes()


def test_one_that_remembers_earlier_episodes_is_told(tiny, cli, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(tiny(env_wrappers=["tiny_wrappers:Aging"]).to_yaml(), encoding="utf-8")
    outcome = cli("train", "--config", path)
    assert outcome.code == 0, outcome.err
    assert "keeps state across resets even if it is rebuilt" in outcome.out


class TestStrangers:
    ENTRY = "somebodys_wrappers:Theirs"

    @pytest.fixture
    def run(self, tmp_path, tiny, monkeypatch):
        (tmp_path / "modules").mkdir()
        (tmp_path / "modules" / "somebodys_wrappers.py").write_text(
            "import gymnasium\nclass Theirs(gymnasium.Wrapper): pass\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(tmp_path / "modules")
        run_dir = train(tiny(env_id="CartPole-v1", env_wrappers=[self.ENTRY])).run_dir
        sys.modules.pop("somebodys_wrappers", None)
        yield run_dir
        sys.modules.pop("somebodys_wrappers", None)

    @pytest.fixture
    def foreign(self, run, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
        return run

    def test_one_s_own_need_no_word(self, run):
        assert evaluate_checkpoint(run, 1)["num_episodes"] == 1

    @pytest.mark.parametrize(
        "door",
        [
            lambda run: rl_training.load(run).evaluate(1),
            lambda run: rl_training.load(run).evaluate(1, env="CartPole-v1"),
            lambda run: rl_training.load(run, env="CartPole-v1"),
            lambda run: rl_training.load(run, env=lambda: gymnasium.make("CartPole-v1")),
            lambda run: rl_training.load(run).learn(32),
            lambda run: evaluate_checkpoint(run, 1),
            lambda run: evaluate_checkpoint(run, 1, env="CartPole-v1"),
            lambda run: resume(run, total_timesteps=96),
        ],
    )
    def test_theirs_are_not_imported(self, foreign, door):
        with pytest.raises(
            UserError, match=r"not signed by you.*somebodys_wrappers.*env_wrappers.*--trust-modules"
        ):
            door(foreign)
        assert "somebodys_wrappers" not in sys.modules

    def test_the_agent_predicts_without_them(self, foreign, tmp_path):
        model = rl_training.load(foreign)
        assert model.predict(np.zeros(4, np.float32))[0] in (0, 1)
        model.save(tmp_path / "saved")
        assert not read_checkpoint(tmp_path / "saved").signed
        assert "somebodys_wrappers" not in sys.modules

    @pytest.mark.parametrize("command", ["eval", "resume"])
    def test_trust_allows_them(self, foreign, cli, command):
        more = ["--num-episodes", 1] if command == "eval" else ["--total-timesteps", 96, "--quiet"]
        assert cli(command, foreign, *more).code == 2
        outcome = cli(command, foreign, *more, "--trust-modules")
        assert outcome.code == 0, outcome.err
        assert "somebodys_wrappers" in sys.modules

    def test_wrappers_of_one_s_own_in_their_place(self, foreign):
        model = rl_training.load(foreign, env_wrappers=["gymnasium.wrappers:OrderEnforcing"])
        assert model.evaluate(1)["num_episodes"] == 1

    @pytest.mark.parametrize(
        ("entry", "fine"),
        [
            ({"gymnasium.wrappers:ClipReward": {"min_reward": -1}}, True),
            ("gymnasium.wrappers:NormalizeReward", True),
            ({"gymnasium.wrappers:RecordVideo": {"video_folder": "somewhere"}}, False),
            ("gymnasium.wrappers.rendering:RecordVideo", False),
        ],
    )
    def test_those_of_gymnasium_that_write_nothing_are_fine(self, tiny, tmp_path, monkeypatch, entry, fine):
        PPO(tiny(env_id="CartPole-v1", env_wrappers=[])).save(tmp_path / "agent")
        rl_training.load(tmp_path / "agent", env_wrappers=[entry]).save(tmp_path / "wrapped")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
        if fine:
            assert evaluate_checkpoint(tmp_path / "wrapped", 1)["num_episodes"] == 1
            return
        with pytest.raises(UserError, match="RecordVideo"):
            evaluate_checkpoint(tmp_path / "wrapped", 1)
        assert not Path("somewhere").exists()
