"""Where nothing that follows counts for what came before, though the episode goes on: a lost life."""

from typing import Any

import numpy as np

from rl_training.core.errors import EnvironmentFault
from rl_training.core.types import Array, StepArrays

CUT = "cut_bootstrap"
"""What an environment or wrapper puts into `info` as true where a step cuts the future off and the episode goes on."""


def write_cuts(out: StepArrays, info: dict[str, Any], step: int, *, same_step: bool) -> None:
    """A life lost in the step of a time limit is an end of the task; a dead row has nothing to cut.

    In same-step mode what was said of an episode's last step lies apart: `info` is already that of the next one.
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
    """Return which environments said that they cut [N]; anything but true or false is refused."""
    said = np.asarray(info.get(CUT, np.zeros(count, np.bool_)))
    if said.dtype != np.bool_ and said.shape == (count,):
        said = np.array([False if entry is None else entry for entry in said.tolist()])
    if said.dtype != np.bool_ or said.shape != (count,):
        raise EnvironmentFault(
            f"an environment gave info['{CUT}'] that is not true or false at step {step} of this run; "
            "mend the environment or wrapper that sets it"
        )
    return said


NAME = "is_success"


def read_success(out: StepArrays, info: dict[str, Any], *, same_step: bool) -> None:
    """Write 1 or 0 into `out.success` where an episode ended and said so, nan elsewhere.

    In same-step mode what was said of an episode's last step lies apart: `info` is already that of the next one.
    """
    out.success.fill(np.nan)
    told = info.get("final_info", {}) if same_step else info
    if NAME not in told:
        return
    by_whom = told.get(f"_{NAME}")
    for row in np.flatnonzero(out.ended):
        if by_whom is None or by_whom[row]:
            out.success[row] = float(bool(told[NAME][row]))
