"""Environments of the user's own: a function that builds one, or `module:Id`."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tiny_envs import Clockwork

import rl_training
from rl_training.algorithms import PPO
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs import make_vector_env
from rl_training.envs.factory import make_env
from rl_training.experiment.building import UserObjects
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, make_run_dir, train
from rl_training.experiment.video import record_video
from rl_training.trainer import train_ppo

MODULE = '''
import gymnasium
import numpy as np


class Echo(gymnasium.Env):
    """Reward 1 for repeating the observation; `size` choices."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)

    def __init__(self, size=2):
        self.action_space = gymnasium.spaces.Discrete(size)
        self.time = 0

    def _obs(self):
        self.wanted = int(self.np_random.integers(self.action_space.n))
        return np.array([self.wanted], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        reward = float(action == self.wanted)
        self.time += 1
        return self._obs(), reward, False, self.time >= 4, {}


gymnasium.register("Echo-v0", entry_point="users_envs:Echo", disable_env_checker=True)
'''


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    """A module in the folder one works in, which is where people have theirs."""
    import gymnasium

    (tmp_path / "users_envs.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield "users_envs:Echo-v0"
    sys.modules.pop("users_envs", None)
    gymnasium.registry.pop("Echo-v0", None)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_module_and_id_through_every_command(users_module, cli, tiny, tmp_path, backend):
    path = tmp_path / "settings.yaml"
    path.write_text(tiny(env_id=users_module, env_backend=backend).to_yaml(), encoding="utf-8")
    trained = cli("train", "--config", path, "--quiet", "--env-kwargs", "{size: 3}")
    assert (trained.code, trained.err) == (0, "")
    run_dir = trained.out.strip()
    assert "users_envs-Echo-v0" in run_dir
    model = rl_training.load(run_dir)
    assert model.agent.spec.action_space.n == 3
    assert model.evaluate(2)["lengths"] == [4, 4]
    assert cli("eval", run_dir, "--num-episodes", 2).code == 0
    assert cli("resume", run_dir, "--total-timesteps", 96, "--quiet").code == 0


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_function_that_builds_one(tiny, tmp_path, backend):
    made = []

    def build(length):
        made.append(length)
        return Clockwork(length=length)

    config = tiny(env_id="my clock", env_kwargs={"length": 5}, env_backend=backend)
    model = PPO(config, env=build).learn()
    assert model.evaluate(3)["lengths"] == [5, 5, 5]
    assert set(made) == {5}
    model.save(tmp_path / "agent")
    again = PPO.load(tmp_path / "agent", env=build)
    assert again.evaluate(3) == model.evaluate(3)
    again.learn(32)
    assert again.agent.timesteps == 96


ASKED = r"'CartPole-v1' that a function built.*env=.*--env-factory module:function with eval and resume"


@pytest.fixture
def clock_run(tiny):
    """A run in what a function built; that there is an environment of its name must not deceive anybody."""
    return train(tiny(env_id="CartPole-v1"), factory=Clockwork).run_dir


def test_an_agent_of_a_function_predicts_without_it(clock_run, tmp_path):
    model = rl_training.load(clock_run)
    env = Clockwork()
    assert model.agent.spec.observation_space == env.observation_space
    assert model.agent.spec.action_space == env.action_space
    obs = np.stack([env.observation_space.sample() for _ in range(5)])
    expected = rl_training.load(clock_run, env=Clockwork).predict(obs)[0]
    assert model.predict(obs)[0].tolist() == expected.tolist()
    model.save(tmp_path / "agent")
    assert rl_training.load(tmp_path / "agent").predict(obs)[0].tolist() == expected.tolist()


ASKING = {
    "evaluate": lambda run: rl_training.load(run).evaluate(1),
    "learn": lambda run: rl_training.load(run).learn(32),
    "evaluate_checkpoint": lambda run: evaluate_checkpoint(run, 1),
    "resume": lambda run: resume(run, total_timesteps=96),
    "video": lambda run: record_video(rl_training.load(run).agent, run / "videos"),
}


@pytest.mark.parametrize("door", ASKING)
def test_whoever_needs_the_function_asks_for_it(clock_run, door):
    with pytest.raises(UserError, match=ASKED):
        ASKING[door](clock_run)


def test_a_saved_agent_still_knows_that_a_function_is_needed(clock_run, tmp_path):
    rl_training.load(clock_run).save(tmp_path / "agent")
    with pytest.raises(UserError, match=ASKED):
        rl_training.load(tmp_path / "agent").evaluate(1)


def test_the_function_may_come_when_it_is_needed(clock_run):
    given = rl_training.load(clock_run, env=Clockwork).evaluate(3)
    assert rl_training.load(clock_run).evaluate(3, env=Clockwork) == given
    assert evaluate_checkpoint(clock_run, 3, env=Clockwork) == given
    assert rl_training.load(clock_run).evaluate(3, env="tiny_envs:Clockwork-v0") == given
    with pytest.raises(UserError, match=r"observation_space.*CartPole-v1"):
        rl_training.load(clock_run).evaluate(3, env="CartPole-v1")


def test_a_run_of_a_function_that_was_killed_at_once_asks_too(tiny):
    run_dir = make_run_dir(tiny(env_id="CartPole-v1"), given=UserObjects(factory=Clockwork))
    with pytest.raises(UserError, match=ASKED):
        resume(run_dir)
    assert resume(run_dir, factory=Clockwork).metrics["global_step"] == 64


def test_the_command_line_takes_the_function(clock_run, cli):
    for command in ("eval", "resume"):
        refused = cli(command, clock_run, *(["--total-timesteps", 96] if command == "resume" else []))
        assert refused.code == 2
        assert "--env-factory module:function" in refused.sentence
    name = ["--env-factory", "tiny_envs:Clockwork"]
    played = cli("eval", clock_run, "--num-episodes", 2, "--json", *name)
    assert played.code == 0, played.err
    assert json.loads(played.out)["lengths"] == evaluate_checkpoint(clock_run, 2, env=Clockwork)["lengths"]
    resumed = cli("resume", clock_run, "--total-timesteps", 96, "--quiet", *name)
    assert resumed.code == 0, resumed.err


WRONG = {
    "an id": ("CartPole-v1", "is not a function name; write module:function"),
    "a module and an id": ("tiny_envs:Clockwork-v0", "is not a function name"),
    "no module": (":Clockwork", "is not a function name"),
    "code": ("os:system('true')", "is not a function name"),
    "a module that is not there": (
        "no_such_module:build",
        "'no_such_module:build' cannot be imported: ModuleNotFound",
    ),
    "a function that is not there": (
        "tiny_envs:Clockwerk",
        "'tiny_envs:Clockwerk' does not exist; did you mean 'Clockwork'",
    ),
    "no function": ("tiny_envs:__name__", "is a str; use a function"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("command", ["eval", "resume"])
def test_a_wrong_name_of_a_function_is_told_in_a_sentence(clock_run, cli, command, case):
    name, message = WRONG[case]
    outcome = cli(command, clock_run, "--env-factory", name)
    assert outcome.code == 2
    assert message in outcome.sentence


def test_an_id_and_a_function_are_one_too_many(clock_run, cli):
    outcome = cli("eval", clock_run, "--env-id", "CartPole-v1", "--env-factory", "tiny_envs:Clockwork")
    assert outcome.code == 2
    assert "give one of them" in outcome.sentence


def test_loading_takes_overrides_of_either_level(clock_run):
    model = rl_training.load(clock_run, device="cpu", seed=7, learning_rate=0.5)
    assert (model.config.device, model.config.seed, model.config.algorithm.learning_rate) == ("cpu", 7, 0.5)
    with pytest.raises(UserError, match="does not fit the network's settings"):
        rl_training.load(clock_run, hidden_sizes=(16384,) * 64)
    with pytest.raises(UserError, match=r"does not fit the environment's spaces or the network's settings"):
        rl_training.load(clock_run, shared_network=True)
    with pytest.raises(UserError, match="unknown setting 'learning_rat'"):
        rl_training.load(clock_run, learning_rat=1.0)
    with pytest.raises(UserError, match="'nowhere' is not available"):
        rl_training.load(clock_run, device="nowhere")


def test_an_agent_acts_on_a_machine_without_its_environment(users_module, tiny, tmp_path):
    """Another process, in another folder, in which the module does not exist."""
    run_dir = train(tiny(env_id=users_module, env_kwargs={"size": 3}, normalize_obs=True)).run_dir
    wanted = rl_training.load(run_dir).predict(np.arange(3.0, dtype=np.float32)[:, None])[0].tolist()
    script = f"""
import json, importlib.util, numpy as np, rl_training
from rl_training.core.errors import UserError
assert importlib.util.find_spec("users_envs") is None
model = rl_training.load({str(run_dir)!r})
actions = model.predict(np.arange(3.0, dtype=np.float32)[:, None])[0].tolist()
try:
    model.evaluate(1)
except UserError as error:
    print(json.dumps([actions, str(error)]))
"""
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=True
    )
    actions, sentence = json.loads(done.stdout)
    assert actions == wanted
    assert "module 'users_envs' is not installed" in sentence


def test_a_function_has_no_native_backend(tiny):
    with pytest.raises(UserError, match="'native' needs a registered environment"):
        PPO(tiny(env_backend="native"), env=Clockwork).learn()


def test_module_and_id_with_an_implementation_of_its_own(tiny):
    result = train_ppo(tiny(env_id="tiny_envs:Pole-v0", env_backend="native"))
    assert result.metrics["global_step"] >= 64
    assert rl_training.load(result.run_dir).evaluate(3)["num_episodes"] == 3


def test_the_promised_calls_of_the_envs_package():
    from gymnasium.vector import SyncVectorEnv

    config = TrainConfig(algo="ppo", env_id="CartPole-v1", num_envs=3)
    vector = make_vector_env(config)
    assert type(vector) is SyncVectorEnv
    assert vector.num_envs == 3
    vector.close()
    vector = make_vector_env(config, num_envs=2)
    assert vector.num_envs == 2
    vector.close()
    first, again, other = (make_env(config, index)() for index in (0, 0, 1))
    starts = [env.reset()[0] for env in (first, again, other)]
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


def test_defaults_suit_two_environments_of_64_steps(tiny):
    config = TrainConfig(
        algo="ppo", env_id="CartPole-v1", seed=1, output_dir=tiny().output_dir, num_eval_episodes=1
    )
    result = train_ppo(config, total_timesteps=128, num_envs=2, num_steps=64)
    assert result.metrics["global_step"] == 128
    assert result.checkpoint_path.parents[1] == result.run_dir


def test_a_function_builds_the_environment_of_train_resume_and_eval(cli, tmp_path):
    factory = ("--env-factory", "tiny_envs:Clockwork")
    settings = ("--num-steps", 16, "--batch-size", 16, "--total-timesteps", 32, "--num-envs", 2)
    trained = cli("train", "ppo", *factory, *settings, "--output-dir", tmp_path)
    assert trained.code == 0, trained.err
    assert trained.out.count("--env-factory tiny_envs:Clockwork") == 2, "the next commands need it, too"
    (run_dir,) = tmp_path.iterdir()
    assert run_dir.name.startswith("ppo__Clockwork__")
    assert cli("resume", run_dir, *factory, "--total-timesteps", 64).code == 0
    assert cli("eval", run_dir, *factory, "--num-episodes", 1).code == 0
    assert "give the function" in cli("eval", run_dir, "--num-episodes", 1).sentence
    both = cli("train", "ppo", *factory, "--env-id", "CartPole-v1")
    assert both.code == 2
    assert "both name an environment" in both.sentence
