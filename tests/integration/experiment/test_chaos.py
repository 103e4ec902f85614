"""A short version of `make chaos`: real SIGKILLs, real resumes, byte-for-byte comparison."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loading import load_file
from rl_training.cli.train import config_from_flags
from rl_training.config import TrainConfig
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.building import build_parts

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    return load_file("scripts/chaos.py")


@pytest.mark.parametrize("name", ["async, MuJoCo", "sync, nested Dict"])
def test_a_killed_and_resumed_run_leaves_the_same_bytes(name: str, chaos: ModuleType, tmp_path: Path) -> None:
    scenario = next(scenario for scenario in chaos.SCENARIOS if scenario.name == name)
    scenario = replace(scenario, timesteps=4_000, aims={chaos.ANY: 1, chaos.WRITING: 1})
    trial = chaos.torture(scenario, 2, 0.5, tmp_path)
    assert len(trial.kills) == 2
    assert trial.differences == []


@pytest.mark.parametrize(
    ("name", "aim"), [("all of Rainbow", "evaluating"), ("async, correlated noise", "plotting")]
)
def test_a_killed_and_resumed_run_leaves_the_same_replay_data(
    name: str, aim: str, chaos: ModuleType, tmp_path: Path
) -> None:
    scenario = next(scenario for scenario in chaos.SCENARIOS if scenario.name == name)
    if aim == "evaluating":  # long enough to be hit on a busy machine
        scenario = replace(scenario, flags=(*scenario.flags, "--num-eval-episodes", "300"))
    scenario = replace(scenario, timesteps=2_000, checkpoint_every=400, aims={aim: 1})
    trial = chaos.torture(scenario, 1, 0.5, tmp_path)
    assert (trial.kills, trial.aims) == ([aim], [aim])
    assert trial.differences == []
    (reference,) = (tmp_path / f"{scenario.flags[0]} {name}" / "reference").glob("*__*")
    assert list((reference / "checkpoints" / "replay").glob("segment_*"))


WAYS = {
    "ppo": {"explicit", "explicit after autograd"},
    "a2c": {"explicit", "explicit after autograd"},
    "recurrent_ppo": {"explicit", "explicit after autograd"},
    "dqn": {"explicit", "explicit, loss by autograd", "autograd"},
    "sac": {"explicit", "autograd"},
    "td3": {"explicit", "autograd"},
}
"""How the gradients of an algorithm may come, as `update_path` calls it; the scenarios must have all of them."""


@pytest.fixture(scope="module")
def configs(chaos: ModuleType) -> list[TrainConfig]:
    """What the command line makes of the scenarios; how environments are stepped makes no difference here."""
    parsed = [
        config_from_flags(first, None, list(others), "chaos")[0]
        for first, *others in (scenario.flags for scenario in chaos.SCENARIOS)
    ]
    return [config.with_overrides(env_backend="sync") for config in parsed]


def test_every_way_of_an_update_is_killed(
    configs: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("scripts")
    found: dict[str, set[str]] = {}
    for config in configs:
        stepper = training_stepper(config, None)
        try:
            learner = build_parts(config, stepper.spec).learner
        finally:
            stepper.close()
        found.setdefault(config.algo, set()).add(learner.update_path)
    missing = {algo: ways - found.get(algo, set()) for algo, ways in WAYS.items()}
    assert not any(missing.values()), f"no scenario takes {missing}"


@pytest.mark.parametrize("algo", ["dqn", "sac", "td3"])
def test_bursts_of_updates_are_killed(algo: str, configs: list[TrainConfig]) -> None:
    settings: list[Any] = [config.algorithm for config in configs if config.algo == algo]
    assert any(found.train_freq > 1 and found.gradient_steps not in (0, 1) for found in settings)


def test_what_the_command_line_can_switch_on_is_killed(configs: list[TrainConfig]) -> None:
    dqn: list[Any] = [config.algorithm for config in configs if config.algo == "dqn"]
    assert {found.distribution for found in dqn} == {"none", "c51", "quantile"}
    assert any(found.prioritized and found.n_step > 1 and not found.noisy for found in dqn)
    assert any(found.prioritized and found.gradient_steps > 1 for found in dqn)
    cores: list[Any] = [config.algorithm for config in configs if config.algo == "recurrent_ppo"]
    assert {found.core for found in cores} == {"lstm", "gru"}
    assert {config.num_threads for config in configs} == {"auto", 2}


def test_every_scenario_has_a_name_of_its_own(chaos: ModuleType) -> None:
    titles = [scenario.title for scenario in chaos.SCENARIOS]
    assert len(titles) == len(set(titles)), "its runs are made in a folder of that name"


POLE = ("ppo", "--env-id", "CartPole-v1")


@pytest.fixture
def victim(chaos: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that is not there yet, whose processes are only named: `started`, or the flags of a resume."""
    monkeypatch.setattr(chaos, "start", lambda *_: "started")
    monkeypatch.setattr(chaos, "resume", lambda run_dir, marker, extended_to: (run_dir.name, extended_to))
    return chaos.Victim(chaos.Scenario("pole", POLE), tmp_path / "out", tmp_path / "reference")


def run_folder(victim: Any, total_timesteps: int | None = None) -> Path:
    run_dir = Path(victim.output / "ppo__pole")
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    if total_timesteps is not None:
        (run_dir / "config.yaml").write_text(f"total_timesteps: {total_timesteps}\n", encoding="utf-8")
    return run_dir


def test_a_run_that_left_nothing_is_started_again(victim: Any) -> None:
    assert victim.go_on() == "started"
    run_dir = run_folder(victim)  # killed before its config was written
    assert victim.go_on() == "started"
    assert not run_dir.exists()
    assert not victim.resumed
    run_folder(victim, 100)
    assert victim.go_on() == ("ppo__pole", None)
    assert victim.resumed


def test_an_extension_is_asked_for_until_the_run_has_accepted_it(chaos: ModuleType, victim: Any) -> None:
    victim.scenario = chaos.Scenario("pole", POLE, timesteps=100, extended_to=300)
    run_folder(victim, 100)
    assert victim.go_on() == ("ppo__pole", 300)
    run_folder(victim, 300)
    assert victim.go_on() == ("ppo__pole", None)


def test_what_a_process_was_doing_is_told_from_its_marker_and_from_what_it_left(victim: Any) -> None:
    run_dir = run_folder(victim, 100)
    checkpoints = run_dir / "checkpoints"
    assert victim.place() == "first second"
    (checkpoints / "step_64").mkdir()
    (checkpoints / "last").write_text("step_64\n", encoding="utf-8")
    assert victim.place() == "starting"
    for activity in ("replaying", "training", "evaluating", "plotting", "ending"):
        victim.marker.write_text(activity, encoding="utf-8")
        assert victim.place() == activity
    victim.marker.write_text("training", encoding="utf-8")
    (checkpoints / "step_96").mkdir()  # not declared yet
    assert victim.place() == "writing"
    (checkpoints / "last").write_text("step_96\n", encoding="utf-8")
    assert victim.place() == "training"
    (checkpoints / ".step_128.tmp").mkdir()
    assert victim.place() == "writing"


def test_every_place_has_its_column(chaos: ModuleType) -> None:
    trial = chaos.Trial(chaos.Scenario("pole", POLE), ["training", "plotting"], [chaos.ANY, chaos.PLOTTING])
    table = [line for line in chaos.report([trial]).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {4 + len(chaos.PLACES)}
    assert table[2] == "| PPO, pole | 2 | 0 | 0 | 0 | 1 | 0 | 0 | 1 | 0 | 0 |"


def test_an_interrupted_call_goes_on(chaos: ModuleType, tmp_path: Path) -> None:
    path, scenario = tmp_path / "runs" / "chaos.json", chaos.Scenario("pole", POLE)
    trial = chaos.Trial(scenario, ["training"], [chaos.ANY], ["a difference"])
    chaos.Finished(path, fresh=False).put(trial, 1, 0.25)
    again = chaos.Finished(path, fresh=False)
    assert again.get(scenario, 1, 0.25) == trial
    assert again.get(scenario, 2, 0.25) is None
    assert again.get(replace(scenario, timesteps=7), 1, 0.25) is None
    assert chaos.Finished(path, fresh=True).get(scenario, 1, 0.25) is None


def test_a_run_that_ends_by_itself_is_a_difference(
    chaos: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a scenario whose runs do nothing else comes to an end."""
    monkeypatch.setattr(chaos, "left_alone", lambda *_: tmp_path)
    monkeypatch.setattr(chaos, "start", lambda *_: chaos.subprocess.Popen(["false"]))
    monkeypatch.setattr(chaos, "finish", failing := FailingFinish())
    trial = chaos.torture(chaos.Scenario("pole", POLE), 5, 0.5, tmp_path)
    assert failing.calls == chaos.MOST_FAILURES == len(trial.differences)
    assert trial.differences[0] == "PPO, pole: after no kill, a run ended with 1: broken"


class FailingFinish:
    calls = 0

    def __call__(self, process: Any, output: Path) -> Path:
        self.calls += 1
        process.wait()
        raise RuntimeError("a run ended with 1: broken")


def test_the_comparison_notices_differences(
    chaos: ModuleType, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    """The judge of the other tests is judged: another seed must differ in everything it looks at."""
    flags = [*chaos.PPO, "--env-id", "CartPole-v1", "--total-timesteps", "1024", "--quiet"]
    outcomes = [cli("train", *flags, "--seed", seed, "--output-dir", tmp_path) for seed in (1, 2)]
    runs = [Path(outcome.out.strip()) for outcome in outcomes]
    found = {difference.rpartition(": ")[2].rpartition("/")[2] for difference in chaos.compare(*runs)}
    assert found == {
        "sampler.safetensors",
        "generators.safetensors",
        "model.safetensors",
        "optimizer.safetensors",
        "metrics.csv",
        "metrics.jsonl",
        "evaluations.jsonl",
    }
    assert chaos.compare(runs[0], runs[0]) == []
