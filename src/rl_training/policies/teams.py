"""Several policies in one game: each acts for the rows of its team."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from torch import nn

from rl_training.core.columns import Column
from rl_training.core.protocols import Explorer
from rl_training.core.types import ActArrays, EnvSpec, PolicyState, Progress, State, StepArrays, leaves
from rl_training.policies.base import NetworkPolicy


def team_rows(spec: EnvSpec) -> dict[str, slice]:
    """Return which rows of a step belong to each team."""
    assert spec.game is not None
    games = spec.num_envs // len(spec.game.seats)
    sizes = [games * len(team.seats) for team in spec.game.teams]
    starts = [0, *accumulate(sizes)]
    names = [team.name for team in spec.game.teams]
    return {name: slice(start, stop) for name, start, stop in zip(names, starts, starts[1:], strict=False)}


class TeamsPolicy(nn.Module):
    """The policies of all teams by name. Observations and actions are a dict and a tuple, with an entry for each team.

    The state of a policy with memory has a row for every agent, like that of any other policy.
    """

    def __init__(self, spec: EnvSpec, policies: Mapping[str, NetworkPolicy]) -> None:
        super().__init__()
        self.spec = spec
        self.teams = nn.ModuleDict(policies)

    def initial_state(self, rows: int) -> PolicyState:
        return tuple(part for policy in self.teams.values() for part in policy.initial_state(rows))  # type: ignore[operator]  # a policy

    def act(
        self, obs: Any, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Any, PolicyState]:
        """Return the actions of each team, and the next state."""
        actions, states, used, start = [], list[Any](), 0, 0
        for name, policy in self.teams.items():
            rows = slice(start, start + len(next(iter(leaves(obs[name])))[1]))
            start = rows.stop
            count = len(policy.initial_state(0))  # type: ignore[operator]  # a policy
            own = state[used : used + count]
            chosen, after = policy.act(
                obs[name], tuple(part[rows] for part in own), deterministic=deterministic, rng=rng
            )  # type: ignore[operator]
            for part, new in zip(own, after, strict=True):
                whole = part.copy()
                whole[rows] = new
                states.append(whole)
            used += count
            actions.append(chosen)
        return tuple(actions), tuple(states)


class TeamsExplorer:
    """The explorers of all teams by name."""

    def __init__(self, spec: EnvSpec, explorers: Mapping[str, Explorer]) -> None:
        self.explorers = dict(explorers)
        self._rows = team_rows(spec)

    @property
    def columns(self) -> Any:
        """The columns of each team's explorer."""
        found: dict[str, tuple[Column, ...]] = {name: each.columns for name, each in self.explorers.items()}
        return found

    def act(self, obs: Any, acted: ActArrays, progress: Progress) -> None:
        for name, explorer in self.explorers.items():
            explorer.act(obs[name], acted.teams[name], progress)

    def after_step(self, step: StepArrays, acted: ActArrays) -> None:
        for name, explorer in self.explorers.items():
            explorer.after_step(step.teams[name], acted.teams[name])

    def end_collect(self, step: StepArrays, acted: ActArrays) -> None:
        for name, explorer in self.explorers.items():
            explorer.end_collect(step.teams[name], acted.teams[name])

    def forget(self, rows: Sequence[int]) -> None:
        """Drop the memory of rows of the whole step."""
        for name, explorer in self.explorers.items():
            own = self._rows[name]
            explorer.forget([row - own.start for row in rows if own.start <= row < own.stop])

    def state_dict(self) -> State:
        return {name: explorer.state_dict() for name, explorer in self.explorers.items()}

    def load_state_dict(self, state: State) -> None:
        for name, explorer in self.explorers.items():
            explorer.load_state_dict(state[name])
