"""`check_env` of games: every problem at once, what is worth knowing, and remarks about agents instead of rows."""

import os
from typing import Any

import numpy as np
import pytest
import tiny_games
from gymnasium import spaces

import rl_training
from rl_training.config import TrainConfig
from rl_training.experiment.environment_remarks import environment_remarks
from support.games import JointGame, Plot, Role, TurnGame

KINDS = pytest.mark.parametrize("kind", [JointGame, TurnGame])
TWO = Plot((Role(), Role()), length=6, order=(0, 1))


@KINDS
def test_a_good_game_is_told_its_facts(kind) -> None:
    roles = (Role(masks="observation"), Role(masks="info"), Role(actions=spaces.Discrete(4)))
    report = rl_training.check_env(lambda **_: kind(Plot(roles, length=6, order=(0, 1, 2))))
    assert report.ok, report
    assert not report.remarks
    facts = report.facts
    assert facts["kind"] == ("simultaneous" if kind is JointGame else "in turns")
    assert facts["agents"] == "agent_0, agent_1, agent_2"
    assert facts["policy shared"].startswith("plays agent_0, agent_1, agent_2; observations Dict")
    assert facts["policy shared"].endswith("agent: Discrete(3)); actions Discrete(4)")
    assert facts["masks"] == "of agent_0, in observations; of agent_1, in info"
    assert facts["state"] == "float32 of shape (3,)"
    assert facts["random games"] == "6 to 6 steps"
    assert facts["deterministic"] == "yes, under a seed"
    assert report.algorithms == ["ppo", "a2c", "dqn", "recurrent_ppo", "mappo"]


def test_policies_are_tried_as_they_are_given() -> None:
    roles = (Role(), Role(actions=spaces.Box(-1, 1, (2,), np.float32)))
    build = lambda **_: JointGame(Plot(roles))  # noqa: E731
    assert "cannot be padded" in rl_training.check_env(build).problems[0]
    report = rl_training.check_env(build, policies="each")
    assert report.ok
    assert report.facts["policy agent_1"].startswith("plays agent_1")
    assert "dqn" not in report.algorithms
    unknown = rl_training.check_env(build, policies={"a": ["agent_0", "agent_7"], "b": ["agent_1"]})
    assert "agent_7" in unknown.problems[0]


def test_a_game_itself_is_checked_but_for_determinism() -> None:
    report = rl_training.check_env(tiny_games.at_once())
    assert report.ok
    assert "determinism was not checked" in report.remarks[0]


def test_the_command_takes_policies(cli) -> None:
    found = cli(
        "check-env", "--env-factory", "tiny_games:turns", "--policies", "{a: [agent_1], b: [agent_0]}"
    )
    assert found.code == 0
    assert "policy b" in found.out
    assert cli("check-env", "pettingzoo://classic/connect_for_v3").code == 2


class Broken(JointGame):
    """Breaks many rules in one game."""

    def __init__(self) -> None:
        super().__init__(Plot((Role(), Role(masks="info"), Role(dies=2), Role()), length=6))

    def seen_by(self, agent: str) -> Any:
        return np.zeros(2, np.float32) if agent == "agent_0" else super().seen_by(agent)

    def allowed(self, agent: str) -> Any:
        return super().allowed(agent) * (self.clock < 2)

    def step(self, actions: Any) -> Any:
        seen, paid, terminations, truncations, infos = super().step(actions)
        paid.pop("agent_0")
        paid["agent_3"] = float("nan")
        paid["stranger"] = 1.0
        if self.clock == 4:
            self.agents.append("agent_2")
            seen["agent_2"] = self.seen_by("agent_2")
            self.role = lambda agent: Role()  # type: ignore[method-assign]  # it lives on
        return seen, paid, terminations, truncations, infos

    def take(self, agent: str, action: Any) -> None: ...


def test_every_problem_is_found_at_once() -> None:
    problems = rl_training.check_env(lambda **_: Broken()).problems
    for said in (
        "agent 'agent_0': it returned an observation of shape (2,), but its space has (3,)",
        "agent 'agent_0' acted, but rewards has no entry for it, at step 1 of game 0",
        "the action mask of agent 'agent_1', who acts next, allows no action, at step 2 of game 0",
        "agent 'agent_3' is paid nan; rewards must be finite",
        "agent 'stranger' of rewards is not in possible_agents",
        "agent 'agent_2' is back after it ended",
    ):
        assert sum(said in problem for problem in problems) == 1, (said, problems)
    assert len(problems) == 6, problems


class NoSpaces(JointGame):
    def observation_space(self, agent: str) -> Any:
        return None if agent == "agent_0" else super().observation_space(agent)

    def action_space(self, agent: str) -> Any:
        if agent == "agent_1":
            raise KeyError(agent)
        return super().action_space(agent)


class Clings(TurnGame):
    def step(self, action: Any) -> None:
        if action is not None:
            super().step(action)


class Raises(TurnGame):
    def step(self, action: Any) -> None:
        raise ValueError("no such move")


class BadReset(JointGame):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class FourParts(JointGame):
    def step(self, actions: Any) -> Any:
        return super().step(actions)[:4]


class NoLast:
    """Claims to be a game in turns."""

    possible_agents = ("agent_0",)

    def observation_space(self, agent: str) -> Any:
        return Role().observations

    def action_space(self, agent: str) -> Any:
        return Role().actions

    def agent_iter(self) -> Any: ...
    def reset(self, **options: Any) -> Any: ...
    def step(self, action: Any) -> Any: ...


class Numbered(NoLast):
    possible_agents = (0, 1)  # type: ignore[assignment]


class LargeMask(JointGame):
    def told(self, agent: str) -> Any:
        return {"action_mask": np.ones(5)}


class FarOff(TurnGame):
    def seen_by(self, agent: str) -> Any:
        return 9


class NobodyThere(TurnGame):
    def begin(self, seed: int | None) -> None:
        super().begin(seed)
        self.agents = []


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: NoSpaces(TWO), ["observation_space('agent_0') is None", "action_space('agent_1') raised KeyError"]),
        (lambda: Clings(TWO), ["agent 'agent_0' is still in agents after it ended"]),
        (lambda: Raises(TWO), ["step raised ValueError: no such move, at step 0 of game 0"]),
        (lambda: BadReset(TWO), ["reset does not return (observations, infos)"]),
        (lambda: FourParts(TWO), ["step does not return (observations, rewards"]),
        (NoLast, ["it has agent_iter, as games in turns, but no last, observe"]),
        (Numbered, ["possible_agents is (0, 1); list the names of all agents, as text"]),
        (lambda: LargeMask(TWO), ["agent 'agent_0' is one of shape (5,)", "agent 'agent_1' is one of shape (5,)"]),
        (
            lambda: FarOff(Plot((Role(spaces.Discrete(4)),))),
            ["agent 'agent_0' sees something outside the bounds of its space"],
        ),
        (lambda: NobodyThere(TWO), ["agents is empty after reset"]),
    ],
)  # fmt: skip
def test_problems_are_told_in_sentences(build, said) -> None:
    problems = rl_training.check_env(lambda **_: build()).problems
    assert len(problems) == len(said), problems
    for sentence, problem in zip(said, problems, strict=True):
        assert sentence in problem


class Counts:
    """What all games together did so far, which no seed brings back."""

    steps = 0


class Whim(JointGame):
    def seen_by(self, agent: str) -> Any:
        Counts.steps += 1
        return np.full(3, Counts.steps % 50, np.float32)


class OnlyHere(JointGame):
    home = os.getpid()

    def reset(self, **options: Any) -> Any:
        if os.getpid() != self.home:
            raise RuntimeError("not in this process")
        return super().reset(**options)


class Leaves(JointGame):
    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        if "agent_1" in self.agents and self.clock == 2:
            self.agents.remove("agent_1")
        return result


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Whim(TWO), "resuming a run may not be exact"),
        (lambda: OnlyHere(TWO), "does not run with env_backend async"),
        (lambda: Leaves(TWO), "agent 'agent_1' left without being terminated or truncated"),
        (lambda: JointGame(Plot((Role(),), length=10**6)), "5 of 5 random games did not end within 1,000 steps"),
        (
            lambda: JointGame(Plot((Role(spaces.Box(-1, 1, (3,), np.float32)),) * 2)),
            "",
        ),
    ],
)  # fmt: skip
def test_what_is_worth_knowing_is_remarked(build, said) -> None:
    report = rl_training.check_env(lambda **_: build())
    assert report.ok, report.problems
    assert len(report.remarks) == bool(said), report.remarks
    assert not said or said in report.remarks[0]


def test_a_time_limit_is_enough_of_an_end() -> None:
    report = rl_training.check_env(lambda **_: JointGame(Plot((Role(),), length=10**6)), max_episode_steps=20)
    assert not report.remarks
    assert report.facts["random games"] == "20 to 20 steps"


# remarks at the start of a run


class Rich(TurnGame):
    """The last move pays a thousand, and observations are large."""

    def payments(self) -> dict[str, float]:
        return dict.fromkeys(self.agents, 1000.0 * (self.clock == self.plot.length))

    def seen_by(self, agent: str) -> Any:
        return np.full(3, 5e3 if agent == "agent_1" else 1.0, np.float32)


def remarks(game: Any, **settings: Any) -> list[str]:
    config = TrainConfig(algo="ppo", env_id="Plot").with_overrides(**settings)
    return environment_remarks(config, lambda **_: game)


@pytest.mark.parametrize(
    ("policies", "where"), [("shared", "observations"), ("each", "observations (entry 'agent_1')")]
)
def test_remarks_are_about_what_agents_see_and_are_paid(policies, where) -> None:
    found = remarks(Rich(TWO), policies=policies)
    assert [text.partition(" reach ")[0] for text in found] == [where, "rewards"]
    assert "reach 5e+03" in found[0]
    assert "reach 1e+03" in found[1]


@KINDS
def test_a_game_of_small_numbers_is_not_remarked(kind) -> None:
    assert remarks(kind(TWO)) == []


@KINDS
def test_large_images_of_agents_are_remarked(kind) -> None:
    plot = Plot((Role(spaces.Box(0, 255, (120, 160, 3), np.uint8)),) * 2, order=(0, 1))
    (found,) = remarks(kind(plot))
    assert found.startswith("images of 120x160 are large")
    (found,) = remarks(kind(plot), policies={"artists": ["agent_0", "agent_1"]})
    assert found.startswith("images of 120x160 are large")
    assert remarks(kind(plot), preprocessing="image", image_size=84, grayscale=True) == []
