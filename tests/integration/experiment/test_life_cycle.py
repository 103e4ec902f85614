"""learn, predict, evaluate, save, load: the same answers in this process and in another one."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import rl_training
from loading import ROOT
from rl_training.algorithms import PPO
from rl_training.core.errors import ConfigError, UserError
from rl_training.experiment import evaluate_checkpoint
from rl_training.trainer import train_ppo

OBSERVATIONS = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)


@pytest.fixture
def learned(tiny):
    return PPO(tiny(env_id="tiny_envs:Lottery-v0", total_timesteps=128, learning_rate=3e-2)).learn()


def test_learn_returns_itself_and_changes_the_policy(tiny):
    untrained = PPO(tiny(learning_rate=3e-2))
    model = PPO(tiny(learning_rate=3e-2))
    assert model.learn() is model
    before = untrained.agent.state["model"]
    after = model.agent.state["model"]
    assert set(before) == set(after)
    assert any(not np.array_equal(before[name], after[name]) for name in before)


def test_predict_gives_one_action_or_a_batch_in_the_units_of_the_environment(learned):
    actions, state = learned.predict(OBSERVATIONS)
    assert state is None
    assert actions.shape == (32,)
    assert set(actions.tolist()) <= {0, 1}
    singles = [learned.predict(observation)[0] for observation in OBSERVATIONS]
    assert [int(action) for action in singles] == actions.tolist()
    assert np.shape(singles[0]) == ()


def test_sampled_predictions_vary_and_deterministic_ones_do_not(learned):
    same = [learned.predict(OBSERVATIONS)[0].tolist() for _ in range(3)]
    assert same[0] == same[1] == same[2]
    sampled = np.stack([learned.predict(OBSERVATIONS, deterministic=False)[0] for _ in range(20)])
    assert (sampled.std(axis=0) > 0).any()


def test_evaluate_summarises_its_own_episodes(learned):
    summary = learned.evaluate(num_episodes=7)
    assert summary["num_episodes"] == len(summary["returns"]) == len(summary["lengths"]) == 7
    assert summary["mean_reward"] == pytest.approx(np.mean(summary["returns"]))
    assert summary["std_reward"] == pytest.approx(np.std(summary["returns"]))
    assert summary["mean_ep_length"] == pytest.approx(np.mean(summary["lengths"]))
    assert learned.evaluate(num_episodes=7) == summary


def test_more_episodes_than_evaluation_environments(learned):
    assert len(learned.evaluate(num_episodes=23)["returns"]) == 23


def test_evaluate_refuses_no_episodes(learned):
    with pytest.raises(UserError, match="num_episodes is 0"):
        learned.evaluate(num_episodes=0)


def test_save_and_load_in_this_process(learned, tmp_path):
    learned.save(tmp_path / "agent")
    again = PPO.load(tmp_path / "agent")
    assert type(again) is PPO
    assert again.config == learned.config.with_overrides(total_timesteps=128, rebuild_envs="off")
    assert again.predict(OBSERVATIONS)[0].tolist() == learned.predict(OBSERVATIONS)[0].tolist()
    assert again.evaluate(5) == learned.evaluate(5)
    again.save(tmp_path / "copy")
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "agent" / name).read_bytes()


def test_an_agent_that_never_learned_can_be_saved_and_loaded(tiny, tmp_path):
    model = PPO(tiny())
    model.save(tmp_path / "fresh")
    again = PPO.load(tmp_path / "fresh")
    assert again.predict(OBSERVATIONS)[0].tolist() == model.predict(OBSERVATIONS)[0].tolist()
    again.learn(64)
    assert again.agent.timesteps == 64


def test_load_in_another_process(learned, tmp_path):
    learned.save(tmp_path / "agent")
    np.save(tmp_path / "observations.npy", OBSERVATIONS)
    script = (
        "import json, sys\n"
        "import numpy as np\n"
        "import rl_training\n"
        "folder = sys.argv[1]\n"
        "model = rl_training.load(folder + '/agent')\n"
        "actions = model.predict(np.load(folder + '/observations.npy'))[0].tolist()\n"
        "print(json.dumps({'kind': type(model).__name__, 'actions': actions, 'evaluation': model.evaluate(5)}))\n"
    )
    paths = [str(ROOT / "tests" / "integration"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["kind"] == "PPO"
    assert answer["actions"] == learned.predict(OBSERVATIONS)[0].tolist()
    assert answer["evaluation"] == learned.evaluate(5)


def test_save_over_an_agent_replaces_it_and_over_anything_else_is_refused(learned, tiny, tmp_path):
    PPO(tiny()).save(tmp_path / "agent")
    learned.save(tmp_path / "agent")
    assert PPO.load(tmp_path / "agent").agent.timesteps == 128
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work", encoding="utf-8")
    (tmp_path / "notes").write_text("x", encoding="utf-8")
    for target in ("thesis", "notes"):
        with pytest.raises(UserError, match="is not a saved agent"):
            learned.save(tmp_path / target)
    assert (tmp_path / "thesis" / "chapter1.tex").read_text(encoding="utf-8") == "years of work"


@pytest.mark.parametrize(
    "name", ["", "last", "best", "checkpoints", "checkpoints/last", "checkpoints/step_64"]
)
def test_every_way_to_name_a_run_loads_the_same_agent(tiny, name):
    result = train_ppo(tiny())
    model = rl_training.load(result.run_dir / name)
    assert isinstance(model, PPO)
    assert model.agent.path == result.checkpoint_path
    assert evaluate_checkpoint(result.run_dir / name, num_episodes=3) == model.evaluate(3)


def test_the_evaluation_of_the_run_is_repeated_by_the_loaded_agent(tiny, rows):
    result = train_ppo(tiny(env_id="tiny_envs:Lottery-v0", num_eval_episodes=6, eval_every_timesteps=32))
    recorded = rows(result.run_dir / "evaluations.jsonl")[-1]
    assert recorded.pop("timesteps") == 64
    assert rl_training.load(result.run_dir).evaluate(6) == recorded


def test_learning_again_goes_on(learned):
    first_run = learned.agent.path
    learned.learn(64)
    assert learned.agent.timesteps == 128 + 64
    assert learned.agent.path.parents[1] != first_run.parents[1]


def test_learning_after_load_goes_on(learned, tmp_path, rows):
    learned.save(tmp_path / "agent")
    again = PPO.load(tmp_path / "agent")
    again.learn(64)
    assert again.agent.timesteps == 128 + 64
    steps = [row["time/total_timesteps"] for row in rows(again.agent.path.parents[1] / "metrics.jsonl")]
    assert steps == [160.0, 192.0]


def test_learning_after_load_equals_learning_again(learned, tmp_path):
    learned.save(tmp_path / "agent")
    again = PPO.load(tmp_path / "agent")
    learned.learn(64)
    again.learn(64)
    paths = [model.agent.path / "model.safetensors" for model in (learned, again)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_wrong_algorithm_is_refused(tiny):
    config = tiny()
    object.__setattr__(config, "algo", "sac")
    with pytest.raises(ConfigError, match="algo is 'sac', but PPO takes algo 'ppo'"):
        PPO(config)
    with pytest.raises(ConfigError, match="train_ppo takes algo 'ppo'"):
        train_ppo(config)


@pytest.mark.parametrize(
    "wrong", [np.zeros(4, np.float32), np.zeros((2, 5), np.float32), {"a": np.zeros(3, np.float32)}]
)
def test_an_observation_of_another_shape_is_refused(learned, wrong):
    with pytest.raises(UserError, match="the policy expects"):
        learned.predict(wrong)
