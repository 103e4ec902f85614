"""Runs without an environment in tables, pages, benchmarks and on machines that lack the environment's package."""

import json
import shutil
from pathlib import Path

import pytest

import rl_training
from rl_training import BC, TD3
from rl_training.config import TrainConfig
from rl_training.config.presets import read_presets
from rl_training.core.errors import UserError
from rl_training.experiment.planning import plan
from rl_training.experiment.records.read import read_run
from rl_training.lab.jobs import Job
from support.datasets import tiny_dataset


def data_of_unknown_environment(folder: Path) -> str:
    """Return a dataset whose environment is not registered here."""
    copy = Path(shutil.copytree(tiny_dataset("Pendulum-v1"), folder / "foreign_data"))
    file = copy / "data" / "metadata.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    spec = json.loads(found["env_spec"])
    spec["id"] = "NotInstalledHere-v3"
    file.write_text(json.dumps(found | {"env_spec": json.dumps(spec)}), encoding="utf-8")
    return str(copy)


@pytest.mark.parametrize("algorithm", [BC, TD3])
def test_without_the_environment_it_trains_saves_predicts_and_is_judged(algorithm, tmp_path, cli):
    data = data_of_unknown_environment(tmp_path)
    model = algorithm(dataset=data, output_dir=str(tmp_path / "runs"), hidden_sizes=(8,))
    run = model.learn(total_updates=12).run_dir
    assert run is not None
    assert not (run / "checkpoints" / "best").exists()
    model.save(tmp_path / "agent")
    again = rl_training.load(tmp_path / "agent")
    obs = [0.1, 0.2, 0.3]
    assert (again.predict(obs)[0] == model.predict(obs)[0]).all()
    assert again.evaluate_on(data, num_updates=10).num_episodes == 12
    with pytest.raises(UserError, match="has no environment"):
        again.evaluate(1)
    record = read_run(run)
    assert (record.task, record.total_timesteps, record.unit) == ("foreign_data", 12, "updates")
    page = cli("runs", "show", run).out
    assert "on foreign_data" in page
    assert "Updates" in page
    assert "--total-updates" in page
    assert "foreign_data" in cli("runs", "list", tmp_path / "runs").out
    assert cli("runs", "diff", run, run).code == 0
    assert cli("resume", run, "--total-updates", 20).code == 0


def test_a_job_counts_updates_and_is_named_by_its_dataset(tmp_path):
    data = data_of_unknown_environment(tmp_path)
    job = Job("bc", TrainConfig(algo="bc", dataset=data, total_updates=7))
    assert job.config.budget == 7
    assert job.config.unit == "updates"
    assert "foreign_data" in job.key


def test_plan_refuses_runs_that_collect_nothing():
    config = TrainConfig(algo="bc", dataset=tiny_dataset("CartPole-v1"))
    with pytest.raises(UserError, match="nothing to collect"):
        plan(config)


def test_presets_may_name_a_dataset_and_no_environment(tmp_path, monkeypatch):
    file = tmp_path / "bc.yaml"
    about = "about: {family: offline, summary: s, source: t, expected: e}\n"
    file.write_text(f"{about}algo: bc\ndataset: some/data-v0\ntotal_updates: 70\n", encoding="utf-8")
    monkeypatch.setattr("rl_training.config.presets.presets", lambda: {"bc/some": file})
    (found,) = read_presets()
    assert (found.task, found.budget, found.unit) == ("data-v0", 70, "updates")
