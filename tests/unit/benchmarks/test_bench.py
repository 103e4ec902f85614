"""`benchmarks/`: figures, tables, what is kept and gone on with. No peer is needed, and nothing is measured."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loading import ROOT

BENCHMARKS = ROOT / "benchmarks"
NAMES = ("rows", "summary", "store", "report", "products", "fair", "ours", "bench")


class Program:
    """The modules of the benchmark by name."""

    rows: ModuleType
    summary: ModuleType
    store: ModuleType
    report: ModuleType
    products: ModuleType
    fair: ModuleType
    ours: ModuleType
    bench: ModuleType

    def __init__(self) -> None:
        for name in NAMES:
            setattr(self, name, importlib.import_module(name))


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Program()


def entry(speed: float, peak: float = 100.0) -> dict[str, Any]:
    return {"steps_per_second": speed, "peak_mib": peak, "updating": 0.5, "update_path": None}


def test_a_ratio_is_divided_within_rounds_and_not_between_medians(program: Program):
    rounds = [
        {"a": {"n": 10.0}, "b": {"n": 1.0}},
        {"a": {"n": 4.0}, "b": {"n": 2.0}},
        {"a": {"n": 9.0}, "b": {"n": 3.0}},
    ]
    found = program.summary.ratio(rounds, "n", "a", "b")
    assert (found.median, found.least, found.greatest) == (3.0, 2.0, 10.0)
    assert program.summary.of(rounds, "a", "n").text() == "9 (4 to 10)"


def test_the_limit_is_a_share_of_all_time_and_of_updating(program: Program):
    rounds = [{"ours": entry(100.0), "products": {"seconds_per_step": 0.004}}]
    assert program.summary.limit_share(rounds, "ours", "products").median == pytest.approx(0.4)
    assert program.summary.limit_share(rounds, "ours", "products", of_updating=True).median == pytest.approx(
        0.8
    )


@pytest.mark.parametrize(
    ("found", "target", "at_most", "text"),
    [
        (3.6, 3.6, False, "≥ 3.6: reached"),
        (3.59, 3.6, False, "≥ 3.6: not reached"),
        (0.6, 0.6, True, "≤ 0.6: reached"),
        (0.61, 0.6, True, "≤ 0.6: not reached"),
        (9.0, None, False, ""),
    ],
)
def test_a_target_is_reached_or_not(
    program: Program, found: float, target: float | None, at_most: bool, text: str
):
    assert program.summary.verdict(found, target, at_most=at_most) == text


def test_powers_of_growth_are_those_of_the_cost(program: Program):
    assert program.summary.exponents({4.0: 32.0, 1.0: 1.0, 2.0: 2.0}) == pytest.approx([1.0, 4.0])


def test_rounds_are_on_disk_at_once_and_gone_on_with(program: Program, tmp_path: Path):
    path = tmp_path / "deep" / "bench.json"
    first = program.store.Store(path, {"versions": {"torch": "1"}})
    assert first.begin("row", {"sizes": (64, 64)}) is None
    first.add("row", {"ours": entry(1.0)})
    assert len(json.loads(path.read_text())["rows"]["row"]["rounds"]) == 1
    again = program.store.Store(path, {"versions": {"torch": "1"}})
    assert again.begin("row", {"sizes": (64, 64)}) is None
    assert again.rounds("row") == [{"ours": entry(1.0)}]


@pytest.mark.parametrize(
    ("settings", "torch", "changed"),
    [({"sizes": (32,)}, "1", "settings"), ({"sizes": (64,)}, "2", "versions")],
)
def test_rounds_made_otherwise_do_not_count(
    program: Program, tmp_path: Path, settings: dict[str, Any], torch: str, changed: str
):
    first = program.store.Store(tmp_path / "bench.json", {"versions": {"torch": "1"}})
    first.begin("row", {"sizes": (64,)})
    first.add("row", {"ours": entry(1.0)})
    again = program.store.Store(tmp_path / "bench.json", {"versions": {"torch": torch}})
    assert again.begin("row", settings) == f"1 earlier rounds were made with other {changed}"
    assert again.rounds("row") == []


def test_a_changed_line_of_source_changes_the_digest(program: Program, tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("1")
    before = program.store.digest(tmp_path, "**/*.py")
    (tmp_path / "notes.md").write_text("1")
    assert program.store.digest(tmp_path, "**/*.py") == before
    (tmp_path / "deep" / "a.py").write_text("2")
    assert program.store.digest(tmp_path, "**/*.py") != before
    assert all((BENCHMARKS / f"{name}.py").exists() for name in program.bench.MEASURING)


def test_targets_and_titles_may_change_without_measuring_anew(program: Program):
    row = program.rows.SPEED[0]
    assert replace(row, targets={}, title="other", limit_target=1.0).key() == row.key()
    assert replace(row, steps=1).key() != row.key()


def test_rows_built_upon_another_are_stale_with_it(program: Program, monkeypatch: pytest.MonkeyPatch):
    rows = program.rows
    race, growth = rows.RACE.key(), rows.GROWTH[0].key()
    changed = replace(rows.ROWS["ppo_cartpole"], num_envs=7)
    monkeypatch.setitem(rows.ROWS, "ppo_cartpole", changed)
    assert rows.RACE.key() != race
    assert rows.GROWTH[0].key() != growth


def test_rounds_go_on_and_another_side_begins_each(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    row, asked = program.rows.STARTUP, list[tuple[str, int]]()

    def measure(_: Any, side: str, number: int, **__: Any) -> dict[str, Any]:
        asked.append((side, number))
        if len(asked) == 6:
            raise SystemExit("stopped")
        return {"seconds": 1.0}

    monkeypatch.setattr(program.bench, "measure", measure)
    monkeypatch.setattr(program.bench, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--rows", "startup", "--rounds", "2"])
    with pytest.raises(SystemExit):
        program.bench.main()
    program.bench.main()
    sides = row.sides
    whole = [*((side, 0) for side in sides), (sides[1], 1), (sides[2], 1)]
    assert asked[:6] == whole
    assert asked[6:] == [(side, 1) for side in (*sides[1:], sides[0])]
    assert (
        "| `import rl_training` | 1.00 (1.00 to 1.00) | 1.00 |"
        in (tmp_path / "results" / "bench.md").read_text()
    )


def test_a_row_becomes_lines_of_the_tables_and_bars(program: Program, tmp_path: Path):
    rows = program.rows
    row = next(each for each in rows.SPEED if each.name == "sac_half_cheetah")
    around = {"versions": {"torch": "2"}, "processor": "a chip", "source": "abc"}
    store = program.store.Store(tmp_path / "bench.json", around)
    store.begin(row.name, row.key())
    said = {rows.OURS: entry(150.0, 300.0), rows.SB3: entry(75.0, 290.0), rows.SBX: entry(200.0, 600.0)}
    store.add(row.name, said | {rows.LIMIT: {"seconds_per_step": 0.006}})
    program.report.write(store, tmp_path)
    text = (tmp_path / "bench.md").read_text()
    assert "**2.00 (2.00 to 2.00)** | ≥ 1.6: reached | 300 / 290 | ≤ 1: not reached |" in text
    assert "**0.75 (0.75 to 0.75)** | ≥ 1.03: not reached | 300 / 600 | ≤ 0.6: reached |" in text
    assert "| 90% (90% to 90%) | 180% (180% to 180%) | ≥ 0.85: reached | unknown |" in text
    assert text.endswith("\na chip, torch 2.\n")
    store.surroundings = around | {"source": "def"}
    store.begin("startup", program.rows.STARTUP.key())
    assert program.report.surroundings_lines(store) == [
        "sac_half_cheetah (source abc): a chip, torch 2.",
        "",
        "startup (source def): a chip, torch 2.",
        "",
    ]
    assert (tmp_path / "bench.png").stat().st_size < 60_000


def test_growth_that_is_too_fast_is_told(program: Program):
    row = program.rows.GROWTH[-1]
    slow = {side: entry(1000.0) for side in row.sides}
    assert "grows faster" not in program.report.growth_line(row, [slow])
    assert "grows faster" in program.report.growth_line(row, [slow | {row.sides[-1]: entry(100.0)}])


def test_a_slow_update_path_ends_the_benchmark(program: Program):
    row = program.rows.SPEED[0]
    fast = next(iter(program.ours.FAST_PATHS))
    assert program.ours.checked_path(row, {}) is None
    assert program.ours.checked_path(row, {"update_path": fast}) == fast
    with pytest.raises(SystemExit, match="ppo_cartpole: updates took the path 'eager'"):
        program.ours.checked_path(row, {"update_path": "eager"})
    assert program.ours.checked_path(replace(row, fast_path=False), {"update_path": "eager"}) == "eager"


def test_our_settings_are_understood_by_ours_and_all_rows_have_a_limit(program: Program):
    from rl_training.config import TrainConfig

    for row in program.rows.SPEED:
        config = TrainConfig(algo=row.algo, env_id=row.env_id, num_envs=row.num_envs)
        for changes in ({}, *row.variants.values()):
            config.with_overrides(**row.settings | changes)
        assert row.algo in program.products.PLANS
        assert row.env_id in program.products.SIZES
        assert row.steps % row.unit == 0
        assert row.shortened().steps % row.unit == 0
        assert set(row.targets) <= set(row.peers)
    for growth in program.rows.GROWTH:
        assert growth.base in program.rows.ROWS


def test_gradient_steps_follow_from_settings(program: Program):
    expected = {
        "ppo_cartpole": 20 / 256,
        "ppo_half_cheetah": 320 / 2048,
        "dqn_cartpole": 0.5,
        "a2c_cartpole": 1 / 40,
    }
    for name, per_step in expected.items():
        assert program.products.gradient_steps_per_step(program.rows.ROWS[name]) == pytest.approx(per_step)


def test_the_products_of_a_pass_are_counted(program: Program):
    assert len(program.products.forward(8, (4, 64, 64, 2))) == 3
    assert len(program.products.backward(8, (4, 64, 64, 2))) == 5
    assert len(program.products.backward(8, (4, 64, 64, 2), weights=False, inputs=2)) == 3
    [first] = program.products.forward(8, (4, 64))
    assert first().shape == (8, 64)


def test_the_clock_counts_training_only(program: Program, monkeypatch: pytest.MonkeyPatch):
    now = iter([0.0, 2.0, 10.0, 13.0])
    monkeypatch.setattr(program.fair.time, "perf_counter", lambda: next(now))
    clock = program.fair.TrainingClock(1_000)
    clock.start()
    assert not clock.due(999)
    assert clock.due(1_024)
    clock.stop()
    assert not clock.noted(1_024, 100.0, 475.0)
    clock.start()
    assert not clock.due(1_999)
    assert clock.due(2_000)
    clock.stop()
    assert clock.noted(2_000, 500.0, 475.0)
    assert clock.result() == {"seconds": 5.0, "reached": True, "timesteps": 2_000, "last_return": 500.0}


def test_everybody_plays_the_same_games_to_their_end(program: Program):
    import numpy as np

    def falls(obs: np.ndarray) -> np.ndarray:
        return np.zeros(len(obs), int)

    first = program.fair.mean_return(falls, 5)
    assert 8 <= first <= 11
    assert program.fair.mean_return(falls, 5) == first


def test_the_stopwatch_counts_whole_iterations_after_the_warm_up(
    program: Program, monkeypatch: pytest.MonkeyPatch
):
    from rl_training.core.types import Progress

    now = iter(float(i) for i in range(8))
    monkeypatch.setattr(program.ours.time, "perf_counter", lambda: next(now))
    watch = program.ours.Stopwatch(warm_up=20)
    for timesteps in (10, 20, 30, 40):  # a second to update, a second to collect
        watch.on_collect(Progress(timesteps=timesteps))
        watch.on_update(Progress(timesteps=timesteps), None)
    assert watch.result() == {"steps_per_second": 5.0, "updating": 0.5, "steps": 20, "seconds": 4.0}
