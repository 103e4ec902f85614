"""How far it is from the public face to the optimizer, counted while it happens; and how long functions are."""

import ast
import inspect
from pathlib import Path

import pytest

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.optimizers import FlatOptimizer
from support.configs import OFFLINE, tiny_config

SOURCE = Path(rl_training.__file__).parent
PPO_HOPS = ["learn", "train", "execute", "fit", "update", "_train_minibatch", "descend"]
LONGEST_FUNCTION = 50


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_functions_entered_between_learn_and_the_optimizer(algo, tmp_path, monkeypatch):
    seen: list[list[str]] = []
    descend = FlatOptimizer.descend

    def counted(self, learning_rate):
        if not seen:
            frames = inspect.stack(context=0)
            ours = [frame for frame in frames if Path(frame.filename).is_relative_to(SOURCE)]
            seen.append([*(frame.function for frame in reversed(ours)), "descend"])
        return descend(self, learning_rate)

    monkeypatch.setattr(FlatOptimizer, "descend", counted)
    ALGORITHMS[algo](tiny_config(algo, tmp_path)).learn()
    # losses on held-out episodes are measured around updates
    assert len(seen[0]) <= len(PPO_HOPS) + (algo in OFFLINE), seen[0]
    if algo == "ppo":
        assert seen[0] == PPO_HOPS


def test_no_function_is_long():
    offenders = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    offenders.append(f"{path.relative_to(SOURCE)}: {node.name} has {length} lines")
    assert offenders == []
