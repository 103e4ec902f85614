"""`plan` on a real environment, in Python and on the command line."""

import json
import time

import pytest

from rl_training import PPO
from rl_training.algorithms.ppo import ppo_loss
from rl_training.experiment.building import UserObjects
from rl_training.experiment.cost_measurement import measure_costs
from rl_training.experiment.planning import plan


@pytest.mark.parametrize("algo", ["ppo", "a2c", "recurrent_ppo", "dqn"])
def test_measured_costs_are_those_of_a_whole_iteration(tiny, algo):
    config, started, seen = tiny(algo), time.monotonic(), []
    costs = measure_costs(config, progress=seen.append)
    assert time.monotonic() - started < 30
    assert costs.num_envs == config.num_envs
    assert costs.num_steps == getattr(config.algorithm, "num_steps", costs.num_steps)
    for seconds in (costs.step.of(8), costs.act.of(8), costs.record.of(8), costs.update, costs.message):
        assert 0 < seconds < 1
    assert 0 < costs.handling <= costs.message
    assert 0 <= costs.exchange < 1
    assert 0 <= costs.prepare + costs.repeated <= costs.update * 1.001
    assert costs.gradient_steps >= 1
    assert 100 < costs.parameter_bytes < 10**7
    assert seen[-3:] == ["updating", "copying", "collecting in other processes"]


def test_sequences_of_any_length_are_measured(tiny):
    config = tiny("recurrent_ppo", num_envs=4, num_steps=32, sequence_length=16, batch_size=32)
    assert measure_costs(config).num_steps == 32


class Stateful:
    """A loss that remembers how often it was called."""

    calls = 0

    def __call__(self, minibatch, **settings):
        Stateful.calls += 1
        return ppo_loss(minibatch, **settings)


def test_a_loss_that_may_keep_state_does_not_stop_a_plan(tiny):
    class Own(PPO):
        loss = Stateful()

    costs = measure_costs(tiny("ppo"), UserObjects(algorithm=Own))
    assert costs.exchange >= 0


def test_a_continuous_policy_with_one_environment(tiny):
    costs = measure_costs(tiny("sac", env_id="Pendulum-v1", num_envs=1))
    assert costs.update > costs.step.of(1)


def test_a_plan_of_cartpole(tiny):
    found = plan(tiny("ppo", num_envs=4), cores=2)
    assert 100 < found.default.steps_per_second < 10**6
    assert found.best.speedup >= 1.0
    assert json.loads(json.dumps(found.to_dict()))["cores"] == 2
    with pytest.raises(ValueError, match="cores is 0; use 1 or more"):
        plan(tiny("ppo"), cores=0)


def test_random_numbers_of_the_caller_are_kept(tiny):
    import numpy as np

    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    measure_costs(tiny("ppo"))
    assert np.random.random() == expected


SETTINGS = ("--num-envs", 4, "--num-steps", 8, "--batch-size", 32, "--hidden-sizes", 8)


def test_the_command_prints_a_table(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = cli("plan", "ppo/cartpole", "--cores", 2, *SETTINGS)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "ppo on CartPole-v1, 4 environment(s)"
    assert lines[3].split() == ["settings", "steps/s", "speed-up", "limited", "by"]
    assert lines[4].startswith("default")
    assert any("env_groups=2" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_one_line_per_number_of_cores(cli):
    outcome = cli("plan", "--config", "ppo/cartpole", "--cores", "8,64", *SETTINGS)
    assert outcome.code == 0
    rows = [line.split()[:2] for line in outcome.out.splitlines()]
    assert [row for row in rows if row[:1] in (["8"], ["64"])] == [
        ["8", "4"],
        ["64", "4"],
        ["8", "32"],
        ["64", "256"],
    ]


def test_the_command_prints_json(cli):
    found = json.loads(cli("plan", "ppo/cartpole", "--json", "--cores", 2, *SETTINGS).out)
    assert found["costs"]["num_envs"] == 4
    assert found["predictions"][0]["layout"].keys() >= {"env_groups", "lag", "learner_shards"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "plan needs a config as its first word: rl-training plan ppo/cartpole --cores 2"),
        (("--cores", 2), "plan needs a config as its first word: rl-training plan ppo/cartpole --cores 2"),
        (
            ("ppo/cartpole", "--cores", "two"),
            "--cores is 'two'; use a number from 1 to 65,536, or a list such as 8,64,512",
        ),
        (
            ("ppo/cartpole", "--cores", "0"),
            "--cores is '0'; use a number from 1 to 65,536, or a list such as 8,64,512",
        ),
        (
            ("ppo/cartpole", "--config", "ppo/taxi"),
            "'ppo/cartpole' and --config ppo/taxi both name a config; give one of them",
        ),
        (("ppo/cartpole", "--core", 2), "unknown flag '--core'; did you mean '--cores'?"),
        (("ppo/cartpole", "--zzzz"), "unknown flag '--zzzz'; rl-training plan --help lists all flags"),
    ],
)
def test_mistakes_on_the_command_line(cli, words, sentence):
    outcome = cli("plan", *words)
    assert outcome.code == 2
    assert outcome.sentence == f"error: {sentence}"


def test_an_environment_that_does_not_exist(cli):
    outcome = cli("plan", "ppo/cartpole", "--env-id", "CartPol-v1")
    assert outcome.code == 2
    assert "CartPol-v1" in outcome.sentence
