"""Self-play against snapshots: in each game the policy that learns has one seat, and a snapshot of it the others."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rl_training.core.packing import PackedModule
from rl_training.core.protocols import Explorer
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.spaces.layout import take_rows
from rl_training.core.types import ActArrays, Array, ObsArray, Progress, State, StepArrays
from rl_training.policies.base import NetworkPolicy
from rl_training.policies.recurrent import RunningMemory
from rl_training.policies.snapshot_pool import GameResult, SnapshotPool


class SnapshotPolicies:
    """A policy for each snapshot that plays; one that no longer plays gives its place to the next."""

    def __init__(self, make_policy: Callable[[], NetworkPolicy]) -> None:
        """`make_policy` builds a policy like the one that learns."""
        self._make_policy = make_policy
        self._playing: dict[int, tuple[NetworkPolicy, PackedModule]] = {}
        self._idle: list[tuple[NetworkPolicy, PackedModule]] = []

    def load(self, weights: Mapping[int, Array]) -> None:
        """Have a policy for exactly these snapshots, given by number and packed."""
        for number in self._playing.keys() - weights.keys():
            self._idle.append(self._playing.pop(number))
        for number, packed in weights.items():
            if number not in self._playing:
                policy, module = self._idle.pop() if self._idle else self._new()
                module.unpack(packed)
                self._playing[number] = policy, module

    def of(self, number: int) -> NetworkPolicy:
        """Return the policy of a snapshot."""
        return self._playing[number][0]

    def _new(self) -> tuple[NetworkPolicy, PackedModule]:
        policy = self._make_policy()
        return policy, PackedModule(policy)


class SelfPlayExplorer:
    """Lets an explorer play one seat of each game, and snapshots of its policy the others.

    Rows [N] are ordered by seat, then by game. Seats and opponents are drawn when a game begins. A snapshot is taken
    before the first step and whenever a multiple of `update_every` timesteps is crossed; a game that has begun keeps
    its opponent. Rows of opponents are no transitions: they are set to be not valid before anything is recorded
    or counted, and `played` keeps that their actions were used.
    """

    def __init__(
        self,
        explorer: Explorer,
        policy: NetworkPolicy,
        pool: SnapshotPool,
        rng: np.random.Generator,
        *,
        num_seats: int,
        update_every: int,
        make_policy: Callable[[], NetworkPolicy],
    ) -> None:
        """`rng` draws seats, opponents and their actions; `make_policy` builds a policy like `policy`."""
        self.explorer, self.pool, self.rng, self.update_every = explorer, pool, rng, update_every
        self.columns = explorer.columns
        self._learner, self._policies = PackedModule(policy), SnapshotPolicies(make_policy)
        rows = policy.spec.num_envs
        self._shape = num_seats, rows // num_seats
        self.seats = np.zeros(self._shape[1], np.int64)
        """The learner's seat in each game."""
        self.opponents = np.full(self._shape[1], -1, np.int64)
        """The number of the snapshot that has the other seats; -1 before it is drawn."""
        self.is_opponent = np.zeros(rows, np.bool_)
        self._rows_of: list[tuple[int, Array]] = []
        """The rows of each snapshot that plays, by its number."""
        self._crossed = -1
        self._returns, self._ended = np.zeros(rows, np.float64), np.zeros(rows, np.bool_)
        self._played, self._acts = np.zeros(rows, np.bool_), np.ones(rows, np.bool_)
        self._memory = RunningMemory(policy, rows)
        """Of the opponents; that of the learner is the explorer's."""

    def act(self, obs: ObsArray, acted: ActArrays, progress: Progress) -> None:
        """Fill `acted` by the explorer, then the actions of opponents by their snapshots."""
        if progress.timesteps // self.update_every > self._crossed:
            self._crossed = progress.timesteps // self.update_every
            self.pool.add(self._learner.pack(), progress.timesteps)
            self.pool.release(set(self.opponents.tolist()))
        if self.opponents[0] < 0:
            self._draw(np.arange(len(self.opponents)))
        self.explorer.act(obs, acted, progress)
        has_memory = bool(self._memory.parts)
        for number, all_rows in self._rows_of:
            # a memory also sees what happens while its row waits
            rows = all_rows if has_memory else all_rows[self._acts[all_rows]]
            if not len(rows):
                continue
            state = tuple(part[rows] for part in self._memory.parts)
            policy = self._policies.of(number)
            action, after = policy.act(take_rows(obs, rows), state, deterministic=False, rng=self.rng)
            acted.action[rows] = action
            for part, new in zip(self._memory.parts, after, strict=True):
                part[rows] = new

    def after_step(self, step: StepArrays, acted: ActArrays) -> None:
        """Leave only the learner's rows valid; where a game is over, record its result and draw the next one."""
        self.explorer.after_step(step, acted)
        self._advance_memory(step)
        self._played[:] = step.valid
        step.played = self._played
        step.valid[self.is_opponent] = False
        step.num_valid = int(step.valid.sum())
        if step.acts is not None:
            self._acts[:] = step.acts
        self._returns += step.reward
        if step.any_ended:
            self._ended |= step.ended
            over = np.flatnonzero(self._ended.reshape(self._shape).all(axis=0))
            if len(over):
                self._record(over)
                self._draw(over)

    def end_collect(self, step: StepArrays, acted: ActArrays) -> None:
        """Fill last_value; nan for opponents, whose next actions are not the learner's."""
        self.explorer.end_collect(step, acted)
        acted.last_value[self.is_opponent] = np.nan

    def forget(self, rows: Sequence[int]) -> None:
        """Begin again in rows whose game does not continue; another one is played with the same seats."""
        self.explorer.forget(rows)
        self._memory.restart(list(rows))
        self._returns[list(rows)] = 0.0
        self._ended[list(rows)] = False
        self._acts[list(rows)] = True  # who begins the next game is not known yet

    def metrics(self) -> dict[str, float]:
        """Return the win rates and ratings of the pool."""
        return self.pool.metrics()

    def _advance_memory(self, step: StepArrays) -> None:
        """Reset the opponents' memory where an episode has ended, and before a row's first own action."""
        memory = self._memory
        if memory.parts:
            memory.restart(memory.starts & ~step.valid)
            memory.starts &= ~step.valid
            if step.any_ended:
                memory.restart(step.ended)

    def _record(self, games: Array) -> None:
        returns, ended = self._returns.reshape(self._shape), self._ended.reshape(self._shape)
        for game in games:
            seat = self.seats[game]
            result = GameResult.of(returns[seat, game], np.delete(returns[:, game], seat))
            self.pool.record(int(self.opponents[game]), result)
        returns[:, games] = 0.0
        ended[:, games] = False

    def _draw(self, games: Array) -> None:
        """Draw seats and opponents for the next games."""
        self.seats[games] = self.rng.integers(self._shape[0], size=len(games))
        self.opponents[games] = self.pool.draw(self.rng, len(games))
        self._seat_players()

    def _seat_players(self) -> None:
        """Find the rows of each snapshot, and load its weights."""
        in_use = set(self.opponents.tolist())
        self.pool.release(in_use)
        self._policies.load({number: self.pool.snapshots[number].weights for number in sorted(in_use)})
        by_seat = np.arange(self._shape[0])[:, None] != self.seats
        self.is_opponent[:] = by_seat.reshape(-1)
        self._rows_of = [
            (number, np.flatnonzero(by_seat & (self.opponents == number))) for number in sorted(in_use)
        ]

    def state_dict(self) -> State:
        """Return the explorer's own state, and beside it that of the pool and of the games in progress."""
        own = {
            "rng": generator_state(self.rng),
            "pool": self.pool.state_dict(),
            "crossed": self._crossed,
            "seats": self.seats.tolist(),
            "opponents": self.opponents.tolist(),
            "returns": self._returns.tolist(),
            "ended": self._ended.tolist(),
            "acts": self._acts.tolist(),
            "memory": self._memory.state_dict() if self._memory.parts else {},
        }
        return {**self.explorer.state_dict(), "self_play": own}

    def load_state_dict(self, state: State) -> None:
        """Restore it; a state without opponents has only the explorer's, and other numbers of games begin again."""
        self.explorer.load_state_dict(state)
        if "self_play" not in state:
            return
        own = state["self_play"]
        set_generator_state(self.rng, own["rng"])
        self.pool.load_state_dict(own["pool"])
        self._crossed = int(own["crossed"])
        for number, snapshot in self.pool.snapshots.items():
            if snapshot.weights.shape != (self._learner.nbytes,):
                raise ValueError(
                    f"snapshot {number} has {snapshot.weights.size} bytes instead of {self._learner.nbytes}"
                )
        if len(own["seats"]) != len(self.seats):
            return
        self.seats[:], self.opponents[:] = own["seats"], own["opponents"]
        self._returns[:], self._ended[:], self._acts[:] = own["returns"], own["ended"], own["acts"]
        if self._memory.parts:
            self._memory.load_state_dict(own["memory"])
        if self.opponents[0] >= 0:
            self._seat_players()
