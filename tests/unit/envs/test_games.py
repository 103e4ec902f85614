"""Games as one environment: masks, time limits, backends, resuming, pictures, and games that break the rules."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.core.seeding import episode_seed
from rl_training.core.spaces.masks import MASK_KEY
from rl_training.core.types import leaves
from rl_training.envs.games.stepper import GameStepper
from support.game_rows import Watcher, compare, game_stepper, games_of, plain_stories
from support.games import JointGame, Plot, Role, TurnGame

KINDS = pytest.mark.parametrize("kind", [JointGame, TurnGame])
POLICIES = pytest.mark.parametrize(
    "policies", ["shared", "each", {"a": ["agent_1"], "b": ["agent_0", "agent_2"]}]
)
CHOICES = spaces.Discrete(3)
DIFFERENT = Plot(
    (
        Role(spaces.Box(-50, 50, (3,), np.float32), CHOICES, "observation"),
        Role(spaces.Box(-50, 50, (2,), np.float32), spaces.Discrete(4, start=2), dies=4),
        Role(spaces.Box(-50, 50, (4,), np.float32), spaces.Discrete(2), comes=1, dies=5, is_truncated=True),
    ),
    length=7,
    order=(0, 1, 0, 0, 2, 1),
)
"""Agents that differ in everything: one dies, one comes late, one moves twice in a row."""


def play(stepper: GameStepper, plot: Plot, kind: Any, steps: int = 40) -> int:
    """Compare all games with PettingZoo's own loop; return how many there were."""
    found, roles = 0, dict(zip(plot.agents, plot.roles, strict=True))
    for env, number, told in Watcher(stepper).play(steps):
        compare(
            stepper, told, plain_stories(lambda: kind(plot), games_of(stepper)[env], 3, env, number), roles
        )
        found += 1
    stepper.close()
    return found


@KINDS
@POLICIES
def test_agents_that_differ_die_and_come_late(kind: Any, policies: Any) -> None:
    stepper = game_stepper(lambda **_: kind(DIFFERENT), policies=policies)
    assert play(stepper, DIFFERENT, kind) >= 10


@KINDS
@pytest.mark.parametrize("told", [(0, 1), (1,)])
def test_masks_in_info_are_used(kind: Any, told: tuple[int, ...]) -> None:
    """Actions that a mask forbids raise in the game; an agent that comes late may have a mask, too."""
    roles = tuple(
        Role(actions=CHOICES, masks="info" if number in told else "", comes=number // 2)
        for number in range(3)
    )
    plot = Plot((*roles[:2], replace(roles[2], masks="info")), length=9, order=(0, 1, 2))
    stepper = game_stepper(lambda **_: kind(plot))
    masked = {seat.name for seat in stepper.game.seats if seat.masked}
    assert masked == {f"agent_{number}" for number in (*told, 2)}
    for _ in Watcher(stepper).play(40):
        pass
    assert sum(len(actions) for _, actions in games_of(stepper)[0].played) > 30


@KINDS
def test_masks_that_are_not_wanted_are_not_read(kind: Any) -> None:
    plot = Plot((Role(masks="observation"), Role(masks="info")))
    stepper = game_stepper(lambda **_: kind(plot), use_action_masks="off")
    stepper.reset()
    assert MASK_KEY not in dict(leaves(stepper.out.obs))
    assert not any(seat.masked for seat in stepper.game.seats)


class RightAtTheEnd(TurnGame):
    """Two agents that take turns; a move earns its maker the number of the move."""

    def payments(self) -> dict[str, float]:
        return {agent: float(self.clock) * (agent == self.agent_selection) for agent in self.agents}


@pytest.mark.parametrize("limit", [3, 4])
def test_a_time_limit_pays_those_that_wait_for_their_turn(limit: int) -> None:
    """The one who waits has been paid for its last move, but would be told at its next turn, which never comes."""
    plot = Plot((Role(), Role()), length=100, order=(0, 1))
    stepper = game_stepper(lambda **_: RightAtTheEnd(plot), max_episode_steps=limit)
    games = [told for _, _, told in Watcher(stepper).play(12)]
    assert len(games) == 2 * (12 // limit)
    for told in games:
        paid = [[deed.paid for deed in told[agent].deeds] for agent in plot.agents]
        assert paid == [[1.0, 3.0], [2.0] if limit == 3 else [2.0, 4.0]]
        assert all(story.end == "truncated" for story in told.values())


def test_a_time_limit_shows_everybody_the_last_state() -> None:
    plot = Plot((Role(), Role()), length=100, order=(0, 1))
    stepper = game_stepper(lambda **_: TurnGame(plot), num_envs=1, max_episode_steps=3)
    *_, (_, _, told) = Watcher(stepper).play(3)
    start = told["agent_0"].deeds[0].seen[""][0]
    for number, agent in enumerate(plot.agents):
        assert told[agent].last_seen[""][0] == start + 3 * 4 + number


@KINDS
@POLICIES
def test_worker_processes_give_the_same_rows(kind: Any, policies: Any) -> None:
    plot = DIFFERENT
    here, there = (
        game_stepper(lambda **_: kind(plot), policies=policies, env_backend=backend, info_keywords=("score",))
        for backend in ("sync", "async")
    )
    for stepper in (here, there):
        stepper.reset()
    watcher = Watcher(here)
    for _ in range(30):
        actions = watcher.acting.actions()
        for stepper in (here, there):
            stepper.step(actions)
        for name in ("reward", "terminated", "truncated", "ended", "valid", "acts", "success"):
            rows = here.out.ended if name == "success" else ...
            known, found = getattr(here.out, name)[rows], getattr(there.out, name)[rows]
            np.testing.assert_array_equal(known, found, err_msg=name)
        np.testing.assert_array_equal(here.out.info["score"], there.out.info["score"])
        for part in ("obs", "final_obs"):
            everything = zip(flat(getattr(here.out, part)), flat(getattr(there.out, part)), strict=True)
            for (key, known), (_, found) in everything:
                np.testing.assert_array_equal(known, found, err_msg=key)
    here.close()
    there.close()


def flat(obs: Any) -> list[tuple[str, Any]]:
    """Return all arrays of one team's observations, or of several teams'."""
    found = []
    for key, part in obs.items() if isinstance(obs, dict) else [("", obs)]:
        found += [(f"{key}/{name}", array) for name, array in leaves(part)]
    return found


@KINDS
@POLICIES
def test_games_resume_where_they_were(kind: Any, policies: Any) -> None:
    first, second = (game_stepper(lambda **_: kind(DIFFERENT), policies=policies) for _ in range(2))
    list(Watcher(first, 1).play(17))
    saved = copy.deepcopy(first.state_dict())
    assert second.resume(saved) == []
    watcher = Watcher(first, 2)
    for stepper in (first, second):
        assert (stepper.out.acts == first.out.acts).all()  # type: ignore[attr-defined]
    for _ in range(25):
        actions = watcher.acting.actions()
        for stepper in (first, second):
            stepper.step(actions)
        for (_, known), (_, found) in zip(flat(first.out.obs), flat(second.out.obs), strict=True):
            np.testing.assert_array_equal(known, found)
        np.testing.assert_array_equal(first.out.reward, second.out.reward)
        np.testing.assert_array_equal(first.out.ended, second.out.ended)


@KINDS
def test_success_of_a_game_is_that_of_all_who_report_it(kind: Any) -> None:
    for count, success in ((1, 1.0), (2, 0.0)):  # agent_1 never succeeds
        stepper = game_stepper(lambda count=count, **_: kind(Plot((Role(),) * count, length=3)))
        stepper.reset()
        acting = Watcher(stepper).acting
        for _ in range(3):
            stepper.step(acting.actions())
        assert stepper.out.ended.all()
        assert (stepper.out.success == success).all()


@KINDS
def test_pictures_are_preprocessed_for_every_agent(kind: Any) -> None:
    plot = Plot((Role(spaces.Box(0, 255, (48, 40, 3), np.uint8)),) * 2, length=5, order=(0, 1))
    stepper = game_stepper(
        lambda **_: kind(plot), preprocessing="image", image_size=24, grayscale=True, frame_stack=2
    )
    stepper.reset()
    assert stepper.out.obs.shape == (4, 2, 24, 24)
    first = games_of(stepper)[0]
    assert isinstance(first, kind)
    acting = Watcher(stepper).acting
    stepper.step(acting.actions())
    row = 0 if kind is JointGame else 2  # in turns, agent_1 is next, and sees its first picture twice
    shown = first.seen_by("agent_0" if row == 0 else "agent_1")[0, 0, 0]
    newest, before = int(stepper.out.obs[row, 1, 0, 0]), int(stepper.out.obs[row, 0, 0, 0])
    assert newest == pytest.approx(int(shown), abs=1)
    assert newest - before == (4 if kind is JointGame else 0)


@KINDS
def test_a_central_critic_reads_the_state(kind: Any) -> None:
    from rl_training.envs.games.central import central_view

    game = kind(DIFFERENT)
    view = central_view(game, {}, "auto", "Plot")
    game.reset(seed=4)
    assert view.read({"agent_0": np.zeros(1)}).tolist() == game.state().tolist()


class SmallSeeds(TurnGame):
    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None and seed >= 2**31:
            raise RuntimeError("cannot cast")
        super().reset(seed, options)


def test_games_that_take_only_small_seeds_get_them() -> None:
    plot = Plot((Role(), Role()), length=2, order=(0, 1))
    stepper = game_stepper(lambda **_: SmallSeeds(plot))
    for _ in Watcher(stepper).play(40):
        pass
    seeds = [seed for seed, _ in games_of(stepper)[0].played]
    wanted = [episode_seed(3, 0, number) for number in range(21)]
    assert max(wanted) >= 2**31
    assert seeds == [0, *(seed % 2**31 for seed in wanted)], "the first game looks for masks"


# games that break the rules


class Plain(JointGame):
    def __init__(self) -> None:
        super().__init__(Plot((Role(), Role())))


def stepped(game: Any, steps: int = 8) -> None:
    stepper = game_stepper(game, num_envs=1)
    stepper.reset()
    acting = Watcher(stepper).acting
    for _ in range(steps):
        stepper.step(acting.actions())


class Deserted(Plain):
    def begin(self, seed: int | None) -> None:
        super().begin(seed)
        self.agents = []


class Silent(Plain):
    def reset(self, **options: Any) -> Any:
        seen, infos = super().reset(**options)
        return {"agent_0": seen["agent_0"]}, infos


class Strangers(Plain):
    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        self.agents.append("stranger")
        return result


class Returns(Plain):
    def ends(self) -> Any:
        return {agent: (agent == "agent_0" and self.clock == 1, False) for agent in self.agents}

    def late(self) -> list[str]:
        return ["agent_0"] if self.clock == 3 else []


class NotANumber(Plain):
    def payments(self) -> dict[str, float]:
        return {agent: float("nan") for agent in self.agents}


class TooLong(Plain):
    def seen_by(self, agent: str) -> Any:
        return np.zeros(4 if self.clock else 3, np.float32)


class TooShort(Plain):
    def seen_by(self, agent: str) -> Any:
        return np.zeros(2 if self.clock else 3, np.float32)


class NothingAllowed(JointGame):
    def __init__(self) -> None:
        super().__init__(Plot((Role(masks="observation"), Role(masks="info"))))

    def allowed(self, agent: str) -> Any:
        return super().allowed(agent) * (self.clock < 2 or agent != self.culprit)


class NothingAllowedInInfo(NothingAllowed):
    culprit = "agent_1"


class NothingAllowedInObservation(NothingAllowed):
    culprit = "agent_0"


class ForgetsMasks(NothingAllowed):
    culprit = ""

    def told(self, agent: str) -> Any:
        return super().told(agent) if self.clock == 0 else {}


class Clings(TurnGame):
    def __init__(self) -> None:
        super().__init__(Plot((Role(), Role(dies=2)), order=(0, 1)))

    def step(self, action: Any) -> None:
        if action is not None:
            super().step(action)


@pytest.mark.parametrize(
    ("game", "said"),
    [
        (Deserted, "no agents after reset"),
        (Silent, "gave agent 'agent_1' no observation"),
        (Strangers, "'stranger' that is not in possible_agents"),
        (Returns, "lets agent 'agent_0' act again after it ended"),
        (NotANumber, "paid agent 'agent_0' nan"),
        (TooLong, r"observation of shape \(4,\), but its space has \(3,\): that of agent 'agent_0'"),
        (TooShort, r"observation of shape \(2,\), but its space has \(3,\): that of agent 'agent_0'"),
        (NothingAllowedInInfo, "allows agent 'agent_1' no action"),
        (NothingAllowedInObservation, "allows agent 'agent_0' no action"),
        (ForgetsMasks, "gave agent 'agent_1' no mask"),
        (Clings, "keeps agent 'agent_1' in agents after it ended"),
    ],
)
def test_a_game_that_breaks_the_rules_is_named(game: Any, said: str) -> None:
    with pytest.raises((EnvironmentFault, UserError), match=said):
        stepped(lambda **_: game())


class PaysTheDead(Plain):
    def ends(self) -> Any:
        return {
            agent: ((agent == "agent_0" and self.clock == 1) or self.clock == 4, False)
            for agent in self.agents
        }

    def payments(self) -> dict[str, float]:
        return dict.fromkeys(self.plot.agents, 1.0)

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        result[1].update(self.payments())
        return result


def test_what_the_dead_are_paid_does_not_count_for_their_next_game() -> None:
    stepper = game_stepper(lambda **_: PaysTheDead(), num_envs=1)
    games = [told for _, _, told in Watcher(stepper).play(12)]
    assert len(games) == 3
    for told in games:
        assert [deed.paid for deed in told["agent_0"].deeds] == [1.0]
        assert told["agent_0"].before == 0.0
        assert [deed.paid for deed in told["agent_1"].deeds] == [1.0] * 4
