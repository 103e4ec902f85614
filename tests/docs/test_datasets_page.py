"""The commands of the page about datasets parse, and its table of columns is the one that is read."""

import re
import shlex
from pathlib import Path

from rl_training.cli import dataset
from rl_training.cli.arguments import parse
from rl_training.datasets.tables import NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
ACTIONS = {"show": dataset.Show, "import": dataset.Import, "merge": dataset.Merge, "split": dataset.Split}


def test_its_commands_parse():
    commands = [
        shlex.split(line, comments=True)
        for line in re.findall(r"^rl-training dataset (.*)$", PAGE, re.MULTILINE)
    ]
    assert {words[0] for words in commands} == set(ACTIONS)
    for action, *words in commands:
        parse(ACTIONS[action], words, "prog")


def test_its_columns():
    rows = re.findall(r"^\| `(\w+)` \| (`.*?`) \|", PAGE, re.MULTILINE)
    assert {name: (name, *re.findall(r"`(\w+)`", others)) for name, others in rows} == NAMES
