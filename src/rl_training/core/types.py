"""The records that are passed between layers. Letters: `T` time, `N` environments, `B` batch.

Environments use NumPy and learners torch: on arrays of eight rows a NumPy call takes a third of the time of a torch
call, and on the CPU both share the memory of the buffers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from gymnasium import Space
from torch import Tensor, from_numpy
from torch import device as torch_device

if TYPE_CHECKING:
    from rl_training.core.games import Game

Array: TypeAlias = np.ndarray[Any, Any]
Info: TypeAlias = dict[str, Any]  # of an environment
ObsArray: TypeAlias = Array | dict[str, Array]  # nested spaces are flattened to keys such as "a/b"
Obs: TypeAlias = Tensor | dict[str, Tensor]
Numbers: TypeAlias = Any
"""An array on the CPU, or a tensor on any device, in code that handles both."""
Metrics: TypeAlias = dict[str, Tensor]  # 0-d, detached, wherever they were computed
StepMetrics: TypeAlias = dict[str, Numbers]
"""Metrics of one gradient step: numbers, or 0-d tensors on a device. `as_metrics` averages them over an update."""
State: TypeAlias = dict[str, Any]  # nested; leaves are tensors (safetensors) or plain data (JSON)
PartT = TypeVar("PartT")
PolicyState: TypeAlias = tuple[
    Array, ...
]  # hidden state of a policy, [N, ...] each; () for one without memory


@dataclass(frozen=True)
class Progress:
    """How far a run is. Replaced per collect and per update, never per step.

    A run has one clock: timesteps where something is collected, updates where nothing is. Budgets, cadences, schedules
    and the names of checkpoints count it.
    """

    timesteps: int = 0
    """Valid transitions, summed over environments."""
    updates: int = 0
    total_timesteps: int = 0
    total_updates: int | None = None
    """The budget of a run that collects nothing, such as one that learns from a dataset; its clock counts updates."""

    def advanced(self, *, timesteps: int = 0, updates: int = 0) -> "Progress":
        """Return the progress after additional timesteps and updates."""
        return replace(self, timesteps=self.timesteps + timesteps, updates=self.updates + updates)

    @property
    def counts_updates(self) -> bool:
        """Whether the clock counts updates instead of timesteps."""
        return self.total_updates is not None

    @property
    def clock(self) -> int:
        """The timesteps so far, or the updates if the run collects nothing."""
        return self.updates if self.counts_updates else self.timesteps

    @property
    def total(self) -> int:
        """The budget, by the same clock."""
        return self.total_timesteps if self.total_updates is None else self.total_updates

    @property
    def unit(self) -> str:
        """What the clock counts: `steps` or `updates`."""
        return "updates" if self.counts_updates else "steps"

    @property
    def done(self) -> bool:
        """Whether the budget is used up."""
        return self.clock >= self.total

    @property
    def fraction(self) -> float:
        """The part of the budget that is used, clamped to [0, 1]: the last rollout may overshoot."""
        clock, total = self.timesteps, self.total_timesteps
        if self.total_updates is not None:  # written out, because explorers ask at every step
            clock, total = self.updates, self.total_updates
        return min(clock / total, 1.0) if total > 0 else 1.0


@dataclass(frozen=True)
class EnvSpec:
    """What a policy needs to know about its environments."""

    observation_space: Space[Any]
    action_space: Space[Any]
    num_envs: int
    masked: bool = False
    """Whether each observation comes with a mask of allowed actions, which is not part of the space."""
    turns: bool = False
    """Whether rows may wait while others act: returns are over a row's own actions."""
    critic_space: Space[Any] | None = None
    """What only critics read, besides the observation."""
    game: "Game | None" = None
    """The agents of an environment with several of them: rows are agents."""


@dataclass(frozen=True)
class EpisodeStats:
    """A finished episode: raw rewards, without normalisation."""

    total_reward: float
    length: int
    seconds: float
    success: float | None = None
    """Whether it reached its goal, 1 or 0 (the mean over agents); None if the environment does not report it."""
    info: dict[str, float] = field(default_factory=dict)
    """The numbers of `info_keywords` that it reported, by name."""
    agents: dict[str, float] = field(default_factory=dict)
    """The return of each agent by name, in an environment with several."""


@dataclass(frozen=True)
class Collected:
    """The result of one call of a sampler, besides the recorded transitions."""

    timesteps: int
    """Valid transitions."""
    episodes: list[EpisodeStats]
    """Episodes that ended, in order."""
    info_names: frozenset[str] = frozenset()
    """Names of the entries of `info` so far; only if there are `info_keywords`."""
    ended_at: list[int] = field(default_factory=list)
    """The step of the collection in which each of the episodes ended."""


@dataclass
class WatchedStep:
    """What callbacks see of a step besides `StepArrays`."""

    actions: Array | None = None
    """The actions that the environments received [N, ...]."""
    infos: list[Info] = field(default_factory=list)
    """The `info` of each row's step; of an episode's last step where it ended."""


@dataclass
class StepArrays:
    """The outcome of a step; rows [N]; allocated once, overwritten in place by every step."""

    obs: ObsArray
    """What the policy sees next (the reset observation where an episode ended in same-step mode)."""
    final_obs: ObsArray
    """The true successor of the action; meaningful only where an episode ended."""
    reward: Array
    """The raw reward, for logs and evaluations."""
    terminated: Array
    """The task ended; takes precedence if both flags are set."""
    truncated: Array
    """A time limit ended the episode, but not the task: returns bootstrap from the final observation."""
    ended: Array
    """terminated | truncated."""
    valid: Array
    """Whether the action was used: false in the row of a next-step autoreset, which is not a transition, and for an
    agent that waits for its turn, is dead or has not appeared. What a waiting agent is paid is its reward all the same,
    and its episode may end."""
    cut: Array
    """Later rewards do not count for earlier actions, although the episode continues: a lost life. Never where `ended`.

    It stops advantages and n-step returns like a termination, and resets neither environment, statistics nor memory.
    """
    any_ended: bool = False
    any_cut: bool = False
    num_valid: int = 0
    signal: Array = None  # type: ignore[assignment]  # filled in: by default it is `reward`
    """The reward that is learned from: the array `reward` itself, unless rewards are clipped for learning."""
    success: Array = None  # type: ignore[assignment]  # filled in
    """Whether an episode that ended reached its goal, 1 or 0; nan if that is not reported."""
    info: dict[str, Array] = field(default_factory=dict)
    """The numbers of `info_keywords` [N] by keyword; nan where this step reports none."""
    info_names: set[str] = field(default_factory=set)
    """Names of the entries of `info` so far; only if there are `info_keywords`."""
    watched: WatchedStep | None = None
    """Set to have every step write it, for callbacks; None costs nothing."""
    acts: Array | None = None
    """Whether the next action of each row will be used; None if all are."""
    played: Array | None = None
    """Whether the action was used, also where an opponent chose it, so that the row is not valid; None without them."""
    teams: "dict[str, StepArrays]" = field(default_factory=dict)
    """Views of the rows of each team, where several policies play; `obs` and `final_obs` are then dicts by team."""

    def __post_init__(self) -> None:
        signal: Array | None = self.signal
        self.signal = self.reward if signal is None else signal
        success: Array | None = self.success
        self.success = np.full(len(self.reward), np.nan) if success is None else success


@dataclass
class ActArrays:
    """The outputs of an explorer; rows [N]; allocated once, overwritten in place."""

    action: Array
    """As stored: unclipped, in the policy's units. `ActionAdapter` rescales and clips a copy."""
    logprob: Array
    value: Array
    final_value: Array
    """V(final_obs) where truncated, 0 elsewhere."""
    last_value: Array
    """V(obs) after the last step of a collect; nan where the row's next action will not be used."""
    extra: dict[str, Array] = field(default_factory=dict)
    """Additional columns that the explorer declares; they are stored and are part of the batches."""
    teams: "dict[str, ActArrays]" = field(default_factory=dict)
    """The outputs for each team, where several policies play; `action` is then a tuple with the actions of each."""


@dataclass(frozen=True)
class UpdateResult:
    """The result of one call of a learner's update."""

    metrics: Metrics
    """Means over its updates."""
    priorities: Tensor | None = None
    """New errors of the rows [B], for prioritized replay."""
    updates: int = 1
    """How many batches it learned from."""


@dataclass
class Evaluation:
    """One evaluation: raw return and length of every episode."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)
    """1 or 0 for each episode that reports `is_success`."""
    num_capped: int = 0
    """Number of episodes that were cut off; their returns are those up to the cut."""
    infos: list[dict[str, float]] = field(default_factory=list)
    """The numbers of `info_keywords` of every episode, by name."""
    agents: list[dict[str, float]] = field(default_factory=list)
    """The return of each agent by name, of every episode; empty in environments with a single agent."""
    outcomes: list[str] = field(default_factory=list)
    """Of games against another player: `win`, `draw` or `loss` of every episode. Returns are those of the learner."""
    sides: list[str] = field(default_factory=list)
    """The side that the learner had in each of these games."""

    def summary(self) -> dict[str, Any]:
        """Return `mean_reward`, `std_reward`, `mean_ep_length`, counts, episodes and, if reported, `success_rate`.

        `info/NAME` is the mean of a number of `info_keywords` over the episodes that reported it, and
        `mean_reward/NAME` that of an agent's return. Games against another player have `win_rate`, `draw_rate`,
        `loss_rate`, `score` (wins and half the draws) and `win_rate/SIDE`.
        """
        success = {"success_rate": float(np.mean(self.successes))} if self.successes else {}
        return {
            "mean_reward": float(np.mean(self.returns)),
            "std_reward": float(np.std(self.returns)),
            "mean_ep_length": float(np.mean(self.lengths)),
            "num_episodes": len(self.returns),
            "num_capped_episodes": self.num_capped,
            "returns": self.returns,
            "lengths": self.lengths,
            **success,
            **info_means(self.infos),
            **agent_means(self.agents, "mean_reward"),
            **outcome_rates(self.outcomes, self.sides),
        }


def info_means(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over the episodes that reported it, as `info/NAME`."""
    found: dict[str, list[float]] = {}
    for info in infos:
        for name, number in info.items():
            found.setdefault(f"info/{name}", []).append(number)
    return {name: float(np.mean(found[name])) for name in sorted(found)}


def agent_means(returns: Iterable[Mapping[str, float]], name: str) -> dict[str, float]:
    """Return the mean return of each agent over episodes, as `name/AGENT`."""
    by_agent: dict[str, list[float]] = {}
    for episode in returns:
        for agent, total in episode.items():
            by_agent.setdefault(f"{name}/{agent}", []).append(total)
    return {agent: float(np.mean(totals)) for agent, totals in by_agent.items()}


def outcome_rates(outcomes: Sequence[str], sides: Sequence[str]) -> dict[str, float]:
    """Return how often the learner won, drew and lost, in total and won by side; nothing without games.

    >>> outcome_rates(["win", "draw"], ["a", "b"])["score"]
    0.75
    """
    if not outcomes:
        return {}
    counts = {name: outcomes.count(name) for name in ("win", "draw", "loss")}
    found = {f"{name}_rate": count / len(outcomes) for name, count in counts.items()}
    found["score"] = (counts["win"] + counts["draw"] / 2) / len(outcomes)
    for side in dict.fromkeys(sides):
        own = [outcome for outcome, its in zip(outcomes, sides, strict=True) if its == side]
        found[f"win_rate/{side}"] = own.count("win") / len(own)
    return found


def leaves(obs: ObsArray) -> Iterator[tuple[str, Array]]:
    """Iterate over the arrays of an observation with their flattened keys ("" for a plain one)."""
    if isinstance(obs, dict):
        yield from obs.items()
    else:
        yield "", obs


def joined(parts: dict[str, PartT]) -> PartT | dict[str, PartT]:
    """Return parts by flattened key as an observation; a single part with the key "" as a plain array."""
    return parts[""] if len(parts) == 1 and "" in parts else parts


def tensors_of(obs: ObsArray) -> Obs:
    """Return tensors, of the same memory where its layout allows."""
    if isinstance(obs, dict):
        return {key: from_numpy(np.ascontiguousarray(array)) for key, array in obs.items()}
    return from_numpy(np.ascontiguousarray(obs))


def moved(obs: Obs, device: torch_device) -> Obs:
    """Return observations on a device; on the one they are on, the same memory."""
    return {key: part.to(device) for key, part in obs.items()} if isinstance(obs, dict) else obs.to(device)
