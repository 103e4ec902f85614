"""Many runs side by side: none twice, none lost, whatever ends them."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import yaml

from loading import ROOT
from rl_training import PPO, load_runs
from rl_training.config import TrainConfig
from rl_training.core.errors import RunFault, UserError
from rl_training.experiment.checkpoints.locking import RunLock, is_held
from rl_training.experiment.files import read_json
from rl_training.experiment.logs.rows import last_row
from rl_training.lab import launcher as launcher_module
from rl_training.lab import places
from rl_training.lab.jobs import MAX_LOSSES, Board, Job, JobFolder, JobState, jobs_of
from rl_training.lab.launcher import failure_text, launch, with_one_thread
from rl_training.lab.places import share_of_cores
from support.configs import tiny_config
from support.folders import run_folder


class Recording(Board):
    """Remembers what happened, as words."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def event(self, state: JobState) -> None:
        self.events.append(f"{state.job.config.seed} {state.status}{' earlier' if state.earlier else ''}")


def plain_config(**overrides: Any) -> TrainConfig:
    """A config whose environment a child process can import."""
    return tiny_config(
        "ppo", **{"output_dir": "unused", "env_id": "CartPole-v1", "eval_every_timesteps": 32} | overrides
    )


def slow_config() -> TrainConfig:
    return plain_config(total_timesteps=2_000_000, checkpoint_every_timesteps=2_000)


FAKE = """
import json, sys
from pathlib import Path
parent, cores, command, *rest = sys.argv[1:]
folder = Path(rest[rest.index("--output-dir") + 1])
if "NoSuch" in (folder / "job.yaml").read_text():
    sys.exit("warning: odd\\nerror: there is no NoSuch")
run = folder / "run"
run.mkdir()
(run / "config.yaml").write_text("")
(run / "evaluations.jsonl").write_text(json.dumps({"timesteps": 64, "mean_reward": 1.5, "returns": [1.5]}) + "\\n")
facts = {"status": "stopped", "algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "versions": {"rl_training": "0"}}
(run / "metadata.json").write_text(json.dumps(facts))
"""


@pytest.fixture
def child_script(tmp_path_factory, monkeypatch):
    """Write the program that plays the child."""
    script = tmp_path_factory.mktemp("fake") / "child.py"
    monkeypatch.setattr(places, "CHILD", ("-S", str(script)))
    return script.write_text


@pytest.fixture
def fake_child(child_script):
    """A child that leaves the traces of a run at once."""
    child_script(FAKE)


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_jobs_are_known_by_config_and_seed():
    one, same = Job("a", plain_config(seed=3)), Job("b", plain_config(seed=3, output_dir="elsewhere"))
    assert one.key == same.key
    assert (
        len({one.key, Job("a", plain_config(seed=4)).key, Job("a", plain_config(gamma=0.5, seed=3)).key}) == 3
    )
    assert "/" not in Job("a", plain_config(env_id="ALE/Pong-v5")).key


def test_seeds_come_before_configs():
    jobs = jobs_of([("a", plain_config()), ("b", plain_config(gamma=0.5))], [1, 2])
    assert [str(job) for job in jobs] == ["a seed 1", "b seed 1", "a seed 2", "b seed 2"]


def test_cores_are_shared(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6}, raising=False)
    assert [share_of_cores(slot, 1) for slot in range(1)] == [[0, 2, 4, 6]]
    assert [share_of_cores(slot, 2) for slot in range(2)] == [[0, 4], [2, 6]]
    assert [share_of_cores(slot, 6) for slot in range(6)] == [[0], [2], [4], [6], [0], [2]]


def test_one_thread_unless_somebody_chose():
    assert plain_config().num_threads == "auto"
    assert with_one_thread(plain_config()).num_threads == 1
    assert with_one_thread(plain_config(num_threads=2)).num_threads == 2


def test_done_once_and_kept(tmp_path):
    """A second launch finds everything done; a lost record is made again from the run."""
    jobs, board = jobs_of([("tiny", plain_config())], [1, 2]), Recording()
    done = launch(jobs, tmp_path, processes=2, board=board)
    assert sorted(board.events) == ["1 finished", "1 training", "2 finished", "2 training"]
    assert [record["seed"] for record in done.records] == [1, 2]
    record = read_json(tmp_path / "jobs" / f"{jobs[0].key}.json")
    assert [row["step"] for row in record["evaluations"]] == [32, 64]
    assert record["fingerprint"] == jobs[0].fingerprint
    assert record["versions"]["rl_training"]
    assert record["seconds"] > 0
    assert [run.score for run in load_runs(tmp_path)] == [record["score"] for record in done.records]
    run_dir = JobFolder(tmp_path).run_dir(jobs[0])
    assert run_dir is not None
    assert (run_dir / "metadata.json").is_file()
    (tmp_path / "jobs" / f"{jobs[0].key}.json").unlink()
    board = Recording()
    again = launch(jobs, tmp_path, board=board)
    assert board.events == ["1 finished earlier", "2 finished earlier"]
    assert again.records == done.records


def test_children_run_on_their_cores_and_die_with_their_launcher(tmp_path):
    """SIGKILL for the launcher: the child pauses by itself, and the next launch goes on with its run."""
    script = (
        "import sys; from pathlib import Path; from test_launcher import slow_config\n"
        "from rl_training.lab.launcher import launch; from rl_training.lab.jobs import Job\n"
        "launch([Job('slow', slow_config())], Path(sys.argv[1]), processes=2)\n"
    )
    folders = [ROOT / "tests", ROOT / "tests" / "integration", ROOT / "tests" / "integration" / "lab"]
    search = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    launcher = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], env=os.environ | {"PYTHONPATH": search}
    )
    job, folder = Job("slow", slow_config()), JobFolder(tmp_path)
    try:
        wait_until(
            lambda: (run := folder.run_dir(job)) is not None and (run / "checkpoints" / "last").exists()
        )
        run_dir = folder.run_dir(job)
        assert run_dir is not None
        child = int((run_dir / ".lock").read_text())
        if hasattr(os, "sched_getaffinity"):
            assert os.sched_getaffinity(child) == set(share_of_cores(0, 2))
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: not is_held(run_dir))
    assert read_json(run_dir / "metadata.json")["status"] in ("paused", "running")


def test_a_signal_pauses_the_children(tmp_path, capfd):
    class Stop(Board):
        def show(self, states):
            if states[0].steps > 0:
                os.kill(os.getpid(), signal.SIGTERM)

    job = Job("slow", slow_config())
    stopped = launch([job], tmp_path, board=Stop())
    assert stopped.stopped_by == signal.SIGTERM
    assert [state.status for state in stopped.states] == ["paused"]
    run_dir = JobFolder(tmp_path).run_dir(job)
    assert run_dir is not None
    assert read_json(run_dir / "metadata.json")["status"] == "paused"
    assert not list((tmp_path / "jobs").iterdir())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert "SIGTERM: saving a checkpoint of every run" in capfd.readouterr().err


def test_a_signal_for_the_launchers_group_does_not_reach_the_children(tmp_path, child_script):
    """Ctrl-C is sent to the whole group: the launcher alone decides when a run stops."""
    child_script("import os; print(os.getpid(), os.getpgrp())\n" + FAKE)
    job = Job("tiny", plain_config())
    launch([job], tmp_path)
    process, group = (tmp_path / "runs" / job.key / "output.txt").read_text().split()
    assert process == group
    assert int(group) != os.getpgrp()


@pytest.mark.parametrize(
    "stop",
    [
        "os.kill(os.getpid(), signal.SIGTERM)",
        "signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)",
        "sys.exit(128 + signal.SIGTERM)",
        "sys.exit(128 + signal.SIGINT)",
    ],
)
def test_a_child_that_somebody_else_stops_is_paused_and_not_failed(tmp_path, child_script, stop):
    """The launcher was not asked to stop, so it ends by itself; the next launch goes on with the run."""
    child_script(f"import os, signal, sys\n{stop}")
    job, board = Job("tiny", plain_config()), Recording()
    stopped = launch([job], tmp_path, board=board)
    assert board.events == ["1 training", "1 paused"]
    assert stopped.stopped_by is None
    assert not list((tmp_path / "jobs").iterdir())
    child_script(FAKE)
    assert [state.status for state in launch([job], tmp_path).states] == ["finished"]


def test_a_child_that_ends_between_two_looks_is_seen_whole(tmp_path, child_script, monkeypatch):
    """What it wrote just before its end counts: its end is noticed first, and its files are read afterwards."""
    go = tmp_path / "go"
    child_script(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.001)\n{FAKE}")

    class EndsAtOnce(subprocess.Popen):
        def poll(self):
            go.touch()
            self.wait()
            return super().poll()

    monkeypatch.setattr(subprocess, "Popen", EndsAtOnce)
    (state,) = launch([Job("tiny", plain_config())], tmp_path / "D").states
    assert (state.status, state.steps, state.evaluation) == ("finished", 64, 1.5)


def test_failures_are_named_and_tried_again_on_demand(tmp_path, fake_child):
    jobs = [Job("bad", plain_config(env_id="NoSuch-v0")), Job("good", plain_config())]
    first = launch(jobs, tmp_path)
    assert [state.status for state in first.states] == ["failed", "finished"]
    assert first.states[0].error == "there is no NoSuch"
    board = Recording()
    second = launch(jobs, tmp_path, board=board)
    assert board.events == ["1 failed earlier", "1 finished earlier"]
    assert second.states[0].error == first.states[0].error
    board = Recording()
    launch(jobs, tmp_path, retry_failed=True, board=board)
    assert board.events == ["1 finished earlier", "1 training", "1 failed"]


def test_a_launch_that_makes_no_run_says_why(tmp_path, fake_child):
    bad = jobs_of([("bad", plain_config(env_id="NoSuch-v0"))], [1, 2])
    for _ in range(2):  # also if they failed in an earlier launch
        with pytest.raises(
            UserError, match=r"no run .*\(2 failed\); bad seed 1: there is no NoSuch; .*--retry-failed"
        ):
            launch(bad, tmp_path)
    with pytest.raises(UserError, match="nothing to launch: the list of jobs is empty"):
        launch([], tmp_path)
    assert len(launch([*bad, Job("good", plain_config())], tmp_path).records) == 1


def test_a_class_that_a_child_cannot_import_is_refused_before_anything_is_made(tmp_path):
    class Local(PPO):
        """Cannot be imported by name."""

    with pytest.raises(
        UserError, match=r"mine seed 1 trains in a process of its own.*Local'; move the class"
    ):
        launch([Job("mine", Local(plain_config()).config)], tmp_path / "new")
    assert not (tmp_path / "new").exists()


OWN = """
from dataclasses import dataclass
from rl_training import PPO
from rl_training.algorithms.ppo import PPOConfig

@dataclass(frozen=True, kw_only=True)
class MyConfig(PPOConfig):
    bonus: float = 1.0
    "A bonus."

class MyPPO(PPO):
    config_class = MyConfig
"""


@pytest.fixture
def own_project(tmp_path, monkeypatch):
    """A working folder with an algorithm of one's own and a config for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_ppo.py").write_text(OWN, encoding="utf-8")
    settings = plain_config().to_dict()
    settings |= {"algo": "my_own_ppo:MyPPO", "algorithm": settings["algorithm"] | {"bonus": 2.0}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    (tmp_path / "parent.yaml").write_text(plain_config().to_yaml(), encoding="utf-8")
    yield tmp_path
    sys.modules.pop("my_own_ppo", None)


@pytest.mark.slow
def test_an_own_algorithm_is_found_by_the_children_of_zoo_and_benchmark(own_project, cli):
    outcome = cli("zoo", "run", "mine.yaml", "--seeds", 1, "--jobs", 1, "--output-dir", "zoo")
    assert outcome.code == 0, outcome.out + outcome.err
    (run_dir,) = own_project.glob("zoo/runs/my_own_ppo-MyPPO__CartPole-v1__*/my_own_ppo-MyPPO__*")
    assert "bonus: 2.0" in (run_dir / "config.yaml").read_text(encoding="utf-8")
    (own_project / "both.yaml").write_text("presets: [mine.yaml, parent.yaml]\nseeds: 1\n", encoding="utf-8")
    outcome = cli("benchmark", "both.yaml", "--jobs", 1, "--output-dir", "zoo")
    assert outcome.code == 0, outcome.out + outcome.err
    report = (own_project / "zoo" / "report.md").read_text(encoding="utf-8")
    assert "my_own_ppo:MyPPO" in report
    assert "ppo" in report


def test_a_full_disk_stops_everything_gently(tmp_path, fake_child, monkeypatch):
    job = Job("tiny", plain_config())

    def full(self, job, record):
        raise OSError(28, "No space left on device", str(tmp_path / "jobs"))

    with monkeypatch.context() as patch:
        patch.setattr(JobFolder, "write_record", full)
        with pytest.raises(RunFault, match="jobs: No space left on device; no training is lost"):
            launch([job], tmp_path)
    board = Recording()
    launch([job], tmp_path, board=board)
    assert board.events == ["1 finished earlier"]


def test_a_run_that_another_process_holds_is_waited_for(tmp_path, fake_child, monkeypatch):
    """As after the launcher was killed where children cannot be told: nothing is started twice."""
    job, held = Job("tiny", plain_config()), [True, True, False]
    launch([job], tmp_path)
    (tmp_path / "jobs" / f"{job.key}.json").unlink()
    monkeypatch.setattr(launcher_module, "is_held", lambda run_dir, **options: held.pop(0) if held else False)
    board = Recording()
    launch([job], tmp_path, board=board)
    assert board.events == ["1 waiting", "1 finished earlier"]


def test_a_run_without_evaluations_is_a_failure_of_its_own(tmp_path, fake_child, monkeypatch):
    """What cannot be scored is named, and does not end the launch."""
    jobs = jobs_of([("tiny", plain_config())], [1, 2])
    launch(jobs, tmp_path)
    (tmp_path / "jobs" / f"{jobs[0].key}.json").unlink()
    next((tmp_path / "runs" / jobs[0].key).glob("run/evaluations.jsonl")).write_text("")
    states = launch(jobs, tmp_path).states
    assert [state.status for state in states] == ["failed", "finished"]
    assert "has no evaluations" in states[0].error


def test_one_run_under_two_names(tmp_path, fake_child):
    done = launch([Job("a", plain_config()), Job("b", plain_config())], tmp_path)
    assert len(done.states) == 1
    assert [record["name"] for record in done.records] == ["a", "b"]


def test_a_reader_that_goes_away_is_not_a_full_disk(tmp_path, fake_child):
    class Gone(Board):
        def event(self, state):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        launch([Job("tiny", plain_config())], tmp_path, board=Gone())


def test_a_released_job_can_be_made_again(tmp_path, fake_child):
    job, folder, board = Job("tiny", plain_config()), JobFolder(tmp_path), Recording()
    launch([job], tmp_path)
    folder.release(job)
    assert (tmp_path / "run" / "metadata.json").is_file()
    launch([job], tmp_path, board=board)
    assert board.events == ["1 training", "1 finished"]


def test_one_launch_per_folder(tmp_path):
    with RunLock(tmp_path), pytest.raises(UserError, match="in use by this process"):
        launch([Job("tiny", plain_config())], tmp_path)


def test_folders_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; choose a folder"):
        launch([Job("tiny", plain_config())], tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        launch([Job("tiny", plain_config())], tmp_path / "file" / "below")
    with pytest.raises(UserError, match="jobs is 0; use 1 or more"):
        launch([Job("tiny", plain_config())], tmp_path, processes=0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: [],
        lambda record: record | {"status": "done"},
        lambda record: record | {"evaluations": []},
        lambda record: record | {"evaluations": [{"step": 1}]},
        lambda record: record | {"score": 3.0},
        lambda record: record | {"versions": None},
        lambda record: {"format": 1, "status": "failed"},
        lambda record: record | {"seed": 2},
        lambda record: record | {"fingerprint": "another"},
        lambda record: record | {"seconds": "ten"},
        lambda record: record | {"evaluations": [record["evaluations"][0] | {"wall_time": "noon"}]},
    ],
)
def test_a_damaged_record_is_named(tmp_path, fake_child, damage):
    job = Job("tiny", plain_config())
    launch([job], tmp_path)
    file = tmp_path / "jobs" / f"{job.key}.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    with pytest.raises(UserError, match="is not the record of a job; delete it"):
        launch([job], tmp_path)
    file.unlink()
    assert [state.status for state in launch([job], tmp_path).states] == ["finished"]


@pytest.mark.parametrize("content", [b"", b'{"format": 1, ', b"\xff\x00"])
def test_a_record_that_cannot_be_read_is_named_with_what_to_do(tmp_path, fake_child, content):
    job = Job("tiny", plain_config())
    launch([job], tmp_path)
    file = tmp_path / "jobs" / f"{job.key}.json"
    file.write_bytes(content)
    with pytest.raises(
        UserError, match=f"{job.key}.json is damaged: .*; delete it to create it again from the run"
    ):
        launch([job], tmp_path)


def test_a_run_that_ended_and_cannot_be_scored_is_tried_again_anew(tmp_path, fake_child):
    """From its last checkpoint it would end the same way at once, however often one tries."""
    job, board = Job("tiny", plain_config()), Recording()
    launch([job], tmp_path)
    (tmp_path / "jobs" / f"{job.key}.json").unlink()
    (tmp_path / "runs" / job.key / "run" / "evaluations.jsonl").write_text("")
    assert [state.status for state in launch([job], tmp_path).states] == ["failed"]
    assert [state.status for state in launch([job], tmp_path).states] == ["failed"], "it is left alone"
    launch([job], tmp_path, retry_failed=True, board=board)
    assert board.events == ["1 training", "1 finished"]
    assert (tmp_path / "run" / "metadata.json").is_file(), "nothing is thrown away"


def test_a_failure_that_cannot_be_forgotten_is_a_sentence(tmp_path, fake_child, monkeypatch):
    job = Job("bad", plain_config(env_id="NoSuch-v0"))
    with pytest.raises(UserError, match="no run could be started"):
        launch([job], tmp_path)

    def refuse(self, job):
        raise OSError(30, "Read-only file system", str(tmp_path / "jobs"))

    monkeypatch.setattr(JobFolder, "retry_failed_job", refuse)
    with pytest.raises(RunFault, match="jobs: Read-only file system; no training is lost"):
        launch([job], tmp_path, retry_failed=True)


def test_a_file_in_the_place_of_a_launchs_folder(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match=r"runs is a file, but must be a folder; move it"):
        launch([Job("tiny", plain_config())], tmp_path)


def test_a_run_is_no_folder_for_a_launch(tmp_path):
    run = run_folder(tmp_path)
    before = sorted(run.rglob("*"))
    with pytest.raises(UserError, match="is a run folder; choose another folder"):
        launch([Job("tiny", plain_config())], run)
    assert sorted(run.rglob("*")) == before


def test_a_name_that_no_disk_has(tmp_path):
    with pytest.raises(UserError, match="cannot be written: File name too long; choose another"):
        launch([Job("tiny", plain_config())], tmp_path / ("x" * 300))


def test_more_processes_than_jobs_cost_nothing(tmp_path, fake_child):
    jobs = jobs_of([("tiny", plain_config())], [1, 2])
    assert [state.status for state in launch(jobs, tmp_path, processes=10**18).states] == [
        "finished",
        "finished",
    ]


def test_what_went_wrong(tmp_path):
    errors = tmp_path / "errors.txt"
    errors.write_text("warning: something\nerror: it broke\n  - here\n")
    assert failure_text(1, errors) == "it broke\n  - here"
    assert failure_text(-9, errors) == "ended by SIGKILL; it may have run out of memory"
    errors.write_text("")
    assert failure_text(3, errors) == "ended with exit code 3 and no error message"


def test_the_last_row_of_a_growing_file(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert last_row(file) == {}
    file.write_text(
        "".join(json.dumps({"row": n, "pad": "x" * 5000}) + "\n" for n in range(40)) + '{"row": 40'
    )
    assert last_row(file)["row"] == 39


class LosingPlace(places.LocalPlace):
    """Loses its first workers, whose commands end as on a machine that was switched off."""

    def __init__(self, losses: int) -> None:
        super().__init__(1)
        self.losses, self.commands = losses, list[str]()

    def start(self, command, home, slot):
        self.commands.append(command[0])
        worker = super().start(command, home, slot)
        if self.losses == 0:
            return worker
        self.losses -= 1
        worker.wait()
        return Gone()


class Gone:
    def poll(self):
        return places.Lost("NodeDiedError")

    def send(self, number):
        pass

    def wait(self):
        pass


def test_a_job_whose_worker_is_lost_continues(tmp_path, child_script, monkeypatch):
    """It is resumed if it had a run, and the number of times is limited."""
    child_script(
        "import sys\nif sys.argv[3] == 'resume': sys.exit()\n" + FAKE.replace('"stopped"', '"running"')
    )
    place, board = LosingPlace(2), Recording()
    monkeypatch.setattr(launcher_module, "LocalPlace", lambda processes: place)
    (state,) = launch([Job("tiny", plain_config())], tmp_path, board=board).states
    assert place.commands == ["train", "resume", "resume"]
    assert board.events == ["1 training", "1 waiting", "1 training", "1 waiting", "1 training", "1 paused"]
    assert state.losses == 2


def test_a_job_whose_worker_is_lost_too_often_fails(tmp_path, child_script, monkeypatch):
    child_script(
        "import sys\nif sys.argv[3] == 'resume': sys.exit()\n" + FAKE.replace('"stopped"', '"running"')
    )
    place = LosingPlace(100)
    monkeypatch.setattr(launcher_module, "LocalPlace", lambda processes: place)
    (state,) = launch([Job("tiny", plain_config())], tmp_path).states
    assert state.status == "failed"
    assert state.error == f"its worker was lost {MAX_LOSSES + 1} times, the last time by NodeDiedError"
    assert len(place.commands) == MAX_LOSSES + 1
