"""Entries of `info` that training uses: `cut_bootstrap` (such as a lost life) and `is_success`."""

from typing import Any

import numpy as np

from rl_training.core.errors import EnvironmentFault
from rl_training.core.types import Array, StepArrays

CUT = "cut_bootstrap"
"""True in `info` if a step stops bootstrapping although the episode continues."""


def write_cuts(out: StepArrays, info: dict[str, Any], step: int, *, same_step: bool) -> None:
    """Write the cuts; one in the step of a time limit counts as a termination, and invalid rows have none.

    In same-step mode the entry of an episode's last step is in `final_info`, as `info` belongs to the next episode.
    """
    out.cut[:] = _flags(info, len(out.cut), step)
    if same_step and out.any_ended:
        np.copyto(out.cut, _flags(info.get("final_info", {}), len(out.cut), step), where=out.ended)
    out.cut &= out.valid
    out.terminated |= out.cut & out.truncated
    out.truncated &= ~out.cut
    out.cut &= ~out.ended
    out.any_cut = bool(out.cut.any())


def _flags(info: dict[str, Any], count: int, step: int) -> Array:
    """Return the entry `cut_bootstrap` [N]; raise if it is not a bool."""
    said = np.asarray(info.get(CUT, np.zeros(count, np.bool_)))
    if said.dtype != np.bool_ and said.shape == (count,):
        said = np.array([False if entry is None else entry for entry in said.tolist()])
    if said.dtype != np.bool_ or said.shape != (count,):
        raise EnvironmentFault(
            f"an environment returned an info['{CUT}'] that is not a bool at step {step} of this run; "
            "fix the environment or wrapper that sets it"
        )
    return said


NAME = "is_success"


def read_success(out: StepArrays, info: dict[str, Any], *, same_step: bool) -> None:
    """Write 1 or 0 to `out.success` for episodes that ended with an entry `is_success`, nan elsewhere."""
    out.success.fill(np.nan)
    told = info.get("final_info", {}) if same_step else info
    if NAME not in told:
        return
    by_whom = told.get(f"_{NAME}")
    for row in np.flatnonzero(out.ended):
        if by_whom is None or by_whom[row]:
            out.success[row] = float(bool(told[NAME][row]))
