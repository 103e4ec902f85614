"""The columns of a recurrent state, and that its parts come back in order."""

import numpy as np

from rl_training.core.recurrent_state import EPISODE_STARTS, split_state, state_column, state_columns


def test_columns_follow_the_sizes_of_the_parts() -> None:
    starts, *parts = state_columns((4, 2))
    assert (starts.name, starts.type) == (EPISODE_STARTS, np.bool_)
    assert [part.shape for part in parts] == [(4,), (2,)]


def test_parts_come_back_in_order_whatever_the_order_of_the_columns() -> None:
    columns = {state_column(part): part for part in (10, *range(9, -1, -1))}
    others, state = split_state({"other": -1, **columns, EPISODE_STARTS: -2})
    assert others == {"other": -1, EPISODE_STARTS: -2}
    assert state == tuple(range(11))


def test_without_a_state_there_are_no_parts() -> None:
    assert split_state({EPISODE_STARTS: 1}) == ({EPISODE_STARTS: 1}, ())
    assert [column.name for column in state_columns(())] == [EPISODE_STARTS]
