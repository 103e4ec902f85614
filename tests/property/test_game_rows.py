"""Rows of games tell the same stories as PettingZoo's own loops: random games of both kinds, and all policies."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.game_rows import Watcher, compare, game_stepper, games_of, plain_stories
from support.games import JointGame, Plot, TurnGame, plots

KINDS = pytest.mark.parametrize("kind", [JointGame, TurnGame])


def check(kind: Any, plot: Plot, policies: Any, draw: int, **options: Any) -> None:
    """Play some games, and compare every one that ended."""
    stepper = game_stepper(lambda **_: kind(plot), policies=policies, **options)
    watcher = Watcher(stepper, draw)
    roles = dict(zip(plot.agents, plot.roles, strict=True))
    found = 0
    for env, number, told in watcher.play(3 * plot.length):
        known = plain_stories(lambda: kind(plot), games_of(stepper)[env], 3, env, number)
        compare(stepper, told, known, roles)
        found += 1
    stepper.close()
    assert found >= 4, "two games in each of two environments"


@KINDS
@settings(max_examples=60, deadline=None)
@given(plot=plots(alike=True), draw=st.integers(0, 99), groups=st.integers(0, 2))
def test_agents_that_are_alike(kind: Any, plot: Plot, draw: int, groups: int) -> None:
    names = plot.agents
    split = {"first": names[1:], "second": names[:1]} if len(names) > 1 else "shared"
    check(kind, plot, ("shared", "each", split)[groups], draw)


@KINDS
@settings(max_examples=40, deadline=None)
@given(plot=plots(), draw=st.integers(0, 99))
def test_agents_that_differ(kind: Any, plot: Plot, draw: int) -> None:
    check(kind, plot, "each", draw)


@KINDS
@settings(max_examples=20, deadline=None)
@given(plot=plots(alike=True), draw=st.integers(0, 99))
def test_agents_that_watch_the_others(kind: Any, plot: Plot, draw: int) -> None:
    """Policies with memory also see the game while they wait."""
    check(kind, plot, "shared", draw, algo="recurrent_ppo")
