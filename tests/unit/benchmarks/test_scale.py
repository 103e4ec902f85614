"""`benchmarks/scale.py`: its settings are valid, rounds are kept, and a side that did something else has no figure."""

import argparse
import json
import os
import subprocess
import sys

import pytest

from loading import ROOT


@pytest.fixture
def scale(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("rows", "summary", "scale_rows", "scale"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import scale

    monkeypatch.setattr(scale, "FIGURES", tmp_path / "scale.json")
    return scale


def test_the_settings_of_all_sides_are_valid(scale):
    for row in scale.ROWS.values():
        for side in row.sides:
            assert scale.config_of(row, side).num_threads in (1, 2, "auto")


def flags(**more):
    return argparse.Namespace(
        **{"rounds": 2, "warm_up": 1.0, "seconds": 1.0, "again": False, "write": True} | more
    )


def test_rounds_are_kept_and_sides_that_failed_are_measured_again(scale, monkeypatch):
    asked = []

    def measured(name, side, flags):
        asked.append(side)
        if side == "1 group, lag 1" and len(asked) < 12:
            return {"error": "no process"}
        return {"steps_per_second": 10.0 * len(side)}

    monkeypatch.setattr(scale, "measured_apart", measured)
    kept = {}
    scale.measure_row("ppo_cartpole", kept, flags(rounds=1))
    sides = list(scale.ROWS["ppo_cartpole"].sides)
    assert asked == sides
    table = scale.lines_of(scale.ROWS["ppo_cartpole"], kept["ppo_cartpole"]["rounds"])
    assert table[0].startswith(
        "| default | `engine: local` | 70 (70 to 70) |  | 0.70 (0.70 to 0.70) | 0.64 (0.64 to 0.64)"
    )
    assert table[-1].endswith("| no process | | | |")
    kept = json.loads(scale.FIGURES.read_text(encoding="utf-8"))
    asked.clear()
    scale.measure_row("ppo_cartpole", kept, flags())
    assert asked == ["1 group, lag 1", *sides[1:], sides[0]]  # the order changes from round to round
    asked.clear()
    scale.measure_row("ppo_cartpole", kept, flags(seconds=2.0, rounds=1))
    assert asked == sides


@pytest.mark.parametrize(
    ("settings", "others", "refused"),
    [
        ({"engine": "process"}, 0, True),
        ({"engine": "process"}, 2, False),
        ({"engine": "local"}, 0, False),
        ({"engine": "local"}, 1, True),
        ({"engine": "local", "env_backend": "async"}, 16, False),
    ],
)
def test_a_side_must_do_what_its_settings_say(scale, settings, others, refused):
    if refused:
        with pytest.raises(SystemExit, match=f"engine {settings['engine']} is set"):
            scale.check_engine(settings, others)
    else:
        scale.check_engine(settings, others)


def test_descendants_are_counted(scale):
    before = scale.descendants(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert scale.descendants(os.getpid()) == before + 1
        process.communicate(b"\n")
