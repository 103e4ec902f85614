"""What a person sees of many runs: lines elsewhere, a table in a terminal."""

import time

from rich.console import Console

from rl_training.cli.job_board import PlainBoard, table_of
from rl_training.lab.jobs import Job, JobState
from support.configs import tiny_config


def state(status, seed=1, **known):
    return JobState(Job("tiny", tiny_config("ppo", "unused", seed=seed)), status, **known)


def test_lines(capsys):
    board = PlainBoard()
    board.event(state("training"))
    board.event(state("training", steps=32))
    board.event(state("finished", steps=64, evaluation=1.25))
    board.event(state("failed", error="it \x1b[31mbroke", earlier=True))
    board.event(state("waiting", held=True))
    board.event(state("finished", earlier=True))
    assert capsys.readouterr().out.splitlines() == [
        "tiny seed 1: started",
        "tiny seed 1: started, resumed after 32 steps",
        "tiny seed 1: finished, 64 of 64 steps, evaluation 1.2",
        "tiny seed 1: FAILED earlier, it ?[31mbroke",
        "tiny seed 1: waits for another process that trains this run",
    ]


def test_jobs_that_learn_from_a_dataset_are_told_in_updates(capsys):
    learning = JobState(Job("tiny", tiny_config("bc", "unused")), "training", steps=8)
    PlainBoard().event(learning)
    assert capsys.readouterr().out.splitlines() == ["tiny seed 1: started, resumed after 8 updates"]
    assert [column.header for column in table_of([learning]).columns][2] == "updates"
    both = [learning, state("training")]
    assert [column.header for column in table_of(both).columns][2] == "steps or updates"


def test_a_line_per_running_job_now_and_then(capsys, monkeypatch):
    board, running = PlainBoard(), state("training", steps=48, began=time.monotonic() - 48.0)
    board.show([running])
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(board, "_last", time.monotonic() - 60.0)
    board.show([running, state("waiting")])
    assert capsys.readouterr().out.splitlines() == ["tiny seed 1: 48 of 64 steps, 0:16 left"]


def test_the_table_shows_what_trains_first_and_counts_what_has_no_room():
    states = [state("finished", seed, evaluation=500.0) for seed in range(40)]
    states += [
        state("failed", 41, error="[bold]broke"),
        state("training", 42),
        state("waiting", 43, held=True),
    ]
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        console.print(table_of(states))
    text = captured.get()
    assert "40 of 43 jobs finished" in text
    assert text.index("seed 42") < text.index("seed 41") < text.index("seed 43") < text.index("seed 0 ")
    assert "failed: [bold]broke" in text
    assert "waits for another process" in text
    assert "and 13 more" in text
