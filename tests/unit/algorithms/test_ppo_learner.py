import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from records import SeenAndDone

from rl_training.algorithms.components import Actor
from rl_training.algorithms.ppo import PPOConfig, PPOLearner
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.explorers import ActorCriticExplorer

ROWS = 32
HALFWAY = Progress(timesteps=500, total_timesteps=1000)


def make_learner(
    action_space: Space[Any] | None = None, normalize_obs: bool = False, **settings: Any
) -> PPOLearner:
    config = PPOConfig(
        **{"num_steps": 8, "batch_size": 8, "update_epochs": 2, "hidden_sizes": (8,)} | settings
    )
    policy = ActorCriticPolicy(
        EnvSpec(spaces.Box(-5, 5, (3,)), action_space or spaces.Discrete(3), 4),
        hidden_sizes=config.hidden_sizes,
        activation="tanh",
        shared_network=False,
        orthogonal_init=True,
        log_std_init=0.0,
        normalize_obs=normalize_obs,
        reward_normalizer=None,
        generator=torch.Generator().manual_seed(0),
    )
    actor = Actor(policy, ActorCriticExplorer(policy, np.random.default_rng(0)))
    return PPOLearner(config, actor, minibatch_rng=np.random.default_rng(1))


def rollout(
    learner: PPOLearner, *, logprob_shift: float = 0.0, valid: torch.Tensor | None = None
) -> RolloutBatch:
    """Rows whose recorded log-probabilities are the policy's own, moved by `logprob_shift`."""
    rng = torch.Generator().manual_seed(3)
    obs = torch.randn(ROWS, 3, generator=rng)
    shape, dtype = learner.policy.action_shape, learner.policy.action_dtype
    actions = torch.randint(0, 3, (ROWS, *shape), generator=rng).to(
        torch.from_numpy(np.zeros(1, dtype)).dtype
    )
    with torch.no_grad():
        logprobs, _, values = learner.policy.evaluate_actions(
            SeenAndDone(learner.policy.prepare(obs), actions)
        )
    returns = torch.randn(ROWS, generator=rng)
    return RolloutBatch(
        obs,
        actions,
        logprobs + logprob_shift,
        values,
        advantages=returns - values,
        returns=returns,
        valid=valid,
    )


def parameters(learner: PPOLearner) -> torch.Tensor:
    return learner.optimizer.flat.clone()


def test_an_update_moves_the_parameters_and_raises_the_objective() -> None:
    learner = make_learner(batch_size=ROWS, update_epochs=20, learning_rate=1e-3)
    batch, before = rollout(learner), parameters(learner)
    losses = [learner.update(batch, Progress()).metrics["loss"] for _ in range(5)]
    assert not torch.equal(parameters(learner), before)
    assert losses[-1] < losses[0]


def test_an_update_leaves_its_batch_alone() -> None:
    learner = make_learner(normalize_obs=True)
    batch = rollout(learner)
    copy = batch.map(torch.clone)
    learner.update(batch, Progress())
    for name in ("obs", "actions", "logprobs", "values", "advantages", "returns"):
        assert torch.equal(getattr(batch, name), getattr(copy, name)), name


def test_target_kl_withholds_the_very_first_step() -> None:
    learner = make_learner(target_kl=0.1)
    before = parameters(learner)
    metrics = learner.update(rollout(learner, logprob_shift=1.0), Progress()).metrics
    assert torch.equal(parameters(learner), before)
    assert not learner.optimizer.exp_avg.any()
    assert metrics["approx_kl"].item() == pytest.approx(np.exp(-1.0), rel=1e-4)
    assert metrics["grad_norm"] == 0.0


def test_target_kl_stops_before_the_step_that_exceeds_it() -> None:
    stopped = make_learner(batch_size=ROWS, update_epochs=10, learning_rate=0.1, target_kl=1e-3)
    one_step = make_learner(batch_size=ROWS, update_epochs=1, learning_rate=0.1)
    unbounded = make_learner(batch_size=ROWS, update_epochs=10, learning_rate=0.1)
    for learner in (stopped, one_step, unbounded):
        learner.update(rollout(learner), Progress())
    assert torch.equal(parameters(stopped), parameters(one_step))
    assert not torch.equal(parameters(stopped), parameters(unbounded))


def test_a_target_kl_that_is_never_reached_changes_nothing() -> None:
    bounded, unbounded = make_learner(target_kl=1e6), make_learner()
    for learner in (bounded, unbounded):
        learner.update(rollout(learner, logprob_shift=0.5), Progress())
    assert torch.equal(parameters(bounded), parameters(unbounded))


@pytest.mark.parametrize(("schedule", "factor"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)])
@pytest.mark.parametrize("name", ["learning_rate", "clip_coef"])
def test_schedules_reach_the_learner(name: str, schedule: str, factor: float) -> None:
    learner = make_learner(**{name: 0.4, f"{name}_schedule": schedule})
    metric = {"learning_rate": "learning_rate", "clip_coef": "clip_range"}[name]
    metrics = learner.update(rollout(learner), HALFWAY).metrics
    assert metrics[metric].item() == pytest.approx(0.4 * factor)


def test_the_scheduled_learning_rate_scales_the_step() -> None:
    steps = []
    for progress in (Progress(total_timesteps=1000), HALFWAY, Progress(timesteps=1000, total_timesteps=1000)):
        learner = make_learner(batch_size=ROWS, update_epochs=1, learning_rate_schedule="linear")
        before = parameters(learner)
        learner.update(rollout(learner), progress)
        steps.append(parameters(learner) - before)
    torch.testing.assert_close(steps[1], 0.5 * steps[0], rtol=1e-2, atol=1e-7)
    assert not steps[2].any()


def test_the_scheduled_clip_coefficient_reaches_the_loss() -> None:
    fractions = []
    for progress in (Progress(total_timesteps=1000), Progress(timesteps=900, total_timesteps=1000)):
        learner = make_learner(batch_size=ROWS, update_epochs=1, clip_coef=0.2, clip_coef_schedule="linear")
        metrics = learner.update(rollout(learner, logprob_shift=0.1), progress).metrics
        fractions.append(metrics["clip_fraction"].item())
    assert fractions == [0.0, 1.0]  # every ratio is exp(-0.1)


def test_the_gradient_is_clipped_and_its_norm_before_is_logged() -> None:
    norms = []
    for bound in (0.01, 1e6):
        learner = make_learner(batch_size=ROWS, update_epochs=1, max_grad_norm=bound)
        norms.append(learner.update(rollout(learner), Progress()).metrics["grad_norm"])
        used = learner.optimizer.exp_avg.norm() / (1 - 0.9)
        torch.testing.assert_close(used, torch.minimum(norms[-1], torch.tensor(bound)), rtol=1e-3, atol=0)
    assert norms[0] == norms[1]
    assert norms[0] > 0.01


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_invalid_rows_are_learned_from_as_little_as_absent_ones(normalize_obs: bool) -> None:
    valid = torch.arange(ROWS) % 4 != 0
    masked = make_learner(batch_size=ROWS, normalize_obs=normalize_obs, clip_vloss=True, ent_coef=0.1)
    dropped = make_learner(
        batch_size=int(valid.sum()), normalize_obs=normalize_obs, clip_vloss=True, ent_coef=0.1
    )
    batch = rollout(masked)
    masked.update(
        replace(
            batch,
            valid=valid,
            returns=torch.where(valid, batch.returns, 50.0),
            advantages=torch.where(valid, batch.advantages, -70.0),
        ),
        Progress(),
    )
    dropped.update(batch.take(torch.nonzero(valid)[:, 0]), Progress())
    torch.testing.assert_close(parameters(masked), parameters(dropped), rtol=1e-4, atol=1e-5)
    if normalize_obs:
        torch.testing.assert_close(
            masked.policy.state_dict(), dropped.policy.state_dict(), rtol=1e-4, atol=1e-5
        )


def test_observation_statistics_change_only_after_the_training_that_used_them() -> None:
    learner, plain = make_learner(normalize_obs=True), make_learner()
    batch = rollout(learner)
    for each in (learner, plain):
        each.update(batch, Progress())
    assert torch.equal(parameters(learner), parameters(plain))  # the first rollout saw no statistics yet
    assert learner.policy.normalizer is not None
    assert isinstance(batch.obs, torch.Tensor)
    torch.testing.assert_close(learner.policy.normalizer.moments.mean, batch.obs.double().mean(0))


def test_normalising_advantages_makes_the_update_blind_to_their_scale() -> None:
    moved = []
    for normalize in (True, False):
        for scale in (1.0, 1000.0):
            learner = make_learner(normalize_advantage=normalize, vf_coef=0.0, max_grad_norm=1e9)
            batch = rollout(learner)
            learner.update(replace(batch, advantages=batch.advantages * scale), Progress())
            moved.append(learner.optimizer.exp_avg.norm().item())
    assert moved[0] == pytest.approx(moved[1], rel=1e-3)
    assert moved[3] > 100 * moved[2]


def test_metrics_are_means_over_all_minibatches() -> None:
    learner = make_learner(learning_rate=1e-12, update_epochs=3, normalize_advantage=False)
    batch = rollout(learner)
    metrics = learner.update(batch, Progress()).metrics
    assert metrics["value_loss"].item() == pytest.approx(batch.advantages.square().mean().item(), rel=1e-4)
    assert metrics["policy_loss"].item() == pytest.approx(-batch.advantages.mean().item(), rel=1e-3)


def test_the_deviation_of_continuous_actions_is_a_metric() -> None:
    continuous = make_learner(spaces.Box(-1, 1, (2,)))
    metrics = continuous.update(rollout(continuous), Progress()).metrics
    log_std = continuous.policy.get_parameter("head.log_std")
    torch.testing.assert_close(metrics["std"], log_std.detach().exp().mean())
    discrete = make_learner()
    assert "std" not in discrete.update(rollout(discrete), Progress()).metrics


def test_metrics_are_detached_scalars() -> None:
    learner = make_learner()
    for name, value in learner.update(rollout(learner), Progress()).metrics.items():
        assert value.shape == (), name
        assert not value.requires_grad, name


def test_learning_goes_on_alike_after_a_state_round_trip() -> None:
    one, other = make_learner(normalize_obs=True), make_learner(normalize_obs=True)
    batch = rollout(one)
    one.update(batch, Progress())
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        learner.update(batch, HALFWAY)
    assert torch.equal(parameters(one), parameters(other))


@pytest.mark.parametrize(
    ("settings", "culprit"),
    [
        ({"num_steps": 0}, "num_steps is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"batch_size": 33}, r"num_steps \* num_envs = 8 \* 4 = 32"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"gae_lambda": -0.1}, "gae_lambda is -0.1"),
        ({"clip_coef": 0.0}, "clip_coef is 0"),
        ({"ent_coef": -1.0}, "ent_coef is -1"),
        ({"target_kl": 0.0}, "target_kl is 0"),
        ({"hidden_sizes": (8, 0)}, r"hidden_sizes is \[8, 0\]"),
    ],
)
def test_impossible_settings_are_named(settings: dict[str, Any], culprit: str) -> None:

    problems = PPOConfig(**{"num_steps": 8, "batch_size": 8} | settings).problems(num_envs=4)
    assert [problem for problem in problems if re.search(culprit, problem)] == problems
    assert len(problems) == 1


def test_the_defaults_suit_a_small_rollout() -> None:
    assert PPOConfig(num_steps=64).problems(num_envs=2) == []
