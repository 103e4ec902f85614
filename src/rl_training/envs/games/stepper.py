"""Steps games, and hands out a row for each agent."""

from typing import Any

import numpy as np

from rl_training.core.games import Game
from rl_training.core.protocols import EnvStepper
from rl_training.core.rows import Rows
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.layout import observation_leaves, zeros_for
from rl_training.core.spaces.masks import MASK_KEY
from rl_training.core.spaces.stored import CRITIC_KEY, stored_space
from rl_training.core.types import Array, State, StepArrays, leaves
from rl_training.envs.games.joint_env import (
    ACTS,
    CRITIC,
    FLAGS,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    leaf_entry,
    mask_entry,
)


class TeamColumns:
    """Copies a team's observations from games [E, S, ...] to rows [S * E, ...], ordered by seat."""

    def __init__(self, game: Game, number: int, num_envs: int) -> None:
        team = game.teams[number]
        spec = team.spec(num_envs, game.critic_space)
        self.spec, self.size = spec, len(team.seats)
        self.adapter = ActionAdapter(spec.action_space)
        self.width = team.width
        self.obs, self.final_obs = (zeros_for(stored_space(spec), spec.num_envs) for _ in range(2))
        single = {"": leaf_entry(team.name, "")}
        names = {
            key: leaf_entry(team.name, key) for key in observation_leaves(team.observation_space)
        } or single
        if team.masked:
            names[MASK_KEY] = mask_entry(team.name)
        names[CRITIC_KEY] = CRITIC
        self._sources = [(key, names[key]) for key, _ in leaves(self.obs)]
        self._num_envs = num_envs

    def read(self, target: Any, source: dict[str, Array]) -> None:
        """Copy all rows."""
        arrays = dict(leaves(target))
        for key, name in self._sources:
            rows = arrays[key].reshape(self.size, self._num_envs, *arrays[key].shape[1:])
            rows[...] = source[name] if name == CRITIC else source[name].swapaxes(0, 1)

    def read_where(self, chosen: Array, source: dict[str, Array]) -> None:
        """Copy the final observations of the chosen rows [S, E]."""
        arrays = dict(leaves(self.final_obs))
        seats, envs = np.nonzero(chosen)
        for key, name in self._sources:
            rows = arrays[key].reshape(self.size, self._num_envs, *arrays[key].shape[1:])
            rows[seats, envs] = source[name][envs] if name == CRITIC else source[name][envs, seats]

    def joint(self, action: Array) -> Array:
        """Return actions [S * E, ...] in the policy's units as columns of the joint action [E, S * width]."""
        own = self.adapter.to_env(action).reshape(self.size, self._num_envs, self.width)
        return own.swapaxes(0, 1).reshape(self._num_envs, -1)


class GameStepper:
    """Rows are agents: `Rows` says of which game, and `valid` whether an agent's action was used.

    Agents that wait, are absent, or are dead have rows that are not valid. `inner` steps the games, each as one
    environment. Everything that a step needs is in the observations of `inner`, so its state is the whole state.
    """

    def __init__(self, inner: EnvStepper, game: Game) -> None:
        self.inner, self.game = inner, game
        envs = inner.spec.num_envs
        seats = len(game.seats)
        self.spec = game.spec(envs)
        self.rows = Rows(list(range(envs)) * seats, np.repeat(np.arange(seats), envs).tolist(), game.agents)
        self.notices = inner.notices
        self._teams = [TeamColumns(game, number, envs) for number in range(len(game.teams))]
        n, self._shape = seats * envs, (seats, envs)
        reward = np.zeros(n, np.float64)
        self.out = StepArrays(
            obs=self._observations("obs"),
            final_obs=self._observations("final_obs"),
            reward=reward,
            signal=reward,
            terminated=np.zeros(n, np.bool_),
            truncated=np.zeros(n, np.bool_),
            ended=np.zeros(n, np.bool_),
            valid=np.ones(n, np.bool_),
            cut=np.zeros(n, np.bool_),
            acts=np.ones(n, np.bool_),
            num_valid=n,
            info={keyword: np.full(n, np.nan) for keyword in inner.out.info},
        )
        if len(self._teams) > 1:
            self._add_teams()

    def _add_teams(self) -> None:
        """Add views of each team's rows."""
        out, start = self.out, 0
        for team, columns in zip(self.game.teams, self._teams, strict=True):
            rows = slice(start, start + columns.spec.num_envs)
            start = rows.stop
            names = ("reward", "terminated", "truncated", "ended", "valid", "cut", "acts", "success")
            views = {name: getattr(out, name)[rows] for name in names}
            out.teams[team.name] = StepArrays(obs=columns.obs, final_obs=columns.final_obs, **views)

    def _observations(self, kind: str) -> Any:
        own = {
            team.name: getattr(columns, kind)
            for team, columns in zip(self.game.teams, self._teams, strict=True)
        }
        return own if len(own) > 1 else next(iter(own.values()))

    @property
    def resumable(self) -> bool:
        return self.inner.resumable

    def reset(self) -> None:
        """Start a new game everywhere."""
        self.inner.reset()
        self._begin()

    def _begin(self) -> None:
        out = self.out
        out.terminated[:] = out.truncated[:] = out.ended[:] = False
        out.any_ended = False
        self._read_observations()

    def _read_observations(self) -> None:
        seen = self._seen(self.inner.out.obs)
        for columns in self._teams:
            columns.read(columns.obs, seen)
        self._rows_of(self.out.acts)[...] = seen[FLAGS][..., ACTS].T

    def _rows_of(self, by_row: Any) -> Any:
        """Return a column [N] as a view [S, E]."""
        return by_row.reshape(self._shape)

    @staticmethod
    def _seen(obs: Any) -> dict[str, Array]:
        assert isinstance(obs, dict)
        return obs

    def step(self, action: Any) -> None:
        """Step all games with the actions [N, ...] of all rows, or with those of each team, and overwrite `out`."""
        out, inner = self.out, self.inner.out
        actions = action if len(self._teams) > 1 else (action,)
        joint = np.concatenate(
            [columns.joint(own) for columns, own in zip(self._teams, actions, strict=True)], axis=1
        )
        assert out.acts is not None
        out.valid[:] = out.acts
        out.num_valid = int(out.valid.sum())
        self.inner.step(joint)
        seen = self._seen(inner.obs)
        told, flags = seen[REWARDS], seen[FLAGS]
        over = inner.ended
        if inner.any_ended:  # the current observations there are those of the next game
            final = self._seen(inner.final_obs)
            told, flags = told.copy(), flags.copy()
            told[over], flags[over] = final[REWARDS][over], final[FLAGS][over]
        self._rows_of(out.reward)[...] = np.ascontiguousarray(told).view(np.float64)[..., 0].T
        terminated, truncated = self._rows_of(out.terminated), self._rows_of(out.truncated)
        terminated[...], truncated[...] = flags[..., TERMINATED].T, flags[..., TRUNCATED].T
        np.logical_or(out.terminated, out.truncated, out=out.ended)
        out.any_ended = bool(out.ended.any())
        self._read_observations()
        if out.any_ended:
            self._read_final(over)
        for keyword, column in out.info.items():
            self._rows_of(column)[...] = inner.info[keyword]
        for team in out.teams.values():
            team.any_ended, team.num_valid = bool(team.ended.any()), int(team.valid.sum())
        if out.watched is not None:
            out.watched.actions = joint
            out.watched.infos = [] if inner.watched is None else inner.watched.infos

    def _read_final(self, over: Array) -> None:
        ended = self._rows_of(self.out.ended)
        self._rows_of(self.out.success)[...] = np.where(over, self.inner.out.success, np.nan)
        start = 0
        for columns in self._teams:
            own = ended[start : start + columns.size]
            start += columns.size
            if (own & over).any():
                columns.read_where(own & over, self._seen(self.inner.out.final_obs))
            if (own & ~over).any():
                columns.read_where(own & ~over, self._seen(self.inner.out.obs))

    def restart(self, envs: Array) -> None:
        """Begin new games in the environments of a mask [E]."""
        self.inner.restart(envs)
        self._read_observations()

    def restart_streams(self) -> None:
        self.inner.restart_streams()

    def change_seed(self, *stream: int) -> None:
        self.inner.change_seed(*stream)

    def statistics(self) -> list[Any]:
        return self.inner.statistics()

    def use_statistics(self, statistics: list[Any], *, frozen: bool = True) -> None:
        self.inner.use_statistics(statistics, frozen=frozen)

    def state_dict(self) -> State:
        return self.inner.state_dict()

    def resume(self, state: State) -> list[int]:
        """Restore the games; return those that could not be restored."""
        lost = self.inner.resume(state)
        self._begin()
        return lost

    def close(self) -> None:
        self.inner.close()
