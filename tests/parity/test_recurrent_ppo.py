"""RecurrentPPO is PPO with a core: without one, and with sequences of one step, it is PPO to the last bits."""

from typing import Any

import pytest
import torch
from parity_harness import Driven, assert_close, parameters_of
from traces import FRAGILE

from rl_training.config import TrainConfig
from rl_training.policies.recurrent import RecurrentPolicy

SETTINGS: dict[str, Any] = {
    "num_envs": 4, "num_steps": 32, "batch_size": 48, "update_epochs": 3, "hidden_sizes": (16, 8), "ent_coef": 0.01,
    "total_timesteps": 1280, "clip_vloss": True,
}  # fmt: skip


SMOOTH: dict[str, Any] = {"env_id": FRAGILE, "use_sde": True, "log_std_init": -1.0, "sde_sample_freq": 5}


def driven(algo: str, **settings: Any) -> Driven:
    config = TrainConfig(algo=algo, env_id="CartPole-v1", seed=5, env_kwargs={"max_episode_steps": 30})
    return Driven(config.with_overrides(**SETTINGS | settings))


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_without_a_core_and_with_sequences_of_one_step_it_equals_ppo(
    normalize: bool, smooth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RecurrentPolicy.__init__

    def without_core(self: RecurrentPolicy, *args: Any, **settings: Any) -> None:
        real(self, *args, **settings | {"core": None})

    monkeypatch.setattr(RecurrentPolicy, "__init__", without_core)
    shared = {"normalize_obs": normalize, "normalize_reward": normalize} | (SMOOTH if smooth else {})
    ours, plain = driven("recurrent_ppo", sequence_length=1, **shared), driven("ppo", **shared)
    initial = [p.clone() for p in parameters_of(plain.learner.policy)]
    assert_close(parameters_of(ours.learner.policy), initial, atol=0)
    ours.train(), plain.train()
    assert ours.stepper.truncations > 3
    assert ours.stepper.terminations > 3
    moved = max(
        float((a - b).abs().max()) for a, b in zip(parameters_of(plain.learner.policy), initial, strict=True)
    )
    assert moved > 1e-3, "nothing was learned"
    assert_close(parameters_of(ours.learner.policy), parameters_of(plain.learner.policy), atol=1e-8)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("length", [1, 8, 32])
def test_learning_sees_what_acting_saw_whatever_the_length_of_sequences(
    core: str, length: int, smooth: bool
) -> None:
    """What a rollout recorded comes out again, across ends of episodes and in later rollouts, too."""
    settings = {"core": core, "sequence_length": length, "batch_size": 32, "share_core": False}
    parts = driven("recurrent_ppo", **settings, **SMOOTH if smooth else {})
    for _ in range(3):
        parts.collect()
        (batch,) = parts.source.batches(parts.progress)
        rows = parts.learner.prepared(batch).tensors()
        for part in rows.minibatches(32, None):
            with torch.no_grad():
                logprobs, _, values = parts.learner.policy.evaluate_actions(part)
            torch.testing.assert_close(logprobs, part.logprobs, rtol=0, atol=1e-10)
            torch.testing.assert_close(values, part.values, rtol=0, atol=1e-10)
        parts.learner.update(batch, parts.progress)
        parts.source.buffer.reset()
    assert parts.stepper.truncations + parts.stepper.terminations > 6


def test_changing_what_came_before_an_episode_changes_nothing_in_it() -> None:
    parts = driven("recurrent_ppo", sequence_length=32, batch_size=128, core_layers=2)
    parts.collect()
    (batch,) = parts.source.batches(parts.progress)
    (rows,) = parts.learner.prepared(batch).tensors().minibatches(128, None)
    starts = rows.extra["episode_starts"].view(32, 4)
    first = [int(starts[1:, env].int().argmax()) + 1 for env in range(4)]
    assert min(first) > 1
    policy = parts.learner.policy
    with torch.no_grad():
        before = policy.evaluate_actions(rows)[0].view(32, 4)
        for env in range(4):
            rows.obs.view(32, 4, -1)[: first[env], env] += 1.0
            for part in rows.memory:
                part[env] += 1.0
        after = policy.evaluate_actions(rows)[0].view(32, 4)
    for env in range(4):
        assert torch.equal(after[first[env] :, env], before[first[env] :, env])
        assert not torch.equal(after[: first[env], env], before[: first[env], env])
