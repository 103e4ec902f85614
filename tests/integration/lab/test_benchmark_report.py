"""The folder of a report: complete, readable, the same again, and made of real runs as well."""

import csv
import json

import pytest

from rl_training.core.errors import UserError
from rl_training.experiment import start
from rl_training.experiment.records.read import read_run
from rl_training.lab import benchmark_pictures
from rl_training.lab.benchmark_report import report
from rl_training.lab.scored_runs import read_records, scored_run
from rl_training.lab.statistics import Published
from support.benchmarks import run
from support.benchmarks import runs as made_up

RECORDS = [
    record
    for name, shift in (("ppo", 0.0), ("dqn", 5.0))
    for task in ("Walk", "Swim|x")
    for record in made_up(task, name, [10.0 + shift, 20.0 + shift, 30.0 - shift])
]
BASELINE = made_up("Walk", "ppo", [1.0, 20.0], first_seed=8)
REFERENCES = {"Walk": (0.0, 40.0), "Swim|x": (0.0, 100.0)}
PUBLISHED = {("ppo", "Walk"): Published(100.0, 3.0, 9, "a paper")}
PICTURES = ["aggregates.png", "profile.png", "training.png", "steps.png", "time.png", "improvement.png"]
FILES = ["report.md", "report.json", "scores.csv", "summary.csv", "curves.csv", "records.json"]


def whole_report(folder, **others):
    return report(RECORDS, folder, baseline=BASELINE, references=REFERENCES, published=PUBLISHED, **others)


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_file_is_written_named_and_the_same_again(tmp_path):
    paths = whole_report(tmp_path / "new" / "one")
    assert [path.name for path in paths] == FILES + PICTURES
    assert sorted(path.name for path in (tmp_path / "new" / "one").iterdir()) == sorted(FILES + PICTURES)
    again = whole_report(str(tmp_path / "two"))
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    for path in paths[len(FILES) :]:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000


def test_the_text_says_what_counts(tmp_path):
    text = whole_report(tmp_path, seed=11)[0].read_text(encoding="utf-8")
    assert "the mean of the last tenth of a run's evaluations" in text
    assert "2,000 resamples of the seeds within each task and seed 11" in text
    assert (
        "| Walk | ppo | 3 | 20.00 [10.00, 30.00] | 20.00 [10.00, 30.00] | 20.00 [10.00, 30.00] | 20.00 | 400 |"
        in text
    )
    assert "| Swim\\|x | dqn | 3 |" in text, "a name stays in its cell"
    assert "| Walk | ppo | ppo | 0.750 [" in text
    assert (
        "| Walk | ppo | 3 | 20.00 [10.00, 30.00] | 100.0 ± 3.000 (n = 9) | [98.04, 102.0] | worse | a paper |"
        in text
    )
    for name in PICTURES:
        assert f"]({name})" in text


def test_tables_hold_what_the_text_rounds(tmp_path):
    whole_report(tmp_path)
    scores = table(tmp_path / "scores.csv")
    assert len(scores) == len(RECORDS)
    first = next(row for row in scores if (row["task"], row["name"], row["seed"]) == ("Walk", "ppo", "3"))
    assert (first["score"], first["normalised_score"], first["best"]) == ("30.0", "0.75", "30.0")
    assert (first["evaluations"], first["last_step"], first["seconds"]) == ("4", "400", "4.0")
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert data["settings"] == {"resamples": 2000, "seed": 0}
    for row in table(tmp_path / "summary.csv"):
        if row["task"] and row["statistic"] == "iqm":
            (entry,) = (e for e in data["tasks"] if (e["task"], e["name"]) == (row["task"], row["name"]))
            assert [float(row[key]) for key in ("value", "low", "high")] == list(entry["iqm"].values())
    assert {row["statistic"] for row in table(tmp_path / "summary.csv")} == {
        "iqm", "mean", "median", "best", "optimality_gap", "probability_of_improvement",
    }  # fmt: skip
    assert {row["axis"] for row in table(tmp_path / "curves.csv")} == {
        "steps", "seconds", "share_of_training", "threshold",
    }  # fmt: skip


def test_a_report_is_a_baseline_for_the_next(tmp_path):
    report(RECORDS, tmp_path / "before")
    kept = read_records(tmp_path / "before")
    assert sorted(kept, key=repr) == sorted(RECORDS, key=repr)
    report(RECORDS, tmp_path / "after", baseline=kept)
    duels = json.loads((tmp_path / "after" / "report.json").read_text(encoding="utf-8"))["improvements"]
    assert {(duel["name"], duel["baseline"]) for duel in duels} == {("ppo", "ppo"), ("dqn", "dqn")}
    assert all(duel["overall"]["value"] == 0.5 for duel in duels)


def test_one_run_with_one_evaluation_is_a_report_without_intervals(tmp_path):
    paths = report([run("Walk", "$x^$", 1, [3.5])], tmp_path)
    assert [path.name for path in paths] == [*FILES, "steps.png"]
    text = paths[0].read_text(encoding="utf-8")
    assert "| Walk | $x^$ | 1 | 3.500 | 3.500 | 3.500 | 3.500 | 100 |" in text
    assert "$x^$ on Walk has only one seed, so there is no interval." in text
    assert table(tmp_path / "summary.csv")[0]["low"] == ""


def test_runs_that_learned_from_datasets_are_told_in_updates(tmp_path):
    learned = [run("Walk", "bc", seed, [1.0, 2.0], every=500 * seed, unit="updates") for seed in (1, 2)]
    paths = report(learned, tmp_path / "alone")
    assert [path.name for path in paths] == [*FILES, "updates.png", "time.png"]
    text = paths[0].read_text(encoding="utf-8")
    assert "| best | updates |" in text
    assert "| 2,000 |" in text
    assert "The runs of bc on Walk end at different updates, 1,000 to 2,000" in text
    assert "evaluated at different updates; their curve" in text
    assert "step" not in text
    assert {row["axis"] for row in table(tmp_path / "alone" / "curves.csv")} == {"updates", "seconds"}
    assert {row["unit"] for row in table(tmp_path / "alone" / "scores.csv")} == {"updates"}


def test_steps_and_updates_never_share_an_axis(tmp_path):
    learned = [run("Walk", "bc", seed, [1.0, 2.0], unit="updates") for seed in (1, 2)]
    trained = [run("Walk", "ppo", seed, [1.0, 2.0]) for seed in (1, 2)]
    paths = report([*learned, *trained], tmp_path / "both")
    assert {"steps.png", "updates.png"} <= {path.name for path in paths}
    text = paths[0].read_text(encoding="utf-8")
    assert "| best | steps or updates |" in text
    assert "| 200 updates |" in text
    assert "| 200 steps |" in text
    with pytest.raises(UserError, match="some runs of bc on Walk count steps, others updates; report them"):
        report([*learned, run("Walk", "bc", 3, [1.0])], tmp_path / "mixed")


def test_axes_are_labelled_with_what_is_counted(tmp_path, monkeypatch):
    labels = {}

    def note(curves, style, xlabel, *, timed=False):
        labels.update({(name, timed): xlabel for _, name, _ in curves})
        return b"drawn"

    monkeypatch.setattr(benchmark_pictures, "_draw_panels", note)
    learned = [run("Walk", "bc", seed, [1.0, 2.0], unit="updates") for seed in (1, 2)]
    report([*learned, run("Walk", "ppo", 1, [1.0, 2.0])], tmp_path)
    assert labels["bc", False] == "updates"
    assert labels["ppo", False] == "environment steps"


def test_a_picture_that_fails_costs_no_numbers(tmp_path, monkeypatch):
    def fail(*arguments, **keywords):
        raise RuntimeError("no ink")

    monkeypatch.setattr(benchmark_pictures, "_draw_panels", fail)
    with pytest.warns(UserWarning, match=r"was not drawn: RuntimeError: no ink"):
        paths = whole_report(tmp_path)
    assert [path.name for path in paths] == [
        *FILES,
        *(n for n in PICTURES if n not in ("steps.png", "time.png")),
    ]
    text = paths[0].read_text(encoding="utf-8")
    assert "steps.png" not in text
    assert "profile.png" in text


def test_a_folder_that_cannot_be_made_and_no_resamples_are_refused(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match=r"the report cannot be written to .*file.*choose another"):
        whole_report(tmp_path / "file")
    with pytest.raises(UserError, match="resamples is 0; at least 1 is needed"):
        whole_report(tmp_path / "new", resamples=0)
    assert not (tmp_path / "new").exists()


def test_real_runs_are_read_with_their_times(tiny, tmp_path):
    records = []
    for seed in (1, 2):
        config = tiny("ppo", seed=seed, total_timesteps=256, eval_every_timesteps=64)
        records.append(scored_run(read_run(start.train(config).run_dir)))
    assert [record.seed for record in records] == [1, 2]
    assert len(records[0].evaluations) > 1
    assert all(record.times is not None for record in records)
    names = [path.name for path in report(records, tmp_path / "report")]
    assert names[: len(FILES)] == FILES
    assert "steps.png" in names
