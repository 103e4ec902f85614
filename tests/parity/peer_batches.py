"""The package and stable-baselines3 on the same batches: how far apart the same mathematics ends.

The peer's weights are copied into the package, both learn from the same rows with the same noise, several times over,
and the largest difference of any parameter and of any loss is what rounding in float32 leaves. `make parity` writes the
differences to `results/parity_batches.md`; `test_peer_batches.py` holds them to a tolerance about ten times as large.

Where the two define things alike there is nothing to do: a value loss without a factor of one half in PPO and A2C,
with it in SAC; Adam's `eps` of 1e-5 in PPO and 1e-8 elsewhere; RMSprop's `eps` outside of the root; advantages
normalised per minibatch with 1e-8 added to the deviation. Where they do not, the comparison says how it aligns them:

- shuffles and noise: both sides are given the same numbers;
- PPO's value clipping: see `PeerLearner.fill_rollout`;
- SAC's log-probability: the peer adds 1e-6 inside of a logarithm, which is set to 0 here; with state-dependent
  exploration the 1e-6 that both add to variances stays;
- time limits: the peer adds the discounted value of the last observation to the reward, the package keeps it apart;
- a target copy is due per environment step there and, as set here, per update on our side: one update is one step.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from our_parts import OurCollection, OurLearner
from parity_continuous import Tensors, cloned
from peer_parts import (
    VERSION,
    KeepRollouts,
    PeerLearner,
    Recorded,
    make_peer,
    peer_tensors,
    recorded_episodes,
    sac_noise,
    sde_noise,
    td3_noise,
)
from torch import Tensor

REPORT = Path(__file__).parents[2] / "results" / "parity_batches.md"
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
CHOICES, MOTORS = spaces.Discrete(4), spaces.Box(-1.0, 1.0, (2,), np.float32)
SIZES = [24, 16]
NUM_ENVS, NUM_STEPS = 2, 32
BATCH = 64


@dataclass(frozen=True)
class Found:
    """How far apart two learners were at most."""

    updates: int
    parameters: float
    """Largest difference of any parameter, after any update."""
    losses: float
    """Largest difference of any loss of any update."""
    moved: float
    """Least of the largest changes of each network: that which does not learn compares nothing."""


@dataclass(frozen=True)
class Seen:
    """How differently two sides remember the same episodes."""

    steps: int
    apart: float
    """Largest difference of any number."""
    spread: float
    """Standard deviation of what was compared: that which is always the same compares nothing."""


def _copy(peer: Tensors, ours: Tensors) -> Tensors:
    """Give the package the peer's numbers; return a copy of them."""
    assert peer.keys() == ours.keys()
    for name, tensors in peer.items():
        for mine, theirs in zip(ours[name], tensors, strict=True):
            assert mine.shape == theirs.shape
            mine.copy_(theirs)
    return cloned(peer)


def worst(numbers: Iterable[Any]) -> float:
    """Return the largest; not a number if any of them is none, which `max` would pass over."""
    return float(np.max([float(number) for number in numbers]))


def _largest(one: Tensors, other: Tensors) -> dict[str, float]:
    """Return the largest difference within each group that has any tensors."""
    return {
        name: worst((a - b).abs().max() for a, b in zip(tensors, other[name], strict=True))
        for name, tensors in one.items()
        if tensors
    }


class _Differences:
    """Follows two learners from equal numbers on."""

    def __init__(self, peer: PeerLearner, ours: OurLearner) -> None:
        self.peer, self.ours = peer, ours
        self.start = _copy(peer.tensors, ours.tensors)
        self.updates, self.parameters, self.losses = 0, 0.0, 0.0

    def note(self, theirs: dict[str, float], mine: dict[str, float], names: dict[str, str]) -> None:
        """Compare after an update; `names` maps the peer's losses to ours."""
        self.updates += 1
        apart = _largest(self.peer.tensors, self.ours.tensors)
        self.parameters = worst([self.parameters, *apart.values()])
        self.losses = worst([self.losses, *(abs(theirs[name] - mine[own]) for name, own in names.items())])

    def found(self) -> Found:
        """Return the sum of it."""
        moved = _largest(self.ours.tensors, self.start)
        return Found(self.updates, self.parameters, self.losses, min(moved.values()))


ON_POLICY: dict[str, Any] = {"gamma": 0.97, "gae_lambda": 0.9, "vf_coef": 0.7, "ent_coef": 0.02}


def rollouts(algo: str, actions: spaces.Space[Any], *, clip_vloss: bool = False, **settings: Any) -> Found:
    """PPO or A2C on random rollouts; `settings` have the same names on both sides."""
    settings = (
        ON_POLICY | {"max_grad_norm": 0.5, "learning_rate": 3e-3, "normalize_advantage": True} | settings
    )
    theirs, ours = dict(settings), dict(settings)
    losses = {"value_loss": "value_loss", "entropy_loss": "entropy_loss"}
    if algo == "ppo":
        theirs |= {"batch_size": 16, "n_epochs": 3, "clip_range": 0.15}
        ours |= {"batch_size": 16, "update_epochs": 3, "clip_coef": 0.15, "clip_vloss": clip_vloss}
        theirs |= {"clip_range_vf": 0.15} if clip_vloss else {}
        losses |= {"policy_gradient_loss": "policy_loss", "clip_fraction": "clip_fraction"}
    else:
        losses |= {"policy_loss": "policy_loss"}
    peer = PeerLearner(
        algo, OBSERVATIONS, actions, num_envs=NUM_ENVS, sizes=SIZES, n_steps=NUM_STEPS, **theirs
    )
    peer.shift()
    package = OurLearner(
        algo, OBSERVATIONS, actions, num_envs=NUM_ENVS, num_steps=NUM_STEPS, hidden_sizes=SIZES, **ours
    )
    differences = _Differences(peer, package)
    for update in range(6):
        rows = peer.fill_rollout(value_changes=0.4 if clip_vloss else 0.0)
        logged = peer.update_on_rollout(shuffle_seed=update)
        metrics = package.update_on_rollout(rows, np.random.RandomState(update))
        differences.note(logged, metrics, losses)
        assert algo != "ppo" or 0.1 < metrics["clip_fraction"] < 0.9, (
            "ratios inside and outside must be compared"
        )
    return differences.found()


def random_rows(rng: np.random.Generator, actions: spaces.Space[Any], gamma: float) -> dict[str, Tensor]:
    """Return random transitions [B], for the peer with `dones`, for the package with `discounts`."""

    def real(*shape: int) -> Tensor:
        return torch.as_tensor(rng.normal(size=(BATCH, *shape)), dtype=torch.float32)

    discrete = isinstance(actions, spaces.Discrete)
    dones = torch.as_tensor(rng.random(BATCH) < 0.3).float()
    return {
        "obs": real(3),
        "next_obs": real(3),
        "actions": torch.as_tensor(rng.integers(0, 4, BATCH)) if discrete else real(2).clamp(-1, 1),
        # some errors beyond the knee of Huber's loss, some below it
        "rewards": 2 * real(),
        "dones": dones,
        "discounts": gamma * (1 - dones),
    }


def transitions(algo: str, *, theirs: dict[str, Any], ours: dict[str, Any], **settings: Any) -> Found:
    """DQN, TD3 or SAC on random transitions; `settings` have the same names on both sides."""
    settings = {"gamma": 0.97, "learning_rate": 3e-3} | settings
    actions = CHOICES if algo == "dqn" else MOTORS
    peer = PeerLearner(algo, OBSERVATIONS, actions, sizes=SIZES, buffer_size=BATCH, **settings, **theirs)
    peer.shift()
    package = OurLearner(
        algo, OBSERVATIONS, actions, hidden_sizes=SIZES, buffer_size=BATCH, **settings, **ours
    )
    differences = _Differences(peer, package)
    smooth = settings.get("use_sde", False)
    draw = sde_noise if smooth else {"sac": sac_noise, "td3": td3_noise}.get(algo)
    rows_of_noise = SIZES[-1] if smooth else BATCH
    rng = np.random.default_rng(1)
    for update in range(20):
        rows = random_rows(rng, actions, settings["gamma"])
        logged = peer.update_on_transitions(rows, noise_seed=update)
        if algo == "dqn":
            peer.model._on_step()  # what it does after every step of an environment: the target's turn may have come
        noise = None if draw is None else draw(update, rows_of_noise, 2)
        metrics = package.update_on_transitions({k: v for k, v in rows.items() if k != "dones"}, noise)
        shared = {name: name for name in logged if name.endswith(("loss", "ent_coef")) and name in metrics}
        assert shared
        differences.note(logged, metrics, shared)
    return differences.found()


def time_limits() -> Seen:
    """Episodes that end in every way, also at a rollout's last row, through collecting and GAE."""
    num_envs, num_steps, count = 3, 16, 12
    rng = np.random.default_rng(2)
    recorded = [recorded_episodes(rng, num_steps * count) for _ in range(num_envs)]
    builders = [partial(Recorded, episodes, CHOICES) for episodes in recorded]
    settings: dict[str, Any] = {"gamma": 0.95, "gae_lambda": 0.9, "batch_size": 16}
    # nothing is learned, so that both sides keep the same values from rollout to rollout
    peer = make_peer(
        "ppo", builders, sizes=SIZES, n_steps=num_steps, learning_rate=0.0, n_epochs=1, **settings
    )
    one_by_one = iter(builders)
    ours = OurCollection(
        "ppo", lambda: next(one_by_one)(), num_envs, num_steps=num_steps, hidden_sizes=SIZES, **settings
    )
    _copy(peer_tensors("ppo", peer), ours.tensors)
    kept = KeepRollouts()
    peer.learn(num_steps * num_envs * count, callback=kept)
    theirs, own = (
        torch.stack([torch.stack([rollout["advantages"], rollout["returns"]]) for rollout in rollouts])
        for rollouts in (kept.rollouts, list(ours.rollouts(count)))
    )
    return Seen(num_steps * num_envs * count, float((theirs - own).abs().max()), float(own.std()))


def replayed() -> Seen:
    """The same episodes through both replay buffers: successors, rewards, and what may be bootstrapped."""
    num_envs, num_steps, draws, gamma = 3, 60, 4000, 0.95
    rng = np.random.default_rng(3)
    recorded = [recorded_episodes(rng, num_steps) for _ in range(num_envs)]
    builders = [partial(Recorded, episodes, CHOICES) for episodes in recorded]
    settings: dict[str, Any] = {"buffer_size": 10_000, "gamma": gamma, "learning_starts": 10_000}
    peer = make_peer("dqn", builders, sizes=SIZES, **settings)
    peer.learn(num_steps * num_envs)
    sampled = peer.replay_buffer.sample(draws)
    one_by_one = iter(builders)
    ours = OurCollection("dqn", lambda: next(one_by_one)(), num_envs, hidden_sizes=SIZES, **settings)
    mine = ours.transitions(num_steps, draws)
    assert isinstance(mine.obs, Tensor)
    theirs = _by_observation(
        sampled.observations, sampled.next_observations, sampled.rewards, gamma * (1 - sampled.dones)
    )
    own = _by_observation(mine.obs, mine.next_obs, mine.rewards, mine.discounts)
    assert theirs.keys() == own.keys()
    assert len(own) == num_steps * num_envs
    apart = worst((theirs[key] - own[key]).abs().max() for key in own)
    discounts = torch.stack(list(own.values()))[:, -1]
    return Seen(len(own), apart, float(discounts.std()))


def _by_observation(obs: Tensor, *columns: Any) -> dict[bytes, Tensor]:
    """Return rows [D] of the columns, side by side, by the observation that they begin with."""
    rows = torch.cat([column.reshape(len(obs), -1) for column in columns], dim=1)
    return {key.numpy().tobytes(): row for key, row in zip(obs, rows, strict=True)}


@dataclass(frozen=True)
class Learning:
    """A comparison of learning with the differences that rounding may leave, about ten times the measured ones."""

    run: Callable[[], Found]
    parameters: float
    losses: float


LEARNING: dict[str, Learning] = {
    "PPO, discrete actions": Learning(partial(rollouts, "ppo", CHOICES), 2e-6, 2e-6),
    "PPO, continuous actions, raw advantages, unclipped gradients": Learning(
        partial(rollouts, "ppo", MOTORS, normalize_advantage=False, max_grad_norm=1e3), 3e-6, 3e-6
    ),
    # in small steps: values must not run past the recorded ones, see `fill_rollout`
    "PPO, clipped value loss": Learning(
        partial(rollouts, "ppo", CHOICES, clip_vloss=True, learning_rate=3e-4), 1e-6, 2e-6
    ),
    # an eps of the gradients' size, so that its place in the formula matters
    "A2C, discrete actions, raw advantages": Learning(
        partial(rollouts, "a2c", CHOICES, normalize_advantage=False, rms_prop_eps=1e-2), 1e-6, 2e-6
    ),
    "A2C, continuous actions, unclipped gradients": Learning(
        partial(rollouts, "a2c", MOTORS, max_grad_norm=1e3), 2e-6, 5e-6
    ),
    "DQN, target copied every 3 updates": Learning(
        partial(
            transitions,
            "dqn",
            theirs={"target_update_interval": 3},
            ours={"target_update_every_updates": 3},
            max_grad_norm=10.0,
        ),
        3e-7,
        1e-6,
    ),
    "DQN, target averaged, clipped gradients": Learning(
        partial(
            transitions,
            "dqn",
            theirs={"target_update_interval": 1},
            ours={"target_update_every_updates": 1},
            tau=0.2,
            max_grad_norm=0.3,
        ),
        1e-6,
        1e-6,
    ),
    "TD3": Learning(
        partial(
            transitions,
            "td3",
            theirs={},
            ours={},
            tau=0.05,
            policy_delay=2,
            target_policy_noise=0.4,
            target_noise_clip=0.5,
        ),
        2e-6,
        1e-5,
    ),
    "DDPG: TD3 with one critic, no delay, no noise": Learning(
        partial(
            transitions,
            "td3",
            theirs={"policy_kwargs": {"n_critics": 1}},
            ours={"num_critics": 1},
            tau=0.05,
            policy_delay=1,
            target_policy_noise=0.0,
        ),
        2e-6,
        5e-6,
    ),
    "SAC, learned temperature": Learning(
        partial(
            transitions,
            "sac",
            theirs={"ent_coef": "auto_0.5"},
            ours={"ent_coef_init": 0.5},
            tau=0.05,
            target_entropy=-1.5,
        ),
        2e-6,
        1e-5,
    ),
    "SAC, fixed temperature": Learning(
        partial(transitions, "sac", theirs={}, ours={}, tau=0.05, ent_coef=0.2), 2e-6, 5e-6
    ),
    "PPO, state-dependent exploration": Learning(partial(rollouts, "ppo", MOTORS, use_sde=True), 2e-6, 5e-6),
    "A2C, state-dependent exploration": Learning(partial(rollouts, "a2c", MOTORS, use_sde=True), 3e-6, 5e-6),
    "SAC, state-dependent exploration": Learning(
        partial(
            transitions,
            "sac",
            theirs={"ent_coef": "auto_0.5", "policy_kwargs": {"log_std_init": -1.0}},
            ours={"ent_coef_init": 0.5},
            tau=0.05,
            use_sde=True,
        ),
        2e-6,
        1e-5,
    ),
}

EPISODES: dict[str, Callable[[], Seen]] = {
    "advantages and returns of rollouts": time_limits,
    "successors, rewards and discounts of replay": replayed,
}
EPISODES_APART = 1e-6


def write_report() -> bool:
    """Write the table; tell whether every difference is within its tolerance."""
    learned = {name: (case, case.run()) for name, case in LEARNING.items()}
    seen = {name: run() for name, run in EPISODES.items()}
    lines = [
        "# The same batches through stable-baselines3",
        "",
        f"Generated by `make parity`, in float32, with stable-baselines3 {VERSION}: its weights are copied into "
        "our networks, then both libraries get the same batches and the same noise. Largest differences after "
        "any update; one update of PPO is three epochs of four minibatches. `tests/parity/peer_batches.py` "
        "shows how different definitions were aligned.",
        "",
        "| algorithm | updates | parameters | losses |",
        "|---|---|---|---|",
    ]
    for name, (_, found) in learned.items():
        lines.append(f"| {name} | {found.updates} | {found.parameters:.0e} | {found.losses:.0e} |")
    lines += [
        "",
        "Recorded episodes that end by termination, truncation and both at once, collected by both libraries:",
        "",
        "| what | steps | largest difference |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {found.steps} | {found.apart:.0e} |" for name, found in seen.items()]
    text = "\n".join([*lines, ""])
    REPORT.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    learning = all(
        f.parameters <= case.parameters and f.losses <= case.losses for case, f in learned.values()
    )
    return learning and all(found.apart <= EPISODES_APART for found in seen.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if write_report() else 1)
