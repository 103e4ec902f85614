"""`best_by: success`: the best checkpoint is the one that reaches its goal most often; ties go to the higher return."""

import json

import pytest

from rl_training.core.errors import ConfigError
from rl_training.core.types import Evaluation
from rl_training.experiment import run as run_module
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Best, StopOnPlateau, StopTraining
from support.callbacks import StopAtCollect

SEEN = [(5.0, 0.0), (9.0, 0.5), (7.0, 0.5), (1.0, 1.0), (3.0, 1.0), (99.0, 0.5)]
"""Mean return and success rate of one evaluation after the other."""


@pytest.fixture
def evaluations(monkeypatch):
    """Evaluations with these results instead of played ones."""
    seen = []

    def play(pairs=SEEN):
        def evaluate(*_, **__):
            reward, rate = pairs[len(seen) % len(pairs)]
            seen.append(reward)
            successes = [] if rate is None else [1.0] * int(2 * rate) + [0.0] * (2 - int(2 * rate))
            return Evaluation([reward, reward], [8, 8], successes)

        monkeypatch.setattr(run_module, "evaluate_policy", evaluate)
        return seen

    return play


def settings(tiny, **changes):
    return tiny(total_timesteps=6 * 32, eval_every_timesteps=32, **changes)


@pytest.mark.parametrize(("by", "best"), [("success", 5), ("reward", 6)])
def test_the_best_checkpoint(tiny, evaluations, read_pointer, by, best):
    evaluations()
    run_dir = train(settings(tiny, best_by=by)).run_dir
    assert read_pointer(run_dir, "best").name == f"step_{32 * best}"


def test_it_survives_a_pause(tiny, evaluations, read_pointer):
    seen = evaluations()
    run_dir = train(settings(tiny, best_by="success"), callbacks=[StopAtCollect(6 * 32)]).run_dir
    assert len(seen) == 5
    resume(run_dir)
    assert read_pointer(run_dir, "best").name == "step_160"


def test_the_flag_and_the_config(tiny, evaluations, cli, tmp_path, read_pointer):
    evaluations()
    path = tmp_path / "config.yaml"
    path.write_text(settings(tiny).to_yaml(), encoding="utf-8")
    outcome = cli("train", "--config", path, "--best-by", "success", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    with pytest.raises(ConfigError, match="best_by is 'luck'; use one of reward, success"):
        tiny(best_by="luck")


@pytest.mark.filterwarnings("always:best_by")
def test_an_environment_that_never_tells_is_told_once_and_the_return_decides(
    tiny, evaluations, cli, tmp_path, read_pointer
):
    evaluations([(reward, None) for reward, _ in SEEN])
    path = tmp_path / "config.yaml"
    path.write_text(settings(tiny, best_by="success").to_yaml(), encoding="utf-8")
    outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 0
    (warning,) = outcome.warnings
    assert "best_by is success, but no episode of this evaluation reports is_success" in warning
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert read_pointer(run_dir, "best").name == "step_192"


def test_any_rate_that_is_told_beats_none():
    best = Best("success")
    assert best.improved({"mean_reward": 99.0})
    assert best.improved({"mean_reward": 1.0, "success_rate": 0.0})
    assert not best.improved({"mean_reward": 100.0})


def test_a_plateau_is_one_of_the_same_best(tiny, evaluations):
    evaluations([(1.0, 0.0), (2.0, 0.5), (9.0, 0.0), (10.0, 0.0)])
    result = train(settings(tiny, best_by="success", stop_after_stale_evals=2))
    assert result.stop_reason == "2 evaluations without improvement on a success rate of 50% and 2.0"
    assert result.metrics["global_step"] == 4 * 32


def test_a_plateau_goes_on_counting():
    one, other = StopOnPlateau(2, "success"), StopOnPlateau(2, "success")
    one.on_evaluate(None, {"mean_reward": 1.0, "success_rate": 0.5})
    one.on_evaluate(None, {"mean_reward": 5.0, "success_rate": 0.25})
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    with pytest.raises(StopTraining, match="50%"):
        other.on_evaluate(None, {"mean_reward": 5.0, "success_rate": 0.25})
