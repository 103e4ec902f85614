"""`engine: auto` chooses where a run is computed, says why, and changes none of its bytes."""

import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml

from rl_training.algorithms import ppo
from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.experiment import engine_choice, hosting
from rl_training.experiment.building import UserObjects
from rl_training.experiment.console import Console
from rl_training.experiment.engine_choice import MEASURING, place_run
from rl_training.experiment.hosting import num_hosts
from rl_training.experiment.learner_ranks import ranks
from rl_training.experiment.learner_ranks.ranks import RankedLearner, num_learners
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.experiment.throughput import Costs, Linear
from rl_training.runtime.engines.fork_server import ForkServer
from rl_training.runtime.engines.process import ProcessCrew
from support.callbacks import StopAtCollect
from support.compared_runs import tensors
from support.engine_cases import assert_same_files, last, settings_of

LOCAL = {"message": 1.0, "exchange": 1.0}
"""Processes would wait for each other."""
PROCESS: dict[str, float] = {}
GROUPS = {"env_groups": 2, "lag": 1}


class Server(ForkServer):
    """A fork server that several runs use; it is closed at the end of the module."""

    def close(self) -> None:
        """A run has ended."""

    def really_close(self) -> None:
        super().close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(hosting.__name__, "serve")
    yield found
    found.really_close()


@pytest.fixture(autouse=True)
def _two_cores(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "new_fork_server", lambda: server)
    for module in (engine_choice, hosting, ranks):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)


class Notes(Console):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the measurement by invented costs, in which collecting and updating take the same time."""

    def use(given: dict[str, float]) -> None:
        found = Costs(num_envs=4, num_steps=8, step=Linear(each=1e-3), act=Linear(), update=0.032, **given)  # type: ignore[arg-type]
        monkeypatch.setattr(engine_choice, "measure_costs", lambda *given, **settings: found)

    return use


@pytest.fixture
def case(tiny: Callable[..., Any]) -> Callable[..., Any]:
    def build(name: str = "ppo, statistics", **overrides: Any) -> Any:
        settings = settings_of(name, **overrides)
        return tiny(settings.pop("algo"), **settings)

    return build


@pytest.fixture
def hired(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list that receives how many samplers and learners runs start."""
    seen: list[tuple[str, int]] = []
    crew, ranked = ProcessCrew.__init__, RankedLearner.__init__

    def hire(
        self: ProcessCrew, builder: Any, num_groups: int, num_hosts: int, *args: Any, **more: Any
    ) -> None:
        seen.append(("samplers", num_hosts))
        crew(self, builder, num_groups, num_hosts, *args, **more)

    def rank(self: RankedLearner, learner: Any, updates: Any, copy: Any, number: int) -> None:
        seen.append(("learners", number))
        ranked(self, learner, updates, copy, number)

    monkeypatch.setattr(ProcessCrew, "__init__", hire)
    monkeypatch.setattr(RankedLearner, "__init__", rank)
    return seen


def metadata(run_dir: Path) -> Any:
    return json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "settings",
    [GROUPS, {"env_groups": 2}, {"learner_shards": 2}],
    ids=str,
)
@pytest.mark.parametrize("name", ["ppo, statistics", "dqn, priorities"])
def test_every_choice_gives_the_same_bytes(case, rows, costs, hired, name, settings):
    local = train(case(name, **settings)).run_dir
    assert hired == []
    for known, engine in ((LOCAL, "local"), (PROCESS, "process")):
        costs(known)
        chosen = train(case(name, **settings, engine="auto")).run_dir
        assert metadata(chosen)["engine"]["engine"] == engine
        assert bool(hired) == (engine == "process")
        assert_same_files(local, chosen, rows)
    assert_same_files(train(case(name, **settings, engine="process")).run_dir, chosen, rows)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        GROUPS,
        {"env_backend": "async", **GROUPS},
        {"env_backend": "native", "env_id": "CartPole-v1", "env_wrappers": (), **GROUPS},
        {"num_threads": 2, "learner_shards": 2},
    ],
    ids=str,
)
def test_a_measured_run_has_the_bytes_of_a_local_one(case, rows, settings):
    """The measurement is a real one, whatever it chooses."""
    notes = Notes()
    local = train(case(**settings)).run_dir
    auto = train(case(**settings, engine="auto"), console=notes).run_dir
    assert_same_files(local, auto, rows)
    assert notes.texts[0] == MEASURING
    assert notes.texts[1].startswith(f"engine auto chose {metadata(auto)['engine']['engine']}: ")
    assert "could not be measured" not in notes.texts[1]


def test_the_measurement_leaves_the_random_numbers_alone(case):
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)
    expected = random.random(), np.random.random(), torch.rand(1).item()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)
    place_run(case(engine="auto", **GROUPS), UserObjects(), Console())
    assert (random.random(), np.random.random(), torch.rand(1).item()) == expected


def test_the_notes_say_what_was_chosen_and_what_would_be_faster(case, costs):
    notes = Notes()
    costs(PROCESS)
    train(case(engine="auto", **GROUPS), console=notes)
    assert notes.texts[:3] == [
        MEASURING,
        "engine auto chose process: 1 sampler and 1 learner are expected to give 2.0 times the speed of one process",
        "no env_groups, lag or learner_shards would make this run faster on 2 cores",
    ]
    notes = Notes()
    run_dir = train(case(engine="auto"), console=notes).run_dir
    assert notes.texts[1:3] == [
        "engine auto chose local: env_groups 1, lag 0 and learner_shards 1 leave nothing to divide",
        "other settings are another experiment, but would be faster on 2 cores: --lag 1: 2.0 times as fast; "
        "--env-groups 2 --learner-shards 2: 2.0 times as fast; --env-groups 2: 1.3 times as fast; "
        "--learner-shards 2: 1.3 times as fast",
    ]
    recorded = metadata(run_dir)["engine"]
    assert recorded["advice"][0] == {"changes": {"lag": 1}, "speedup": 2.0}
    costs(LOCAL)
    notes = Notes()
    train(case(engine="auto", **GROUPS), console=notes)
    assert notes.texts[1] == (
        "engine auto chose local: 1 sampler and 1 learner are expected to give only 0.06 times the speed of one process"
    )


def test_nothing_is_measured_for_advice_that_nobody_reads(case, monkeypatch):
    def fail(*given: Any, **settings: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr(engine_choice, "measure_costs", fail)
    placement = place_run(case(engine="auto"), UserObjects(), Console())
    assert placement.record is not None
    assert placement.record["reason"].endswith("leave nothing to divide")


@pytest.mark.parametrize("settings", [{}, GROUPS, {**GROUPS, "num_samplers": 2}], ids=str)
def test_one_core_has_one_process(case, rows, monkeypatch, hired, settings):
    monkeypatch.setattr(engine_choice, "usable_cores", lambda: 1)
    monkeypatch.delattr(engine_choice, "measure_costs")  # there is nothing to find out
    notes = Notes()
    auto = train(case(engine="auto", **settings), console=notes).run_dir
    assert notes.texts[:2] == [
        "engine auto chose local: there is one core",
        "no env_groups, lag or learner_shards would make this run faster on 1 core",
    ]
    assert hired == []
    local = {name: value for name, value in settings.items() if name != "num_samplers"}
    assert_same_files(train(case(**local)).run_dir, auto, rows)


@pytest.mark.parametrize(
    ("settings", "samplers", "learners"),
    [
        ({"env_groups": 2, "num_samplers": 1, "lag": 1}, 1, 1),
        ({"env_groups": 4, "num_samplers": 4, "lag": 1}, 4, 1),
        ({"learner_shards": 4, "num_learners": 3}, 0, 3),
        ({"learner_shards": 2, "num_samplers": 0}, 0, 2),
        ({"env_groups": 2, "lag": "free"}, 1, 1),
    ],
    ids=str,
)
def test_processes_that_are_chosen_or_given(case, costs, hired, settings, samplers, learners):
    costs(PROCESS)
    config = case(engine="auto", **settings)
    placed = place_run(config, UserObjects(), Console()).config
    assert (num_hosts(placed), num_learners(placed)) == (samplers, learners)
    train(config)
    assert dict(hired) == ({"samplers": samplers} if samplers else {}) | (
        {"learners": learners} if learners > 1 else {}
    )


@pytest.mark.parametrize(("first", "then"), [(LOCAL, PROCESS), (PROCESS, LOCAL)], ids=["local", "process"])
def test_a_resumed_run_chooses_again(case, rows, costs, hired, first, then):
    whole = train(case(**GROUPS)).run_dir
    costs(first)
    paused = train(case(engine="auto", **GROUPS), callbacks=[StopAtCollect(96)])
    assert yaml.safe_load((paused.run_dir / "config.yaml").read_text(encoding="utf-8"))["engine"] == "auto"
    before, notes = metadata(paused.run_dir), Notes()
    costs(then)
    resume(paused.run_dir, console=notes)
    assert_same_files(whole, paused.run_dir, rows)
    after = metadata(paused.run_dir)
    assert after["engine"] == before["engine"]
    assert {before["engine"]["engine"], after["resumes"][0]["engine"]["engine"]} == {"local", "process"}
    assert len(hired) == 1
    assert notes.texts[1].startswith(f"engine auto chose {after['resumes'][0]['engine']['engine']}: ")
    assert not any("faster" in text for text in notes.texts[2:])  # it could not follow the advice


def test_another_run_starts_from_one(case, rows, costs):
    costs(PROCESS)
    first = train(case(**GROUPS)).run_dir
    there, here = (
        train(case(engine=engine, total_timesteps=384, **GROUPS), start_from=first).run_dir
        for engine in ("auto", "local")
    )
    assert metadata(there)["engine"]["engine"] == "process"
    assert_same_files(here, there, rows)


def test_a_run_that_names_its_engine_has_no_record(case):
    assert "engine" not in metadata(train(case()).run_dir)


class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Fails at its third step."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps > 2:
            raise ValueError("the simulator is gone")
        return super().step(action)


def never() -> Any:
    raise ValueError("there is no simulator")


@pytest.mark.filterwarnings("ignore:environment")
def test_an_environment_that_fails_is_reported_as_without_a_measurement(case, tmp_path):
    reports = []
    for engine in ("local", "auto"):
        config = case(env_wrappers=(), engine=engine, **GROUPS).with_overrides(
            output_dir=str(tmp_path / engine)
        )
        with pytest.raises(EnvironmentFault) as raised:
            train(config, factory=Broken, console=Notes())
        (run_dir,) = (tmp_path / engine).iterdir()
        reports.append(str(raised.value).replace(str(run_dir), ""))
        assert sorted(path.name for path in run_dir.iterdir()) == sorted(
            path.name for path in next((tmp_path / "local").iterdir()).iterdir()
        )
    assert reports[0] == reports[1]
    notes = Notes()
    place_run(config, UserObjects(factory=Broken), notes)
    assert notes.texts[1].startswith("engine auto chose local: the run could not be measured (")
    assert "the simulator is gone" in notes.texts[1]


def test_an_environment_that_cannot_be_built_leaves_no_folder(case, tmp_path):
    config = case(engine="auto", **GROUPS).with_overrides(output_dir=str(tmp_path / "out"))
    with pytest.raises(UserError, match="there is no simulator"):
        train(config, factory=never, console=Notes())
    assert not (tmp_path / "out").exists()


def test_a_loss_with_state_is_not_called_by_the_measurement(tiny):
    calls = {"auto": 0, "local": 0}
    models = []
    for engine in calls:

        def counted(*given: Any, engine: str = engine, **settings: Any) -> Any:
            calls[engine] += 1
            found = ppo.ppo_loss(*given, **settings)
            return found | {"loss": found["loss"] * calls[engine]}

        config = tiny("ppo", num_envs=4, engine=engine)
        run_dir = train(config, losses={"loss": counted}, console=Notes()).run_dir
        models.append(tensors(last(run_dir)))
    assert calls["auto"] == calls["local"] > 0
    assert models[0] == models[1]


class Counts:
    """A loss of a class that remembers how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, minibatch: Any, **settings: Any) -> Any:
        self.calls += 1
        return ppo.ppo_loss(minibatch, **settings)


def test_a_class_whose_loss_may_keep_state_is_not_measured(tiny):
    class Own(ppo.PPO):
        loss = Counts()

    notes = Notes()
    place_run(tiny("ppo", num_envs=4, engine="auto"), UserObjects(algorithm=Own), notes)
    assert Own.loss.calls == 0
    assert "could not be measured (its loss may keep state" in notes.texts[-1]


def test_warnings_of_an_environment_are_shown_by_the_run_itself(case):
    class Warns(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **settings: Any) -> Any:
            warnings.warn("an old simulator", stacklevel=1)
            return super().reset(**settings)

    def build() -> Any:
        return Warns(gymnasium.make("CartPole-v1"))

    config = case(env_wrappers=(), engine="auto", **GROUPS)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        place_run(config, UserObjects(factory=build), Console())
    assert seen == []
