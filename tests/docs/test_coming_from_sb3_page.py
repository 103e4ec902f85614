"""docs/coming-from-sb3.md: its code runs, its names exist, and its callbacks work."""

import contextlib
import re
from dataclasses import fields

import pytest

from loading import ROOT
from rl_training.algorithms import ALGORITHMS, PPO
from rl_training.config import TrainConfig
from rl_training.core.foreign_names import OTHER_NAMES
from rl_training.experiment.loading import load_agent
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import OnEvaluation, SaveEvery
from support.callbacks import StopAtUpdate

PAGE = (ROOT / "docs" / "coming-from-sb3.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_its_code_runs_as_shown(number, tmp_path):
    with contextlib.chdir(tmp_path):
        exec(BLOCKS[number], {})


def test_its_names_are_settings():
    ours = {item.name for face in ALGORITHMS.values() for item in fields(face.config_class)}
    ours |= {item.name for item in fields(TrainConfig)}
    table = PAGE.split("## Names of settings")[1].split("## Intentional differences")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    for row in rows:
        theirs, mine = (re.findall(r"`([a-z_]+)`", cell) for cell in row.strip("|").split("|"))
        assert set(mine) <= ours, row
        assert not set(theirs) & ours, row
        assert {OTHER_NAMES[name] for name in theirs} <= ours, row
    same = re.search(r"Unchanged names: (.*?)\.\n", table, flags=re.DOTALL)
    assert same is not None
    assert set(re.findall(r"`([a-z_]+)`", same[1])) <= ours


def test_agents_are_saved_at_every_interval_also_after_an_interruption(tiny, tmp_path):
    def keep():
        return SaveEvery(32, tmp_path / "kept")

    config = tiny("ppo", total_timesteps=160)
    run_dir = train(config, callbacks=[keep(), StopAtUpdate(96)]).run_dir
    resume(run_dir, callbacks=[keep()])
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "step_128", "step_160", "step_32", "step_64", "step_96",
    ]  # fmt: skip
    assert load_agent(tmp_path / "kept" / "step_64").timesteps == 64
    with pytest.raises(ValueError, match="timesteps is 0"):
        SaveEvery(0)


def test_the_runs_own_folder_is_where_agents_go_by_themselves(tiny):
    model = PPO(tiny("ppo")).learn(callbacks=[SaveEvery(32)])
    run_dir = model.agent.path.parents[1]
    assert {path.name for path in (run_dir / "agents").iterdir()} == {"step_32", "step_64"}


def test_a_function_is_called_after_each_evaluation(tiny):
    called = []
    train(
        tiny("ppo", eval_every_timesteps=32),
        callbacks=[OnEvaluation(lambda steps, summary: called.append((steps, summary["num_episodes"])))],
    )
    assert called == [(32, 2), (64, 2)]
