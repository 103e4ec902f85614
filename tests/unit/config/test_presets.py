"""Presets by name, under their algorithm and under their family, and what they say of themselves."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loading import ROOT
from rl_training.cli import load_config
from rl_training.config.presets import (
    About,
    about_of,
    preset_name,
    presets,
    read_presets,
    task_name,
    zoo_names,
    zoo_stem,
)
from rl_training.core.errors import ConfigError, UserError

PROMISED = [
    "zoo/atari/dqn_breakout.yaml",
    "zoo/atari/ppo_breakout.yaml",
    "zoo/atari/recurrent_ppo_breakout.yaml",
]


@pytest.mark.parametrize("name", PROMISED)
def test_promised_paths_are_files_and_names_from_anywhere(name, tmp_path, monkeypatch):
    assert (ROOT / name).is_file()
    monkeypatch.chdir(tmp_path)
    algo = Path(name).stem.removesuffix("_breakout")
    assert load_config(name) == load_config(f"configs/{algo}/breakout_atari.yaml")
    assert load_config(ROOT / name) == load_config(name)


def test_every_preset_is_in_the_zoo_under_a_name_of_its_own():
    assert sorted(zoo_names().values()) == sorted(presets())
    assert len({zoo_stem(name) for name in presets()}) == len(presets())
    assert (
        preset_name("zoo/classic/ppo_cartpole.yaml") == preset_name("classic/ppo_cartpole") == "ppo/cartpole"
    )


def test_every_preset_tells_where_it_comes_from():
    for preset in read_presets():
        about = preset.about
        assert about.family, preset.name
        assert about.summary, preset.name
        assert about.source, preset.name
        assert preset.budget == load_config(preset.name).budget
        assert preset.env_id == load_config(preset.name).env_id


def test_both_trees_go_into_the_wheel():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"configs": "rl_training/configs", "zoo": "rl_training/zoo"}


def test_about_is_no_setting(tmp_path):
    plain, told = tmp_path / "plain.yaml", tmp_path / "told.yaml"
    plain.write_text("algo: ppo\nenv_id: CartPole-v1\nseed: 1\n")
    told.write_text("about: {summary: mine, expected: 500}\n" + plain.read_text())
    assert load_config(told) == load_config(plain)
    assert load_config(told).fingerprint() == load_config(plain).fingerprint()
    assert about_of({"about": {"expected": 500}}, "x") == About(expected="500")


def test_a_word_that_nobody_reads_is_refused(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("about: {sumary: mine, source: [1]}\nalgo: ppo\nenv_id: CartPole-v1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert "unknown key 'about.sumary'; did you mean 'summary'?" in str(caught.value)
    assert "about.source is [1]; use text" in str(caught.value)
    file.write_text("about: mine\nalgo: ppo\nenv_id: CartPole-v1\n")
    with pytest.raises(ConfigError, match="about is 'mine'; use a map of texts"):
        load_config(file)


def test_a_misspelt_name_of_the_zoo_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="did you mean 'atari/ppo_breakout'"):
        load_config("atari/ppo_breakot")


def test_tasks_are_called_as_people_call_them():
    assert task_name("CartPole-v1", {}) == "CartPole-v1"
    assert task_name("ALE/Pong-v5", {}) == "ALE/Pong-v5"
    assert task_name("rl_training.envs.tasks:rl_training/MinAtar-v0", {"game": "x"}) == "MinAtar-v0 (game x)"


def test_listing_and_showing_import_nothing_heavy():
    script = (
        "import sys, rl_training.cli as cli\n"
        "assert cli.main(['zoo', 'list', '--family', 'atari']) == 0\n"
        "assert cli.main(['zoo', 'show', 'ppo/cartpole']) == 0\n"
        "heavy = {'torch', 'numpy', 'gymnasium', 'matplotlib', 'tyro', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
