"""Evaluates an agent on a dataset, without an environment: its estimated return, and how far it is from the data."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.fitted_evaluation import Act, FitSettings, FittedValues, returns_to_go
from rl_training.core.errors import UserError
from rl_training.core.one_thread import one_thread
from rl_training.core.seeding import (
    EVALUATION_ACTIONS,
    callers_generators_kept,
    derived_seed,
    numpy_generator,
)
from rl_training.core.spaces.layout import space_text
from rl_training.core.types import Array, ObsArray
from rl_training.datasets.dataset import Dataset
from rl_training.experiment.agent import Agent
from rl_training.experiment.checkpoints.format import SPACES
from rl_training.experiment.run_data import open_named
from rl_training.policies.base import NetworkPolicy

DEFAULT_GAMMA = 0.99
"""Discount factor for agents whose algorithm has none."""
RESAMPLES = 2_000
SAMPLES_AT_START = 16
"""Actions per start state over which the value of a stochastic policy is averaged."""
MAX_COMPARED = 20_000
REPORT_EVERY = 100
MAX_REFITS = 100


@dataclass(frozen=True)
class DatasetEvaluation:
    """What a dataset tells of an agent. Returns are discounted; intervals are of 95%."""

    dataset: str
    num_episodes: int
    estimate: float
    """Estimated discounted return of the agent, from the start states of the dataset."""
    low: float
    high: float
    interval_from: str
    """`start states`: only they are resampled, for one fit; `refits`: fitted again to resampled episodes."""
    num_refits: int
    behaviour: float
    """Mean discounted return of the recorded episodes."""
    behaviour_low: float
    behaviour_high: float
    agreement: float
    """Part of the recorded discrete actions that are the agent's; for continuous ones, see `distance`."""
    distance: float
    """Mean distance per component between the agent's actions and the recorded ones, in [-1, 1]; nan if discrete."""
    gamma: float
    num_updates: int
    deterministic: bool
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what is not defined is left out."""
        return {name: value for name, value in asdict(self).items() if value == value}  # nan is not itself


def evaluate_on_dataset(
    agent: Agent,
    dataset: Dataset | str,
    *,
    num_updates: int = FitSettings.num_updates,
    refits: int = 0,
    gamma: float | None = None,
    deterministic: bool | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DatasetEvaluation:
    """Fit the values of an agent's actions to a dataset, and return the estimate beside the recorded returns.

    With `refits`, the interval is that of as many fits, each to episodes drawn with replacement; all are fitted at
    once, in about as many times the seconds. Otherwise there is one fit, and only its start states are resampled.
    """
    data = open_named(dataset) if isinstance(dataset, str) else dataset
    policy = _checked(agent, data, num_updates, refits)
    known = _gamma_of(agent, gamma)
    chosen = agent.config.eval_deterministic if deterministic is None else deterministic
    rng = numpy_generator(seed, EVALUATION_ACTIONS)

    def act(obs: ObsArray) -> Array:
        rows = len(obs) if isinstance(obs, np.ndarray) else len(next(iter(obs.values())))
        return policy.act(obs, policy.initial_state(rows), deterministic=chosen, rng=rng)[0]

    draws = np.random.default_rng(derived_seed(seed, EVALUATION_ACTIONS, 1))
    resampled = [_resampled(data.num_episodes, draws) for _ in range(refits)]
    weights = np.stack([np.ones(data.num_episodes), *resampled]).astype(np.float32)
    settings = FitSettings(num_updates=num_updates)
    with one_thread(), callers_generators_kept():
        fitted = FittedValues(
            policy, act, data, weights, gamma=known, settings=settings, seed=seed, deterministic=chosen
        )
        for done, _ in enumerate(fitted.fit(), start=1):
            if done % REPORT_EVERY == 0 or done == num_updates:
                progress(done, num_updates)
        starts = data.obs_rows(data.ends - data.lengths)
        values = fitted.values(data.observations(starts), 1 if chosen else SAMPLES_AT_START)
        agreement, distance = _compared(act, data, draws)
    estimate = float(values[0].mean())
    refitted = [float(np.average(own, weights=each)) for own, each in zip(values[1:], resampled, strict=True)]
    low, high = _interval_of_refits(estimate, refitted) if refits else _interval(values[0], draws)
    recorded = returns_to_go(data, known)[data.ends - data.lengths]
    behaviour_low, behaviour_high = _interval(recorded, draws)
    return DatasetEvaluation(
        data.name, data.num_episodes, estimate, low, high, "refits" if refits else "start states", refits,
        float(recorded.mean()), behaviour_low, behaviour_high, agreement, distance, known, num_updates, chosen, seed,
    )  # fmt: skip


def _checked(agent: Agent, data: Dataset, num_updates: int, refits: int) -> NetworkPolicy:
    """Return the policy; raise if it cannot be evaluated on the dataset."""
    for name in SPACES:
        own, recorded = (space_text(getattr(each, name)) for each in (agent.spec, data))
        if own != recorded:
            raise UserError(f"the agent has {name} {own}, but dataset '{data.name}' has {recorded}")
    if num_updates < 1:
        raise UserError(f"num_updates is {num_updates}; use 1 or more")
    if refits and not 2 <= refits <= MAX_REFITS:
        raise UserError(f"refits is {refits}; use 0, or 2 to {MAX_REFITS}")
    policy = agent.policy
    if not isinstance(policy, NetworkPolicy):
        raise UserError(
            f"{type(policy).__name__} is not a NetworkPolicy, whose inputs the values are fitted to"
        )
    if policy.initial_state(1):
        raise UserError(
            "the agent has a memory, and its values depend on more than an observation; evaluate it in an environment"
        )
    return policy


def _gamma_of(agent: Agent, given: float | None) -> float:
    gamma = getattr(agent.config.algorithm, "gamma", DEFAULT_GAMMA) if given is None else given
    if not 0.0 <= gamma <= 1.0:
        raise UserError(f"gamma is {gamma:g}; use 0 to 1")
    return float(gamma)


def _resampled(count: int, rng: np.random.Generator) -> Array:
    """Return how often each of `count` episodes is drawn, with replacement."""
    return np.bincount(rng.integers(0, count, count), minlength=count).astype(np.float64)


def _interval(values: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Return the 95% interval of a mean by resampling its values."""
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def _interval_of_refits(estimate: float, refitted: list[float]) -> tuple[float, float]:
    """Return the 95% interval around an estimate by the deviation of refits, with Student's factor for their number."""
    half = _student(len(refitted) - 1) * float(np.std(refitted, ddof=1))
    return estimate - half, estimate + half


def _student(freedom: int) -> float:
    """Return the 97.5% quantile of Student's distribution: exact for few degrees of freedom, else an expansion."""
    known = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    if freedom <= len(known):
        return known[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _compared(act: Act, data: Dataset, rng: np.random.Generator) -> tuple[float, float]:
    """Return agreement and distance of the agent's actions and the recorded ones, of at most MAX_COMPARED steps."""
    steps = np.arange(data.num_steps)
    if len(steps) > MAX_COMPARED:
        steps = np.sort(rng.choice(data.num_steps, MAX_COMPARED, replace=False))
    own, recorded = act(data.observations(data.obs_rows(steps))), data.actions[steps]
    if isinstance(data.action_space, spaces.Box):
        return float("nan"), float(np.abs(own - recorded).mean())
    same = (own == recorded).reshape(len(steps), -1).all(1)
    return float(same.mean()), float("nan")
