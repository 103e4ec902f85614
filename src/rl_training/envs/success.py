"""Whether an episode reached its goal, where environments say so by `info["is_success"]` at its end."""

from typing import Any

import numpy as np

from rl_training.core.types import StepArrays

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
