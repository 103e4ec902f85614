"""A model is copied, and pickled into another process, with all that `save` keeps and nothing that is open."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import tiny_encoders
import tiny_envs

from loading import ROOT
from rl_training.algorithms import DQN, PPO
from rl_training.core.errors import UserError
from rl_training.runtime.callbacks import Callback
from support.callbacks import StopAtUpdate

OBSERVATIONS = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
SETTINGS = {"env_id": "tiny_envs:Lottery-v0", "learning_rate": 3e-2, "normalize_obs": True}


def build_lottery(length: int = 8) -> tiny_envs.Lottery:
    return tiny_envs.Lottery(length)


def through_bytes(model):
    return pickle.loads(pickle.dumps(model))


def same(model, other) -> bool:
    """Deterministic actions, and the stream of sampled ones, which differs as soon as the weights do."""
    chosen = [
        [m.predict(OBSERVATIONS, deterministic=d)[0].tolist() for d in (True, False, False)]
        for m in (model, other)
    ]
    return chosen[0] == chosen[1]


@pytest.mark.parametrize("carried", [through_bytes, copy.deepcopy, copy.copy])
def test_a_copy_predicts_the_same_and_goes_on_to_learn_the_same(tiny, carried):
    model = PPO(tiny(**SETTINGS))
    assert same(carried(model), PPO(tiny(**SETTINGS))), "before it was ever asked"
    model.predict(OBSERVATIONS, deterministic=False)
    assert same(carried(model), model), "with initial weights, in the middle of its random numbers"
    model.learn()
    other = carried(model)
    assert type(other) is PPO
    assert other.config == model.config
    assert other.agent.timesteps == 64
    assert same(other, model)
    assert other.evaluate(3) == model.evaluate(3)
    weights = [one.learn(64).agent.state["model"] for one in (model, other)]
    assert model.agent.timesteps == other.agent.timesteps == 128
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_copy_shares_nothing_with_its_original(tiny):
    model = PPO(tiny(**SETTINGS)).learn()
    other = copy.deepcopy(model)
    before = model.predict(OBSERVATIONS)[0].tolist()
    for parameter in other.agent.policy.parameters():
        parameter.data.zero_()
    for tensor in other.agent.state["model"].values():
        tensor.zero_()
    assert model.predict(OBSERVATIONS)[0].tolist() == before
    assert any(bool(tensor.any()) for tensor in model.agent.state["model"].values())


@pytest.mark.parametrize("gone", [False, True])
def test_an_unpickled_model_learns_on_with_and_without_the_folder_of_its_run(tiny, tmp_path, gone):
    model = PPO(tiny(**SETTINGS)).learn()
    content = pickle.dumps(model)
    expected = model.learn(64).agent.state["model"]
    if gone:
        shutil.rmtree(tmp_path / "runs")
    found = pickle.loads(content).learn(64)
    assert found.agent.timesteps == 128
    assert all(np.array_equal(expected[name], found.agent.state["model"][name]) for name in expected)


def test_in_another_process_with_a_function_an_encoder_and_a_loaded_agent(tiny, tmp_path):
    config = tiny(env_id="Lottery", encoder_kwargs={"scale": 2.0})
    trained = PPO(config, env=partial(tiny_envs.Lottery, 6), encoder=tiny_encoders.Plain).learn()
    trained.save(tmp_path / "agent")
    model = PPO.load(tmp_path / "agent", env=partial(tiny_envs.Lottery, 6), encoder=tiny_encoders.Plain)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    shutil.rmtree(tmp_path / "agent")
    np.save(tmp_path / "observations.npy", OBSERVATIONS)
    script = (
        "import pickle, sys, pathlib\n"
        "import numpy as np\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "model = pickle.loads((folder / 'model.pkl').read_bytes())\n"
        "actions = model.predict(np.load(folder / 'observations.npy'))[0].tolist()\n"
        "print([actions, model.evaluate(3)['returns'], model.learn(32).agent.timesteps])\n"
    )
    paths = [str(ROOT / "tests" / "integration"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    expected = [model.predict(OBSERVATIONS)[0].tolist(), model.evaluate(3)["returns"], 96]
    assert done.stdout.strip() == str(expected)


def test_a_pickle_is_about_as_large_as_the_saved_agent(tiny, tmp_path):
    """Every tensor once: parameters are views of one flat vector, and nothing of a replay buffer goes along."""
    model = DQN(tiny("dqn", hidden_sizes=[64, 64, 64], buffer_size=20_000)).learn()
    model.save(tmp_path / "agent")
    saved = sum(file.stat().st_size for file in (tmp_path / "agent").iterdir())
    assert len(pickle.dumps(model)) < 1.3 * saved
    model.learn(callbacks=[Pickles()])
    assert Pickles.size < 1.3 * saved


class Pickles(Callback):
    """Keeps the model that is being trained, as it was."""

    size = 0

    def on_start(self, context):
        self.agent = context.agent

    def on_update(self, progress, result):
        Pickles.content = pickle.dumps(self.agent)
        Pickles.size = len(self.content)
        Pickles.timesteps = progress.timesteps


def test_a_live_agent_is_pickled_as_it_is_at_that_moment(tiny):
    model = PPO(tiny(**SETTINGS))
    model.learn(callbacks=[Pickles()])
    last = pickle.loads(Pickles.content)
    assert last.timesteps == Pickles.timesteps == 64
    assert last.predict(OBSERVATIONS).tolist() == model.predict(OBSERVATIONS)[0].tolist()


def test_an_interrupted_run_is_gone_on_with_by_its_copy(tiny):
    model = PPO(tiny(**SETTINGS, total_timesteps=96))
    model.learn(callbacks=[StopAtUpdate(32)])
    assert model.agent.timesteps == 32
    other = through_bytes(model).learn()
    assert other.agent.timesteps == 96
    assert other.agent.path.parents[1] == model.agent.path.parents[1]


def test_what_cannot_be_found_by_its_name_is_refused_in_a_sentence(tiny, tmp_path):
    class Local(tiny_encoders.Plain):
        pass

    def local():
        return tiny_envs.Lottery()

    def refused(**given) -> str:
        model = PPO(tiny(env_id="Lottery"), **given)
        assert same(copy.deepcopy(model), model), "a copy in this process needs no name"
        with pytest.raises(UserError) as raised:
            pickle.dumps(model)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert "env is a lambda, which cannot be imported by name; move it" in refused(
        env=lambda: tiny_envs.Lottery()
    )
    assert "env is local, a local function" in refused(env=local)
    assert "env is local" in refused(env=partial(local))
    assert "move it to the top level of a module, or use save(path)" in refused(env=local)
    assert "encoder is Local" in refused(env=build_lottery, encoder=Local)
    pickle.dumps(PPO(tiny(env_id="Lottery"), env=build_lottery, encoder=tiny_encoders.Plain))
