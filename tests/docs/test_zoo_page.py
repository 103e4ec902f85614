"""docs/zoo.md: its configs load, its manifest parses, its Python runs, its counts are right."""

import re

import pytest

from loading import ROOT
from rl_training.cli import load_config
from rl_training.config.presets import presets
from rl_training.lab import launcher
from rl_training.lab.jobs import Launched
from rl_training.lab.manifests import read_manifest

PAGE = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_its_preset_and_its_manifest(tmp_path):
    preset, manifest = blocks("yaml")
    (tmp_path / "preset.yaml").write_text(preset)
    (tmp_path / "manifest.yaml").write_text(manifest)
    assert load_config(tmp_path / "preset.yaml").total_timesteps == 50_000
    assert [entry.name for entry in read_manifest(tmp_path / "manifest.yaml").entries] == [None, "c51"]


def test_its_python(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(
        launcher, "launch", lambda jobs, folder, **how: seen.append((jobs, how)) or Launched([], [])
    )
    (code,) = blocks("python")
    exec(compile(code, "docs/zoo.md", "exec"), {})
    ((jobs, how),) = seen
    assert [job.config.seed for job in jobs] == [1, 2, 3, 4, 5]
    assert jobs[0].config.algorithm.learning_rate == pytest.approx(1e-3)
    assert how == {"processes": 2}
    assert capsys.readouterr().out == "[]\n"


def test_its_count():
    assert f"# {len(presets())} presets" in PAGE


def test_its_commands(cli):
    shown = [line.split("#")[0].split()[1:] for line in blocks("sh")[0].splitlines()]
    assert shown[0][:2] == ["zoo", "list"]
    assert cli(*shown[0]).code == cli(*shown[1]).code == 0
