"""Laps of an update: heard while somebody listens, and nothing otherwise."""

from rl_training.core.timing import heard_by, lap


def test_nobody_listens_and_nothing_happens():
    lap("forward")


def test_laps_are_heard_in_order_and_only_within():
    heard: list[str] = []
    lap("before")
    with heard_by(heard.append):
        lap("forward")
        lap("backward")
    lap("after")
    assert heard == ["forward", "backward"]


def test_the_listener_of_before_hears_again_even_after_an_error():
    outer: list[str] = []
    with heard_by(outer.append):
        try:
            with heard_by(lambda name: None):
                raise ValueError
        except ValueError:
            pass
        lap("forward")
    assert outer == ["forward"]
