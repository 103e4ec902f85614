"""What is not allowed is never done, in whichever way a policy acts; and targets never count on it."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from records import step_arrays

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.components import BuildContext
from rl_training.algorithms.q_objective import categorical_losses, quantile_losses, td_loss
from rl_training.core.rows import Rows
from rl_training.core.spaces.masks import MASK_KEY, with_mask
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.replay_buffer import Transitions
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.runtime.sampler import LocalSampler

ACTIONS, ENVS = 6, 32
SPEC = EnvSpec(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(ACTIONS), ENVS, masked=True)
SWITCHES = [
    {},
    {"double": True},
    {"dueling": True},
    {"noisy": True},
    {"distribution": "c51"},
    {"distribution": "quantile"},
    {"double": True, "dueling": True, "noisy": True, "distribution": "c51", "prioritized": True, "n_step": 3},
]


def parts_of(algo: str, **settings: Any) -> Any:
    algorithm = ALGORITHMS[algo]
    return algorithm.build(algorithm.config_class(**settings), BuildContext(SPEC, seed=0))


def some_obs(rng: np.random.Generator, rows: int = ENVS) -> tuple[np.ndarray, np.ndarray]:
    mask = rng.random((rows, ACTIONS)) < 0.4
    mask[np.arange(rows), rng.integers(0, ACTIONS, rows)] = True
    return rng.uniform(-1, 1, (rows, 4)).astype(np.float32), mask


def acted_for(parts: Any) -> Any:
    class Still:
        spec, rows = SPEC, Rows.one_per_env(ENVS)
        out = step_arrays(np.zeros((ENVS, 4), np.float32), np.zeros(ENVS))

    return LocalSampler(Still(), parts.actor.explorer, None).acted


@pytest.mark.parametrize(
    ("algo", "settings"),
    [("ppo", {}), ("a2c", {}), ("recurrent_ppo", {}), *(("dqn", switches) for switches in SWITCHES)],
    ids=str,
)
@pytest.mark.parametrize("timesteps", [0, 50_000])
def test_nothing_is_done_that_is_not_allowed(algo: str, settings: Any, timesteps: int) -> None:
    parts, rng = parts_of(algo, **settings), np.random.default_rng(0)
    policy, acted = parts.actor.policy, acted_for(parts)
    state = policy.initial_state(ENVS)
    for _ in range(60):
        obs, mask = some_obs(rng)
        progress = Progress(timesteps=timesteps, total_timesteps=100_000)
        parts.actor.explorer.act(with_mask(obs, mask), acted, progress)
        assert mask[np.arange(ENVS), acted.action].all()
        assert np.isfinite(acted.logprob).all()
        for deterministic in (True, False):
            actions, state = policy.act(with_mask(obs, mask), state, deterministic=deterministic, rng=rng)
            assert mask[np.arange(ENVS), actions].all()


def test_random_actions_are_spread_over_the_allowed_ones() -> None:
    parts, rng = parts_of("dqn"), np.random.default_rng(0)
    acted, counts = acted_for(parts), np.zeros(ACTIONS)
    obs, mask = some_obs(rng)
    mask[:] = [1, 0, 1, 1, 0, 0]
    for _ in range(500):
        parts.actor.explorer.act(with_mask(obs, mask), acted, Progress(0, 0, 1000))
        counts += np.bincount(acted.action, minlength=ACTIONS)
    assert counts / counts.sum() == pytest.approx(np.array([1, 0, 1, 1, 0, 0]) / 3, abs=0.015)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn"])
def test_a_mask_that_allows_everything_changes_nothing(algo: str) -> None:
    one, other = parts_of(algo), parts_of(algo)
    obs, mask = some_obs(np.random.default_rng(0))
    mask[:] = True
    plain, _ = one.actor.policy.act(obs, (), deterministic=True, rng=np.random.default_rng(1))
    masked, _ = other.actor.policy.act(
        with_mask(obs, mask), (), deterministic=True, rng=np.random.default_rng(1)
    )
    assert (plain == masked).all()


@pytest.mark.parametrize("settings", SWITCHES, ids=str)
def test_targets_take_the_best_of_what_the_successor_allows(settings: Any, monkeypatch: Any) -> None:
    """Every next action is tried in turn; the one with the largest value among the allowed ones makes the target."""
    parts, rng = parts_of("dqn", **settings), np.random.default_rng(0)
    learner, policy = parts.learner, parts.actor.policy
    with torch.no_grad():  # a target that is another network than the online one
        for parameter in learner.target.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    rows = 24
    obs, _ = some_obs(rng, rows)
    next_obs, next_mask = some_obs(rng, rows)
    batch = Transitions(
        obs=torch.from_numpy(obs),
        actions=torch.from_numpy(rng.integers(0, ACTIONS, rows)),
        rewards=torch.randn(rows, generator=torch.Generator().manual_seed(2)),
        discounts=torch.full((rows,), 0.9),
        next_obs=torch.from_numpy(next_obs),
        indices=torch.arange(rows),
        next_action_masks=torch.from_numpy(next_mask),
    )
    noises = [policy.draw_noise(np.random.default_rng(i), torch.device("cpu")) for i in range(3)]
    with torch.no_grad():
        said = policy.network(batch.obs, noises[0])
        next_said = learner.target.network(batch.next_obs, noises[1])
        judge = policy.network(batch.next_obs, noises[2]) if settings.get("double") else next_said
        expected = []
        for row in range(rows):
            values = {
                a: float(policy.action_values(judge)[row, a]) for a in range(ACTIONS) if next_mask[row, a]
            }
            best = max(values, key=values.get)
            one = (
                said[row, batch.actions[row]][None],
                next_said[row, best][None],
                batch.rewards[row : row + 1],
                batch.discounts[row : row + 1],
            )
            if settings.get("distribution") == "c51":
                expected.append(categorical_losses(*one, policy.support)[0])
            elif settings.get("distribution") == "quantile":
                expected.append(quantile_losses(*one)[0])
            else:
                targets = one[2] + one[3] * one[1][:, 0]
                expected.append(
                    td_loss({"values": one[0][:, 0], "targets": targets}, huber=True)["loss"][None]
                )
        unmasked = policy.action_values(judge).argmax(-1).numpy()
    assert (~next_mask[np.arange(rows), unmasked]).any(), "some mask must matter"
    drawn = iter(noises)
    monkeypatch.setattr(policy, "draw_noise", lambda *_: next(drawn))
    metrics = learner.update(batch, Progress(total_timesteps=1000)).metrics
    torch.testing.assert_close(metrics["loss"], torch.cat(expected).mean(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_what_was_done_is_judged_by_what_was_allowed_then(algo: str) -> None:
    """The same rows: the log-probability while learning is the one while acting."""
    parts, rng = parts_of(algo), np.random.default_rng(0)
    policy, acted = parts.actor.policy, acted_for(parts)
    obs, mask = some_obs(rng)
    parts.actor.explorer.act(with_mask(obs, mask), acted, Progress(0, 0, 1000))
    rows = RolloutBatch(
        obs=policy.prepare(torch.from_numpy(obs)),
        actions=torch.from_numpy(acted.action),
        logprobs=torch.from_numpy(acted.logprob),
        values=torch.from_numpy(acted.value),
        advantages=torch.zeros(ENVS),
        returns=torch.zeros(ENVS),
        action_masks=torch.from_numpy(mask),
    )
    logprobs, entropy, values = policy.evaluate_actions(rows)
    torch.testing.assert_close(logprobs.detach(), rows.logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(values.detach(), rows.values, atol=1e-5, rtol=1e-5)
    assert (entropy <= torch.from_numpy(mask.sum(1)).log() + 1e-5).all()


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn", "recurrent_ppo"])
def test_masks_are_columns_of_rollouts_and_replay(algo: str) -> None:
    source = parts_of(algo).source
    names = {column.name for column in source.buffer.columns}
    assert f"obs/{MASK_KEY}" in names
    assert (f"next_obs/{MASK_KEY}" in names) == (algo == "dqn")
