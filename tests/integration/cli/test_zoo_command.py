"""`rl-training zoo`: lists, shows and runs presets, and says what is wrong in a sentence."""

import signal

import pytest

from loading import ROOT
from rl_training.cli import launching
from rl_training.config import load_config
from rl_training.config.presets import presets
from rl_training.experiment.files import read_json
from rl_training.lab import preset_scores
from rl_training.lab.jobs import Job, JobState, Launched


def test_list(cli):
    every = cli("zoo", "list")
    assert every.code == 0
    lines = every.out.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in presets())
    some = cli("zoo", "list", "--algo", "dqn", "--env", "cartpole", "--family", "classic").out
    assert [line.split()[0] for line in some.splitlines()[3:]] == [
        "dqn/cartpole",
        "dqn/cartpole_c51",
        "dqn/cartpole_noisy",
        "dqn/cartpole_rainbow",
    ]


def test_show(cli):
    shown = cli("zoo", "show", "zoo/atari/ppo_breakout.yaml")
    assert shown.code == 0
    assert "not measured" in shown.out
    assert "total_timesteps: 10_000_000" in shown.out
    assert "needs          the extra atari" in shown.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("zoo", "lst"), "zoo has no 'lst'; did you mean 'list'?; use list, show or run"),
        (("zoo", "show", "ppo/cartpol"), "there is no preset 'ppo/cartpol'; did you mean 'ppo/cartpole'?"),
        (("zoo", "show"), "rl-training zoo show needs a preset; rl-training zoo show --help lists all flags"),
        (("zoo", "list", "--algo", "pp0"), "--algo 'pp0' is not known; did you mean 'ppo'?"),
        (("zoo", "list", "--famly", "x"), "unknown flag '--famly'; did you mean '--family'?"),
        (("zoo", "list", "x"), "'x' is one word too many"),
        (("zoo", "list", "--env", "chess"), "no preset matches"),
        (("zoo", "run", "ppo/cartpole", "--jobs", "0"), "--jobs is '0'; use a whole number of 1 or more"),
        (
            ("zoo", "run", "ppo/cartpole", "--seeds", "1e9"),
            "--seeds is '1e9'; use a number from 1 to 10,000, or a range such as 21-25",
        ),
        (("zoo", "run", "classic/dqn_cartpol"), "did you mean 'classic/dqn_cartpole'?"),
    ],
)
def test_sentences(cli, words, sentence):
    outcome = cli(*words)
    assert outcome.code == 2
    assert sentence in outcome.sentence


def test_help(cli):
    assert "zoo run PRESET" in cli("zoo", "--help").out
    assert cli("zoo").code == 2
    assert "--retry-failed" in cli("zoo", "run", "--help").out


def launched(monkeypatch, ending, stopped_by=None):
    """Have jobs end as told without training."""
    seen = []

    def fake(jobs, folder, *, processes, retry_failed, board, engine, ray_address):
        assert (engine, ray_address) == ("process", None)
        seen.append((list(jobs), processes, retry_failed))
        folder.mkdir(parents=True, exist_ok=True)
        return Launched(jobs, [ending(job) for job in jobs], stopped_by)

    monkeypatch.setattr(launching, "launch", fake)
    return seen


def finished(job: Job) -> JobState:
    points = [{"step": 10, "mean_reward": float(job.config.seed), "wall_time": None}]
    record = {"status": "finished", "evaluations": points, "score": float(job.config.seed), "seconds": 1.0}
    record |= {
        "fingerprint": job.fingerprint,
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": job.config.seed,
    }
    return JobState(job, "finished", record=record | {"versions": {}, "total_timesteps": 10})


def test_run_tells_what_was_reached_beside_what_is_known(cli, tmp_path, monkeypatch):
    seen = launched(monkeypatch, finished)
    monkeypatch.chdir(tmp_path)
    outcome = cli("zoo", "run", "classic/ppo_cartpole", "--seeds", 2, "--jobs", 3, "--output-dir", "D")
    assert outcome.code == 0
    ((jobs, processes, retry),) = seen
    assert [str(job) for job in jobs] == ["ppo/cartpole seed 1", "ppo/cartpole seed 2"]
    assert (processes, retry) == (3, False)
    assert jobs[0].config == load_config("ppo/cartpole")
    assert "2 of 2 runs are finished" in outcome.out
    assert "earlier: 500 on 5 seeds" in outcome.out
    assert "worse than before" in outcome.out
    assert read_json(tmp_path / "D" / "results" / "ppo_cartpole.json")["iqm"] == 1.5


def test_failures_and_signals_say_how_to_go_on(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    launched(monkeypatch, lambda job: JobState(job, "failed", error="it broke"))
    failed = cli("zoo", "run", "ppo/cartpole", "--seeds", 1, "--total-timesteps", "1e3", "--retry-failed")
    assert failed.code == 1
    assert "failed: ppo/cartpole seed 1: it broke" in failed.out
    assert failed.out.count("--retry-failed") == 1
    launched(monkeypatch, lambda job: JobState(job, "paused"), signal.SIGTERM)
    stopped = cli("zoo", "run", "ppo/cartpole", "--seeds", 1)
    assert stopped.code == 143
    assert "Stopped by SIGTERM. Resume every run from its checkpoint with:" in stopped.out
    assert "\n  python -m rl_training.cli zoo run ppo/cartpole --seeds 1\n" in stopped.out


def test_results_that_cannot_be_written(cli, tmp_path, monkeypatch):
    launched(monkeypatch, finished)
    (tmp_path / "results").write_text("")
    monkeypatch.setattr(preset_scores, "shipped", lambda name: [])
    outcome = cli("zoo", "run", "ppo/cartpole", "--seeds", 1, "--output-dir", tmp_path)
    assert outcome.code == 1
    assert "could not be written" in outcome.sentence
    assert "the runs are kept" in outcome.sentence


def test_a_report_that_cannot_be_written(cli, tmp_path, monkeypatch):
    launched(monkeypatch, finished)
    (tmp_path / "m.yaml").write_text("presets: [ppo/cartpole]\n")
    (tmp_path / "D" / "report.json").mkdir(parents=True)
    outcome = cli("benchmark", tmp_path / "m.yaml", "--seeds", 1, "--output-dir", tmp_path / "D")
    assert outcome.code == 1
    assert f"({tmp_path / 'D' / 'report.json'})" in outcome.sentence
    assert outcome.sentence.endswith("; the runs are kept; the same command writes it again")
    (tmp_path / "D" / "report.json").rmdir()
    assert cli("benchmark", tmp_path / "m.yaml", "--seeds", 1, "--output-dir", tmp_path / "D").code == 0


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1, "runs": [{"seed": 1}]}', "[]"])
def test_what_is_known_of_a_preset_cannot_be_read(cli, tmp_path, monkeypatch, text):
    """The new scores are told and kept all the same."""
    launched(monkeypatch, finished)
    (tmp_path / "zoo" / "results").mkdir(parents=True)
    (tmp_path / "zoo" / "results" / "ppo_cartpole.json").write_text(text)
    monkeypatch.setattr(preset_scores, "shipped", lambda name: [tmp_path / "zoo"])
    outcome = cli("zoo", "run", "ppo/cartpole", "--seeds", 1, "--output-dir", tmp_path / "D")
    assert outcome.code == 0
    assert f"ppo/cartpole: 1 on one seed; {tmp_path}/zoo/results/ppo_cartpole.json is" in outcome.out
    assert (tmp_path / "D" / "results" / "ppo_cartpole.json").is_file()


def test_a_config_of_ones_own(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\n")
    seen = launched(monkeypatch, finished)
    outcome = cli("zoo", "run", "mine.yaml", "--seeds", 1)
    assert outcome.code == 0
    assert "mine.yaml: 1 on one seed; there are no earlier results" in outcome.out
    (job,) = seen[0][0]
    assert job.config.env_id == "CartPole-v1"
    assert (tmp_path / "runs" / "zoo" / "results" / f"mine_{job.fingerprint}.json").is_file()


def test_train_tells_how_a_preset_did_beside_what_is_known(cli, tmp_path, monkeypatch):
    known = {"format": 1, "preset": "ppo/cartpole", "iqm": 4.0, "interval_95": [4.0, 4.0]}
    known |= {"runs": [{"seed": 9, "score": 4.0}, {"seed": 8, "score": 4.0}]}
    flags = ["--total-timesteps", 256, "--num-eval-episodes", 1, "--output-dir", tmp_path]
    config = load_config("ppo/cartpole").with_overrides(total_timesteps=256, num_eval_episodes=1)
    monkeypatch.setattr(
        preset_scores, "read_measured", lambda name: known | {"fingerprint": config.fingerprint()}
    )
    trained = cli("train", "--config", "zoo/classic/ppo_cartpole.yaml", *flags)
    assert trained.code == 0
    assert "ppo/cartpole: " in trained.out.splitlines()[-1]
    assert "earlier: 4 on 2 seeds (95% interval 4 to 4): better than before" in trained.out.splitlines()[-1]


def test_a_preset_that_is_named_twice_is_trained_once(cli, monkeypatch, tmp_path):
    seen = launched(monkeypatch, lambda job: JobState(job, "waiting"))
    monkeypatch.chdir(ROOT)
    cli("zoo", "run", "ppo/cartpole", "configs/ppo/cartpole.yaml", "--seeds", "2", "--output-dir", tmp_path)
    assert [str(job) for job in seen[0][0]] == ["ppo/cartpole seed 1", "ppo/cartpole seed 2"]


def test_a_file_that_is_not_there_is_no_preset_misspelt(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli("zoo", "run", "nowhere.yaml").sentence == (
        "error: there is no file or preset 'nowhere.yaml'; rl-training zoo list shows all presets"
    )
    assert "did you mean" not in cli("zoo", "show", "ppo/nothing").sentence


def test_a_manifest_and_a_config_in_each_others_place(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text("presets: [ppo/cartpole]\n")
    (tmp_path / "c.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\n")
    assert cli("zoo", "run", "m.yaml").sentence == (
        "error: m.yaml: it is a manifest, not a config; rl-training benchmark m.yaml trains what it lists"
    )
    assert cli("benchmark", "c.yaml").sentence == (
        "error: c.yaml is a config, not a manifest; use rl-training zoo run c.yaml to train it on several seeds"
    )


def test_a_report_is_not_compared_with_what_it_replaces(cli, tmp_path, monkeypatch):
    launched(monkeypatch, finished)
    (tmp_path / "m.yaml").write_text("presets: [ppo/cartpole]\nseeds: 1\n")
    command = ("benchmark", tmp_path / "m.yaml", "--output-dir", tmp_path / "D")
    assert cli(*command).code == 0
    for baseline in (tmp_path / "D", tmp_path / "D" / "records.json"):
        refused = cli(*command, "--baseline", baseline)
        assert refused.code == 2
        assert "would be replaced by this report; use another --output-dir" in refused.sentence
    assert cli(*command[:-1], tmp_path / "E", "--baseline", tmp_path / "D").code == 0
