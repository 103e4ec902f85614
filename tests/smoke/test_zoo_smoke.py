"""A sample of what `make zoo-smoke` does with every preset, and that all presets can be cut down to an instant."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from rl_training.config.presets import presets
from rl_training.experiment.files import read_json

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ["dqn/cartpole_rainbow", "td3/ddpg_pendulum", "recurrent_ppo/corridor"]


def zoo_smoke():
    spec = importlib.util.spec_from_file_location("zoo_smoke", ROOT / "scripts" / "zoo_smoke.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_preset_fits_into_an_instant():
    configs = [zoo_smoke().smoke_config(name) for name in presets()]
    assert {config.total_timesteps for config in configs if not config.offline} == {128}
    assert {config.total_updates for config in configs if config.offline} == {8}


def test_presets_without_their_data_are_left_out_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    launched = []
    module = zoo_smoke()
    monkeypatch.setattr(module, "run_jobs", lambda jobs, *_, **__: (launched.extend(jobs), 0))
    assert module.main(["ppo/cartpole", "bc/cartpole_mixed"], tmp_path) == 0
    assert [job.name for job in launched] == ["ppo/cartpole"]
    wanted = "left out: bc/cartpole_mixed needs datasets/cartpole-mixed: run make datasets"
    assert wanted in capsys.readouterr().out


def test_a_sample_trains(tmp_path, capsys):
    assert zoo_smoke().main(SAMPLE, tmp_path, processes=2) == 0, capsys.readouterr().out
    records = [read_json(path) for path in (tmp_path / "jobs").iterdir()]
    assert sorted(record["name"] for record in records) == sorted(SAMPLE)
    assert all(record["evaluations"][-1]["step"] >= 128 for record in records)


def test_the_script_of_old_lists_and_refuses():
    script = [sys.executable, str(ROOT / "scripts" / "benchmark_zoo.py")]
    listed = subprocess.run(script, capture_output=True, text=True, timeout=120, check=True)
    assert "ppo/cartpole" in listed.stdout
    refused = subprocess.run(
        [*script, "ppo/cartpol"], capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode == 2
    assert refused.stderr == "error: config ppo/cartpol does not exist; did you mean 'ppo/cartpole'?\n"
