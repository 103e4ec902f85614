"""Environments that raise at the first action that is not allowed, in whole runs: train, resume, evaluate, predict."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rl_training
from loading import ROOT
from rl_training.algorithms import DQN, PPO, SAC
from rl_training.cli import main
from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.core.seeding import EVALUATION_EPISODES
from rl_training.envs.factory import make_env
from rl_training.envs.tasks.locks import Locks
from rl_training.experiment.loading import load_agent
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train
from rl_training.experiment.video import record_video
from support.compared_runs import assert_same_run, crashed

LOCKS = "rl_training.envs.tasks:rl_training/Locks-v0"
VECTOR = "support.strict_vector:StrictVector-v0"
ALGOS = ("ppo", "a2c", "dqn", "recurrent_ppo")
WAYS = ("info", "method", "entry")


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("tell", WAYS)
def test_a_strict_environment_is_trained_and_evaluated(algo, backend, tell, tiny):
    config = tiny(algo, env_id=LOCKS, env_backend=backend, env_kwargs={"tell": tell}, eval_every_timesteps=32)
    result = train(config)
    assert load_agent(result.run_dir).config.use_action_masks == "on"
    assert evaluate_checkpoint(result.run_dir, 3)["num_episodes"] == 3


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("tell", WAYS)
def test_a_vector_environment_of_its_own_kind_is_trained_in(algo, mode, tell, tiny, monkeypatch):
    """Evaluations play in single environments, which take no mode."""
    monkeypatch.setattr("rl_training.experiment.run.evaluate_policy", lambda *args, **kwargs: Evaluated())
    monkeypatch.setattr("rl_training.experiment.run.evaluation_stepper", lambda *args, **kwargs: Closed())
    config = tiny(algo, env_id=VECTOR, env_backend="native", env_kwargs={"mode": mode, "tell": tell})
    assert train(config).metrics["global_step"] >= 64


class Closed:
    def close(self):
        pass

    def use_statistics(self, statistics):
        pass


class Evaluated:
    def summary(self):
        numbers = {"mean_reward": 0.0, "std_reward": 0.0, "mean_ep_length": 1.0, "num_episodes": 1}
        return numbers | {"num_capped_episodes": 0, "returns": [0.0], "lengths": [1]}


@pytest.mark.parametrize(
    "kwargs", [{"choices": [3, 4, 2]}, {"switches": 4}, {"switches": 2, "tell": "entry"}], ids=str
)
@pytest.mark.parametrize("algo", ["ppo", "a2c", "recurrent_ppo"])
def test_actions_of_several_parts_are_masked_part_by_part(algo, kwargs, tiny):
    result = train(tiny(algo, env_id=LOCKS, env_kwargs=kwargs))
    assert evaluate_checkpoint(result.run_dir, 2)["num_episodes"] == 2


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", {"env_kwargs": {"choices": [3, 4]}}),
        ("a2c", {"env_kwargs": {"tell": "method"}, "env_backend": "async"}),
        ("dqn", {"prioritized": True, "n_step": 3, "env_kwargs": {"tell": "entry"}}),
        ("recurrent_ppo", {"env_kwargs": {"hint_steps": 1}}),
    ],
)
def test_a_masked_run_goes_on_to_the_same_bytes(algo, settings, tiny, rows):
    config = tiny(algo, env_id=LOCKS, checkpoint_every_timesteps=24, log_every_timesteps=16, **settings)
    whole = train(config).run_dir
    killed = crashed(config, 40)
    resume(killed)
    assert_same_run(killed, whole, rows)


class Lenient(Locks):
    """Forbids nothing, and tells it only if it is asked to."""

    def __init__(self, tells: bool = False) -> None:
        super().__init__()
        self.tells = tells

    def _told(self) -> Any:
        obs, info = super()._told()
        self.allowed = [np.ones(6, bool)]
        return obs, (info if self.tells else {})


class TestInAUsersHands:
    @pytest.fixture
    def model(self, tiny):
        return PPO(tiny("ppo", env_id=LOCKS)).learn()

    @pytest.mark.parametrize("deterministic", [True, False])
    def test_predict_heeds_a_mask(self, model, deterministic):
        for action in range(6):
            only = np.arange(6) == action
            chosen, state = model.predict(
                np.ones(1, np.float32), action_masks=only, deterministic=deterministic
            )
            assert (int(chosen), state) == (action, None)
        many, _ = model.predict(np.ones((3, 1), np.float32), action_masks=np.eye(6)[[4, 0, 2]])
        assert many.tolist() == [4, 0, 2]

    def test_without_one_everything_is_allowed(self, model):
        everything, _ = model.predict(np.ones(1, np.float32), action_masks=np.ones(6))
        assert model.predict(np.ones(1, np.float32))[0] == everything

    def test_an_entry_of_the_observation_is_the_mask_unless_another_is_given(self, tiny):
        model = DQN(tiny("dqn", env_id=LOCKS, env_kwargs={"tell": "entry"})).learn()
        obs = {"hints": np.ones(1, np.float32), "action_mask": np.array([0, 0, 0, 1, 0, 0], np.int8)}
        assert model.predict(obs)[0] == 3
        assert model.predict(obs, action_masks=np.arange(6) == 5)[0] == 5
        batch = {"hints": np.ones((2, 1), np.float32), "action_mask": np.eye(6, dtype=np.int8)[[1, 2]]}
        assert model.predict(batch)[0].tolist() == [1, 2]

    def test_an_agent_that_never_knew_masks_heeds_them_all_the_same(self, tiny):
        model = PPO(tiny("ppo"))
        obs = model.agent.spec.observation_space.sample()
        size = model.agent.spec.action_space.n
        for action in range(size):
            start = model.agent.spec.action_space.start
            assert model.predict(obs, action_masks=np.arange(size) == action)[0] == action + start

    def test_continuous_actions_have_none(self, tiny):
        model = SAC(tiny("sac"))
        with pytest.raises(UserError, match="Box actions cannot be masked"):
            model.predict(np.zeros(3, np.float32), action_masks=[1])

    def test_evaluations_are_what_predicting_with_masks_gives(self, model, tmp_path):
        model.save(tmp_path / "agent")
        again = rl_training.load(tmp_path / "agent")
        summary = again.evaluate(1)
        env = make_env(again.config, 0, stream=EVALUATION_EPISODES)()
        obs, info = env.reset()
        total, ended = 0.0, False
        while not ended:
            action, _ = again.predict(obs, action_masks=info["action_mask"])
            obs, reward, terminated, truncated, info = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        assert summary["returns"] == [total]

    @pytest.mark.parametrize("tell", WAYS)
    def test_videos_show_allowed_actions(self, tell, tiny, tmp_path):
        pytest.importorskip("imageio_ffmpeg")
        run_dir = train(tiny("ppo", env_id=LOCKS, env_kwargs={"tell": tell})).run_dir
        assert len(record_video(load_agent(run_dir), tmp_path / "videos")) == 1

    def test_a_model_that_was_not_trained_yet_knows_them(self, tiny):
        model = PPO(tiny("ppo", env_id=LOCKS, env_kwargs={"tell": "entry"}))
        assert list(model.agent.spec.observation_space) == ["hints"]
        assert model.evaluate(2)["num_episodes"] == 2


class TestTheSetting:
    def test_off_lets_the_environment_raise(self, tiny):
        with pytest.raises(EnvironmentFault, match=r"choice \d of lock 0 is not allowed"):
            train(tiny("ppo", env_id=LOCKS, use_action_masks="off"))

    def test_off_makes_the_entry_a_feature(self, tiny):
        config = tiny("ppo", env_id=LOCKS, env_kwargs={"tell": "entry"}, use_action_masks="off")
        assert set(PPO(config).agent.spec.observation_space) == {"hints", "action_mask"}

    def test_what_was_found_is_said_once_at_the_start(self, tiny, capsys, tmp_path):
        arguments = ["train", "a2c", "--env-id", LOCKS, "--total-timesteps", "64"]
        assert main([*arguments, "--output-dir", str(tmp_path), "--eval-every-timesteps", "0"]) == 0
        said = capsys.readouterr()
        assert (said.err + said.out).count("provides action masks by info['action_mask']") == 1

    def test_on_where_there_are_none_is_one_sentence(self, capsys, tmp_path):
        arguments = ["train", "ppo", "--env-id", "CartPole-v1", "--use-action-masks", "on"]
        assert main([*arguments, "--output-dir", str(tmp_path)]) == 2
        assert "provides no masks" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())

    def test_a_mask_that_allows_nothing_stops_the_run_with_its_address(self, tiny):
        class Closing(gymnasium.Wrapper):
            count = 0

            def step(self, action):
                *result, info = self.env.step(action)
                self.count += 1
                return *result, info | ({"action_mask": np.zeros(6)} if self.count == 5 else {})

        config = tiny("ppo", env_id="Locks")
        fault = r"environment 0 allows no action at step 5.*last good checkpoint"
        with pytest.raises(EnvironmentFault, match=fault):
            train(config, factory=lambda: Closing(Locks()))

    def test_an_agent_plays_where_masks_are_told_otherwise(self, tiny):
        """The features are the same."""
        run_dir = train(tiny("ppo", env_id=LOCKS)).run_dir
        other = evaluate_checkpoint(run_dir, 1, env=lambda: gymnasium.make(LOCKS, tell="method"))
        assert other["num_episodes"] == 1

    def test_where_none_are_told_everything_is_allowed_with_a_warning(self, tiny):
        run_dir = train(tiny("ppo", env_id=LOCKS)).run_dir
        with pytest.warns(
            UserWarning, match="provides no action masks, but .* was trained with them: every action"
        ):
            assert evaluate_checkpoint(run_dir, 1, env=Lenient)["num_episodes"] == 1

    @pytest.mark.parametrize("algo", ["ppo", "dqn"])
    def test_whoever_began_without_masks_goes_on_without(self, algo, tiny, tmp_path):
        face = {"ppo": PPO, "dqn": DQN}[algo]
        face(tiny(algo, env_id="Locks"), env=Lenient).learn().save(tmp_path / "agent")
        again = face.load(tmp_path / "agent", env=lambda: Lenient(tells=True))
        assert again.learn(64).config.use_action_masks == "auto"
        assert again.agent.config.use_action_masks == "off"

    @pytest.mark.parametrize("algo", ["ppo", "dqn"])
    def test_whoever_began_with_masks_is_told_how_to_go_on_without(self, algo, tiny, tmp_path):
        face = {"ppo": PPO, "dqn": DQN}[algo]
        face(tiny(algo, env_id="Locks"), env=Locks).learn().save(tmp_path / "agent")
        with pytest.raises(UserError, match=r"was trained with action masks, .*use_action_masks='off'"):
            face.load(tmp_path / "agent", env=Lenient).learn(64)
        assert (
            face.load(tmp_path / "agent", env=Lenient, use_action_masks="off").learn(64).agent.timesteps
            == 128
        )


def test_the_manifest_says_nothing_of_masks_but_the_setting(tiny):
    run_dir = train(tiny("ppo", env_id=LOCKS, env_kwargs={"tell": "entry"})).run_dir
    (checkpoint,) = (run_dir / "checkpoints").glob("step_6*")
    manifest = json.loads((Path(checkpoint) / "manifest.json").read_text())
    assert manifest["config"]["use_action_masks"] == "on"
    assert [name for name, _ in manifest["facts"]["spaces"]["observation_space"]["spaces"]] == ["hints"]


def test_a_discrete_space_that_does_not_begin_at_zero_is_masked_from_its_first_choice(tiny):
    class Shifted(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-1, 1, (1,))
        action_space = spaces.Discrete(4, start=10)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return np.zeros(1, np.float32), {"action_mask": np.array([0, 0, 1, 0])}

        def step(self, action):
            assert action == 12
            self.count += 1
            return (
                np.zeros(1, np.float32),
                1.0,
                self.count == 5,
                False,
                {"action_mask": np.array([0, 0, 1, 0])},
            )

    for algo in ("ppo", "dqn"):
        train(tiny(algo, env_id="Shifted"), factory=Shifted)


def test_the_page_runs_as_it_stands_with_masks(tmp_path):
    page = (ROOT / "docs" / "masks.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    with contextlib.chdir(tmp_path):
        exec(code, {})
