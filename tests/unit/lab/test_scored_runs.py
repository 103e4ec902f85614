"""A run as a benchmark takes it: scored by its end, made of its folder, kept and found again."""

import json
import math

import pytest

from rl_training.core.errors import UserError
from rl_training.experiment.records.read import read_run
from rl_training.lab.scored_runs import EvaluationPoint, ScoredRun, read_records, scored_run, write_records


def record(rewards, **others):
    points = [EvaluationPoint(1000 * (k + 1), reward, 2.0 * (k + 1)) for k, reward in enumerate(rewards)]
    return ScoredRun(**({"task": "Walk", "name": "ppo", "seed": 1, "evaluations": points} | others))


@pytest.fixture
def run_dir(tmp_path):
    """A run folder with evaluations between rows of metrics."""
    facts = {"algo": "ppo", "env_id": "Walk-v0", "seed": 3, "status": "finished"}
    (tmp_path / "metadata.json").write_text(json.dumps(facts), encoding="utf-8")
    evaluations = [
        {"timesteps": steps, "mean_reward": reward, "returns": []}
        for steps, reward in [(50, 1), (150, 2.5), (300, 2)]
    ]
    metrics = [
        {"time/total_timesteps": steps, "time/time_elapsed": seconds}
        for steps, seconds in [(100, 4.0), (200, 6.0), (300, 9.0)]
    ]
    for name, rows in {"evaluations.jsonl": evaluations, "metrics.jsonl": metrics}.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


def test_the_score_is_the_mean_of_the_last_tenth_and_never_the_best():
    assert record([1, 9, 2]).score == 2
    assert record(range(19)).score == 18
    assert record([*range(18), 5, 8]).score == 6.5
    assert record([0] * 27 + [3, 4, 5]).score == 4
    assert record([1, 9, 2]).best == 9


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ([], "has no evaluations; train it with eval_every_timesteps"),
        ([EvaluationPoint(1000, math.nan)], "has an evaluation of nan at step 1,000"),
        ([EvaluationPoint(10, 1.0), EvaluationPoint(10, 2.0)], "not in the order of their steps"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(points, told):
    with pytest.raises(UserError, match=f"the run of ppo on Walk with seed 1 .*{told}"):
        record([], evaluations=points)


def test_what_counts_updates_is_refused_in_updates():
    with pytest.raises(UserError, match=r"has an evaluation of nan at update 1,000; exclude"):
        record([math.nan], unit="updates")
    with pytest.raises(UserError, match="not in the order of their updates"):
        record([], evaluations=[EvaluationPoint(10, 1.0), EvaluationPoint(10, 2.0)], unit="updates")
    with pytest.raises(UserError, match="counts 'epochs'; use one of steps, updates"):
        record([1.0], unit="epochs")


def test_a_run_folder_is_read_with_the_times_of_its_metrics(run_dir):
    found = scored_run(read_run(run_dir))
    assert (found.task, found.name, found.seed) == ("Walk-v0", "ppo", 3)
    assert [(point.step, point.mean_reward, point.wall_time) for point in found.evaluations] == [
        (50, 1.0, 2.0),
        (150, 2.5, 5.0),
        (300, 2.0, 9.0),
    ]
    assert scored_run(read_run(run_dir), name="ppo/walk", task="Walk") == ScoredRun(
        "Walk", "ppo/walk", 3, found.evaluations
    )


def test_a_run_that_learned_from_a_dataset_counts_updates(run_dir, tmp_path):
    assert scored_run(read_run(run_dir)).unit == "steps"
    for name, before, after in [
        ("evaluations.jsonl", "timesteps", "updates"),
        ("metrics.jsonl", "time/total_timesteps", "time/iterations"),
    ]:
        text = (run_dir / name).read_text(encoding="utf-8")
        (run_dir / name).write_text(text.replace(before, after), encoding="utf-8")
    found = scored_run(read_run(run_dir))
    assert found.unit == "updates"
    assert [point.step for point in found.evaluations] == [50, 150, 300]
    assert found.times == [2.0, 5.0, 9.0]
    write_records(tmp_path / "records.json", [found])
    assert read_records(tmp_path) == [found]


def test_times_that_are_not_known_are_not_made_up(run_dir):
    assert scored_run(read_run(run_dir)).times == [2.0, 5.0, 9.0]
    with (run_dir / "evaluations.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"timesteps": 400, "mean_reward": 3, "returns": []}\n')
    late = scored_run(read_run(run_dir))
    assert late.evaluations[-1] == EvaluationPoint(400, 3.0, None)
    assert late.times is None
    (run_dir / "metrics.jsonl").unlink()
    assert [point.wall_time for point in scored_run(read_run(run_dir)).evaluations] == [None] * 4


def test_an_unfinished_run_and_a_strange_folder_are_refused(run_dir, tmp_path):
    facts = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    (run_dir / "metadata.json").write_text(json.dumps(facts | {"status": "interrupted"}), encoding="utf-8")
    with pytest.raises(UserError, match="is not finished \\('interrupted'\\); use rl-training resume"):
        scored_run(read_run(run_dir))
    (run_dir / "metadata.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match=r"is not a run \(.*metadata.json is damaged: it is not a mapping\)"):
        scored_run(read_run(run_dir))
    with pytest.raises(UserError, match=r"nothing is not a run \(cannot be read: No such file"):
        scored_run(read_run(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.json", '{"algo": "ppo", "env_id": "W", "seed": "x", "status": "finished"}'),
        ("evaluations.jsonl", '{"timesteps": Infinity, "mean_reward": 1, "returns": []}\n'),
        ("evaluations.jsonl", '{"timesteps": 1, "mean_reward": NaN, "returns": []}\n'),
        ("evaluations.jsonl", '{"timesteps": 1, "mean_reward": 1' + "0" * 400 + ', "returns": []}\n'),
    ],
)
def test_damaged_files_of_a_run_are_refused(run_dir, name, text):
    (run_dir / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"is damaged: "):
        scored_run(read_run(run_dir))


def test_records_survive_their_file(tmp_path):
    records = [record([1.5, 2.25]), record([3.0], seed=2, name="dqn")]
    write_records(tmp_path / "records.json", records)
    assert read_records(tmp_path / "records.json") == records
    assert read_records(tmp_path) == records, "the folder of a report will do"


def test_records_of_earlier_versions_count_steps(tmp_path):
    write_records(tmp_path / "records.json", [record([1.5], unit="updates")])
    text = (tmp_path / "records.json").read_text(encoding="utf-8")
    data = json.loads(text)
    del data["records"][0]["unit"]
    (tmp_path / "records.json").write_text(json.dumps(data), encoding="utf-8")
    assert read_records(tmp_path) == [record([1.5])]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "has no records of format 1"),
        ('{"format": 2, "records": []}', "has no records of format 1"),
        ('{"format": 1, "records": [{"task": "Walk"}]}', "has a damaged record"),
        ('{"format": 1, "records": ["Walk"]}', "has a damaged record"),
        ("{", "is damaged: .*; create the report again"),
        (
            '{"format": 1, "records": [{"task": "Walk", "name": "x", "seed": 1, "evaluations": []}]}',
            r"records.json has an invalid record: the run of x on Walk with seed 1 has no",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, told):
    (tmp_path / "records.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=told):
        read_records(tmp_path)


def test_records_that_are_not_there(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="does not exist; give the folder of a report, or its records"):
            read_records(path)
