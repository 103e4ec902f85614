"""What a preset reached, kept and compared in words."""

import json

import pytest

from rl_training.cli import load_config
from rl_training.config.presets import presets
from rl_training.core.errors import UserError
from rl_training.experiment.start import train
from rl_training.lab import preset_scores
from rl_training.lab.preset_scores import (
    compare_run_with_results,
    compared,
    expected,
    measured,
    read_measured,
)
from rl_training.lab.scored_runs import EvaluationPoint, ScoredRun


def record(seed, score, fingerprint="f"):
    head = {"fingerprint": fingerprint, "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100}
    point = {"step": 100, "mean_reward": score, "wall_time": 2.0}
    return head | {"seed": seed, "score": score, "seconds": 2.0, "versions": {}, "evaluations": [point]}


def result(*scores, first=1, fingerprint="f"):
    return measured("ppo/x", [record(first + n, score, fingerprint) for n, score in enumerate(scores)])


def test_what_is_kept():
    found = measured("ppo/x", [record(2, 30.0), record(1, 10.0), record(3, 20.0)])
    assert [run["seed"] for run in found["runs"]] == [1, 2, 3]
    assert found["iqm"] == 20.0
    low, high = found["interval_95"]
    assert 10.0 <= low <= 20.0 <= high <= 30.0
    assert json.loads(json.dumps(found)) == found
    assert result(5.0)["interval_95"] is None


@pytest.mark.parametrize(
    ("new", "old", "words"),
    [
        (result(5.0), None, "ppo/x: 5 on one seed; there are no earlier results"),
        (result(5.0), result(5.0, fingerprint="g"), "other settings and cannot be compared"),
        (result(5.0, 5.0), result(1.0, 2.0, first=7), "better than before"),
        (result(1.0, 2.0), result(5.0, 5.0, first=7), "worse than before"),
        (result(1.0, 6.0), result(5.0, 5.0, first=7), "not statistically distinguishable"),
        (
            result(1.0, 6.0),
            result(1.0, 5.0),
            "; 1 of 2 common seeds have exactly the same score",
        ),
        (result(4.0, first=9), result(1.0, 5.0), "not statistically distinguishable"),
        (result(0.0, first=99), result(1.0, *[5.0] * 19), "worse than before"),
        (result(1.5, first=99), result(1.0, *[5.0] * 19), "not statistically distinguishable"),
        (result(0.0, first=9), result(5.0), "not statistically distinguishable"),
    ],
)
def test_compared_in_words(new, old, words):
    assert compared(new, old).endswith(words)


def test_expected_in_a_few_words():
    assert expected(result(98.0, 500.0, 500.0)) == "98 to 500 (seeds 1 to 3)"
    assert expected(result(1.0)) == "1 (seed 1)"
    assert expected(measured("x", [record(1, 1.0), record(4, 2.0)])) == "1 to 2 (seeds 1, 4)"


def test_the_files_of_the_zoo_say_what_their_evaluations_say():
    found = {name: read_measured(name) for name in presets()}
    assert sum(data is not None for data in found.values()) > 20
    for name, data in found.items():
        if data is None:
            continue
        assert data["preset"] == name
        assert data["fingerprint"] == load_config(name).fingerprint(), (
            f"{name} was measured with other settings"
        )
        for run in data["runs"]:
            points = [EvaluationPoint(**point) for point in run["evaluations"]]
            assert ScoredRun("task", name, run["seed"], points).score == run["score"]
        again = measured(name, [run | data for run in data["runs"]])
        assert (again["iqm"], again["interval_95"]) == (data["iqm"], data["interval_95"])


def test_a_file_that_is_none(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "ppo_x.json").write_text("{}")
    monkeypatch.setattr(preset_scores, "shipped", lambda name: [tmp_path])
    with pytest.raises(UserError, match="is not a result of format 1; measure the preset again"):
        read_measured("ppo/x")


def test_a_run_beside_what_is_known(tiny, tmp_path, monkeypatch):
    """Silent unless the settings are the same."""
    run = train(tiny(eval_every_timesteps=32))
    config = tiny(eval_every_timesteps=32)
    monkeypatch.setattr(preset_scores, "read_measured", lambda name: None)
    assert compare_run_with_results("ppo/x", config, run.run_dir) is None
    known = result(4.0, 5.0, first=7)
    monkeypatch.setattr(preset_scores, "read_measured", lambda name: known)
    assert compare_run_with_results("ppo/x", config, run.run_dir) is None
    known["fingerprint"] = config.fingerprint()
    said = compare_run_with_results("ppo/x", config, run.run_dir)
    assert said is not None
    assert said.startswith(
        "ppo/x: 4 on one seed; earlier: 4.5 on 2 seeds (95% interval 4 to 5): not statistically"
    )
