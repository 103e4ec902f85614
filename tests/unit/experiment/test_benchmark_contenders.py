"""The presets of a manifest together: what no file alone shows to be wrong is refused before anything is trained."""

import pytest

from rl_training.core.errors import ConfigError
from rl_training.core.manifests import Entry, Manifest
from rl_training.experiment.benchmarks import contenders


def manifest(*entries, overrides=None, references=None):
    return Manifest(entries, 1, overrides or {}, references or {})


def test_two_presets_of_one_name_on_one_task():
    with pytest.raises(ConfigError, match="ppo/cartpole and a2c/cartpole are both called 'x' on CartPole-v1"):
        contenders(manifest(Entry("ppo/cartpole", "x"), Entry("a2c/cartpole", "x")), {})
    found = contenders(manifest(Entry("ppo/cartpole", "x"), Entry("ppo/acrobot", "x")), {})
    assert [(one.name, one.task) for one in found] == [("x", "CartPole-v1"), ("x", "Acrobot-v1")]


def test_a_reference_for_another_task():
    with pytest.raises(
        ConfigError, match=r"references\.CartPol-v1 is no task of this benchmark; did you mean 'CartPole-v1'"
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
