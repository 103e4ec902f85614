"""The presets of a manifest together: what no file alone shows to be wrong is refused before anything is trained."""

import pytest

from rl_training.core.errors import ConfigError, UserError
from rl_training.lab.benchmark_jobs import contenders, read_baseline
from rl_training.lab.manifests import Entry, Manifest
from rl_training.lab.scored_runs import EvaluationPoint, ScoredRun, write_records


def manifest(*entries, overrides=None, references=None):
    return Manifest(entries, 1, overrides or {}, references or {})


def test_two_presets_of_one_name_on_one_task():
    with pytest.raises(ConfigError, match="ppo/cartpole and a2c/cartpole are both called 'x' on CartPole-v1"):
        contenders(manifest(Entry("ppo/cartpole", "x"), Entry("a2c/cartpole", "x")), {})
    found = contenders(manifest(Entry("ppo/cartpole", "x"), Entry("ppo/acrobot", "x")), {})
    assert [(one.name, one.task) for one in found] == [("x", "CartPole-v1"), ("x", "Acrobot-v1")]


def test_a_reference_for_another_task():
    with pytest.raises(
        ConfigError,
        match=r"references\.CartPol-v1 is not a task of this benchmark; did you mean 'CartPole-v1'",
    ):
        contenders(manifest(Entry("ppo/cartpole"), references={"CartPol-v1": (0.0, 1.0)}), {})


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ({"learning_rate": "fast"}, "ppo/cartpole with overrides: learning_rate is 'fast'; use a number"),
        ({"lerning_rate": 1}, "unknown setting 'lerning_rate'; did you mean 'learning_rate'?"),
        ({"algorithm": {"learning_rate": 1}}, "ppo/cartpole with overrides: algorithm"),
        ({"about": {}}, "unknown setting 'about'"),
        ({"env_kwargs": 3}, "env_kwargs"),
    ],
)
def test_overrides_that_no_preset_takes(override, sentence):
    with pytest.raises(ConfigError) as caught:
        contenders(manifest(Entry("ppo/cartpole"), overrides=override), {})
    assert sentence in str(caught.value)


def baseline(tmp_path, *tasks):
    write_records(
        tmp_path / "records.json", [ScoredRun(task, "ppo", 1, [EvaluationPoint(1, 2.0)]) for task in tasks]
    )
    return read_baseline(tmp_path, contenders(manifest(Entry("ppo/cartpole")), {}), tmp_path / "D")


def test_a_baseline_that_can_be_compared_with(tmp_path):
    assert [run.task for run in baseline(tmp_path, "CartPole-v1", "Walk")] == ["CartPole-v1", "Walk"]


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([], "has no records; leave --baseline out, or give another report"),
        (
            ["Walk"],
            "(Walk) and this benchmark (CartPole-v1) have no task in common; give another report",
        ),
        (["CartPole-v1", "CartPole-v1"], "there are two runs of ppo on CartPole-v1 with seed 1"),
    ],
)
def test_a_baseline_that_cannot_is_refused_before_anything_is_trained(tmp_path, tasks, sentence):
    with pytest.raises(UserError) as caught:
        baseline(tmp_path, *tasks)
    assert sentence in str(caught.value)
