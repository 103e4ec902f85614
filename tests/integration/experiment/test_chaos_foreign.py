"""`make chaos-foreign` without its packages: what it would do, and what its report says."""

from types import ModuleType

import pytest

from loading import ROOT, load_file
from rl_training.cli.train import config_from_flags

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def foreign() -> ModuleType:
    load_file("scripts/chaos.py")
    return load_file("scripts/chaos_foreign.py")


def test_the_command_line_takes_every_scenario(foreign: ModuleType) -> None:
    configs = [
        config_from_flags(first, None, list(others), "chaos")[0]
        for first, *others in (scenario.flags for scenario in foreign.SCENARIOS)
    ]
    assert {config.algo for config in configs} == {"ppo", "a2c", "dqn", "sac", "td3", "recurrent_ppo"}
    assert {config.env_backend for config in configs} == {"sync", "async"}
    assert {config.preprocessing for config in configs} == {"none", "image"}
    titles = [scenario.title for scenario in foreign.SCENARIOS]
    assert len(titles) == len(set(titles)), "its runs are made in a folder of that name"


def test_its_environments_are_many_and_their_packages_are_pinned(foreign: ModuleType) -> None:
    killed = {foreign.env_of(scenario) for scenario in foreign.SCENARIOS}
    modules = {env_id.partition(":")[0] for env_id in killed}
    assert (len(killed) >= 10, len(modules) >= 4) == (True, True)
    assert foreign.PACKAGES.keys() == modules | {env.partition(":")[0] for env in foreign.NOT_KILLED}
    lines = (ROOT / "scripts" / "chaos_foreign_requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    assert set(foreign.PACKAGES.values()) <= pinned


def test_the_report_counts_kills_by_environment(foreign: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "version", lambda name: "1.2")
    monkeypatch.setattr(foreign, "said_of", lambda env_id: "it is not deterministic")
    pushes = [scenario for scenario in foreign.SCENARIOS if "PushT" in scenario.name]
    trials = [foreign.Trial(scenario, ["training"] * 3, ["any moment"] * 3) for scenario in pushes]
    text = foreign.report([*trials, foreign.Trial(foreign.SCENARIOS[0], ["writing"], ["writing"])])
    assert "| **all** | 7 |" in text
    assert "2 environments of 2 packages:" in text
    assert "| `gym_pusht:gym_pusht/PushT-v0` | gym-pusht 1.2 | 6 |" in text
    assert (
        "| `gymnasium_snake_game:Snake-v1` | gymnasium-snake-game 1.2 | it is not deterministic |"
    ) in text


def test_what_check_env_objects_to_is_quoted(foreign: ModuleType) -> None:
    printed = (
        "Snake-v1\n  actions  Discrete(4)\nremark: it is not deterministic: two differ\n"
        "remark: returns are large\nproblem: action space Tuple is not supported\nok\n"
    )
    assert list(foreign.objections(printed)) == [
        "it is not deterministic: two differ",
        "action space Tuple is not supported",
    ]
