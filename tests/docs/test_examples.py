"""The Python of README and of pages that have no test of their own runs as shown, and the README's commands exist."""

import re
import shlex
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pytest

import rl_training
from rl_training import PPO
from rl_training.algorithms import ALGORITHMS
from rl_training.cli.commands import COMMANDS
from rl_training.config.presets import presets

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    "README.md",
    "docs/custom-losses.md",
    "docs/datasets.md",
    "docs/games.md",
    "docs/logging.md",
    "docs/masks.md",
    "docs/memory.md",
    "docs/privileged-critics.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_its_python_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(
        r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL
    ):
        exec(code.replace("50_000", "2_000"), names)
    plt.close("all")
    if page == "README.md":
        assert (tmp_path / "curve.png").stat().st_size > 0
        assert (tmp_path / "my_agent").is_dir()


def test_the_commands_of_the_readme_and_their_presets_exist():
    commands = re.findall(r"^rl-training (.*?)(?:  #.*)?$", README, re.MULTILINE)
    assert {shlex.split(command)[0] for command in commands} == set(COMMANDS)
    named = re.findall(r"--config (\S+)|zoo run (\S+)", README)
    assert {first or second for first, second in named} <= set(presets())


def test_the_files_of_a_run_in_the_readme_are_those_of_a_run(tiny):
    listed = set(
        re.findall(r"`([a-z_]+(?:\.\w+|/\w*))`", README.split("## What a run leaves")[1].split("##")[0])
    )
    run_dir = Path(PPO(tiny("ppo")).learn().agent.path).parents[1]
    missing = {name for name in listed if not (run_dir / name).exists()}
    assert missing == {"error.txt", "runs/"}


def test_the_variants_of_algorithms_are_settings():
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]+\| `(\w+)` with (.*)\|$", page, re.MULTILINE)
    assert [algo for algo, _ in rows] == ["dqn", "dqn", "sac", "td3", "recurrent_ppo"]
    for algo, text in rows:
        known = {item.name for item in fields(ALGORITHMS[algo].config_class)}
        named = set(re.findall(r"`(\w+)(?:: \S+)?`", text))
        assert named, text
        assert named <= known, text


def test_the_algorithm_of_the_page_trains_and_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "adding-an-algorithm.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, object] = {"__name__": "soft_q"}
    with patch.dict(ALGORITHMS):
        exec(code, names)
        model = names["SoftQ"]("CartPole-v1", seed=1, hidden_sizes=[16], num_eval_episodes=1).learn(400)
        model.save("agent")
        obs = np.float32([[0.0, 0.1, 0.0, -0.1], [0.2, -0.5, 0.1, 0.6]])
        assert np.array_equal(rl_training.load("agent").predict(obs)[0], model.predict(obs)[0])
    (run,) = rl_training.load_runs("runs")
    assert run.status == "finished"
    assert model.agent.timesteps == 400
