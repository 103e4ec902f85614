"""Shards: any number of them learns what the whole minibatch does, and no process has to compute all of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_encoders
import torch
from gymnasium import spaces
from parity_harness import Driven
from torch import Tensor, nn
from traces import CASES, FRAGILE, POLE, PPO, Case, float64_trace, read_traces

from rl_training.algorithms.learner import BaseLearner
from rl_training.algorithms.ppo import ppo_loss
from rl_training.algorithms.shards import Fill, Shards
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.shares import shares
from rl_training.core.types import Array, EnvSpec
from rl_training.experiment.building import UserObjects, build_parts

RECORDED = read_traces()["float64"]
CATCH = "rl_training.envs.tasks:rl_training/Catch-v0"
MEMORY = PPO | {"hidden_sizes": (8,), "core_size": 6, "sequence_length": 5, "batch_size": 15}
UNRECORDED = {
    "memory": Case("recurrent_ppo", POLE, MEMORY),
    "memory, shared": Case("recurrent_ppo", FRAGILE, MEMORY | {"core": "gru", "share_core": True}),
    "images": Case("ppo", CATCH, PPO | {"encoder": "small", "features_dim": 6, "hidden_sizes": (8,)}),
    "images with memory": Case("recurrent_ppo", CATCH, MEMORY | {"encoder": "small", "features_dim": 6}),
    "own encoder": Case("ppo", POLE, PPO | {"encoder": "tiny_encoders:Plain", "features_dim": 6}),
    "more shards than rows": Case("ppo", POLE, PPO | {"batch_size": 3}),
}


def in_shards(case: Case, count: int) -> Case:
    return replace(case, settings=case.settings | {"learner_shards": count})


ACTING = ("normalize_", "schedule", "dict", "n_step", "correlated", "initialisation", "multi-", "added")
"""What does not concern an update: how actions are chosen and what a batch is made of."""
SHARDED = [name for name, case in CASES.items() if not case.config.offline]
"""Losses of the others depend on a whole batch: see test_losses_of_a_whole_batch_are_not_divided."""


@pytest.mark.parametrize("name", [name for name in SHARDED if not any(part in name for part in ACTING)])
def test_shards_leave_the_trace_of_the_whole_minibatch(name: str) -> None:
    for update, (ours, theirs) in enumerate(
        zip(float64_trace(in_shards(CASES[name], 3)), RECORDED[name], strict=True)
    ):
        assert ours == pytest.approx(theirs, rel=1e-7, abs=1e-12), f"update {update} of {name}"


@pytest.mark.parametrize("name", ["td3_bc", "rebrac", "cql"])
def test_losses_of_a_whole_batch_are_not_divided(name: str) -> None:
    with pytest.raises(UserError, match="set learner_shards to 1"):
        float64_trace(in_shards(CASES[name], 3))


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("name", UNRECORDED)
def test_shards_of_sequences_and_images_learn_what_the_whole_minibatch_does(name: str, count: int) -> None:
    whole, parts = (float64_trace(in_shards(UNRECORDED[name], shards)) for shards in (1, count))
    for ours, theirs in zip(parts, whole, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-7, abs=1e-12)


class Recording:
    """Computes all shards and keeps their rows."""

    def __init__(self, count: int) -> None:
        self.count, self.rows = count, list[Array]()

    def complete(self, width: int, dtype: np.dtype[Any], fill: Fill) -> Array:
        found = np.zeros((self.count, width), dtype)
        for shard in range(self.count):
            fill(shard, found[shard])
        self.rows.append(found.copy())
        return found


class Replica:
    """Computes the last shard only and takes the others from a record."""

    def __init__(self, rows: list[Array]) -> None:
        self.rows = rows

    def complete(self, width: int, dtype: np.dtype[Any], fill: Fill) -> Array:
        found = self.rows.pop(0).copy()
        assert found.shape[1] == width
        found[-1] = np.nan
        fill(len(found) - 1, found[-1])
        return found


REPLICATED = {
    **{name: CASES[name] for name in ("ppo", "ppo target_kl", "a2c", "dqn prioritized", "dqn c51", "rainbow",
       "sac", "sac ensemble", "sac state-dependent noise", "td3")},
    **UNRECORDED,
    "dropout": Case("ppo", POLE, PPO | {"encoder": "tiny_encoders:Dropping", "features_dim": 6}),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLICATED)
def test_a_process_that_computes_one_shard_has_the_state_and_metrics_of_one_that_computes_all(
    name: str,
) -> None:
    count = 4
    driven = Driven(in_shards(REPLICATED[name], count).config)
    parts = build_parts(driven.config, driven.stepper.spec)
    replica: Any = parts.learner
    recording = driven.learner.shards.exchange = Recording(count)
    replica.shards.exchange = Replica(recording.rows)
    torch.manual_seed(3)
    for _ in range(24):
        driven.collect()
        for batch in driven.source.batches(driven.progress):
            generator = torch.get_rng_state()
            if normalizer := getattr(driven.learner.policy, "normalizer", None):
                replica.policy.normalizer.load_state_dict(normalizer.state_dict())
            expected = driven.learner.update(batch, driven.progress)
            after = torch.get_rng_state()
            torch.set_rng_state(generator)
            found = replica.update(batch, driven.progress)
            assert torch.equal(torch.get_rng_state(), after)
            assert found.metrics == expected.metrics
            assert recording.rows == []
            if expected.priorities is not None:
                assert torch.equal(found.priorities, expected.priorities)
            driven.progress = driven.progress.advanced(updates=expected.updates)
    driven.stepper.close()
    assert driven.progress.updates > 0
    assert _bytes(replica.state_dict()) == _bytes(driven.learner.state_dict())


def _bytes(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().numpy().tobytes()
    return {key: _bytes(part) for key, part in state.items()} if isinstance(state, dict) else state


def test_bounds_are_even_and_the_larger_slices_come_first() -> None:
    assert shares(10, 4) == [range(3), range(3, 6), range(6, 8), range(8, 10)]
    assert [len(part) for part in shares(2, 4)] == [1, 1, 0, 0]


def test_invalid_rows_do_not_count() -> None:
    """The gradient of a rollout with invalid rows is that of the valid ones, however they fall into shards."""
    results = []
    for count in (1, 3):
        driven = Driven(in_shards(CASES["a2c"], count).config)
        driven.collect()
        (batch,) = driven.source.batches(driven.progress)
        valid = torch.ones(len(batch), dtype=torch.bool)
        valid[[0, 1, 2, 3, 4, 5, 6, 12]] = False  # one shard has no valid row
        driven.learner.update(replace(batch, valid=valid), driven.progress)
        results.append(driven.learner.optimizer.gradient.numpy().copy())
        driven.stepper.close()
    assert np.abs(results[0]).max() > 0
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-6)


def doubled_loss(minibatch: Any, **settings: Any) -> dict[str, Tensor]:
    """A loss of the user's own, with random numbers and a part of its own."""
    parts = ppo_loss(minibatch, **settings)
    return {**parts, "loss": 2 * parts["loss"], "mine": torch.randn(())}


def test_a_replaced_loss_trains_and_reports_its_parts() -> None:
    config = in_shards(CASES["ppo"], 2).config
    spec = EnvSpec(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), 2)
    learner: Any = build_parts(config, spec, UserObjects(losses={"loss": doubled_loss})).learner
    assert learner.shards.uses_random
    driven = Driven(config)
    driven.collect()
    (batch,) = driven.source.batches(driven.progress)
    driven.stepper.close()
    metrics = learner.update(batch, driven.progress).metrics
    plain: Any = build_parts(config, spec).learner
    assert "mine" in metrics
    expected = plain.update(batch, driven.progress).metrics
    assert float(metrics["loss"]) == pytest.approx(2 * float(expected["loss"]), rel=0.1)


class Stubborn(BaseLearner):
    """A learner that knows nothing of shards."""


class Mixing(nn.Module):
    """Batch normalisation by hand, which no list of classes would find."""

    features_dim = 4

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.layer(inputs)
        return features - features.mean(0) if self.training else features


SPEC = EnvSpec(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), 8)
DIVIDED = TrainConfig(algo="ppo", env_id="CartPole-v1", learner_shards=2)


def test_a_learner_that_knows_no_shards_is_refused() -> None:
    match = "learner_shards is 2, but Stubborn computes its gradients without shards"
    with pytest.raises(UserError, match=match):
        Stubborn().use_shards(Shards(2))


@pytest.mark.parametrize("encoder", [Mixing, tiny_encoders.Batched, tiny_encoders.Rebinding])
def test_encoders_that_mix_the_rows_of_a_minibatch_are_refused(encoder: Any) -> None:
    given = UserObjects(encoder=encoder)
    with pytest.raises(UserError, match=f"{encoder.__name__} uses statistics of the whole minibatch"):
        build_parts(given.named(DIVIDED), SPEC, given)
    build_parts(given.named(DIVIDED.with_overrides(learner_shards=1)), SPEC, given)


@pytest.mark.parametrize("encoder", [tiny_encoders.Dropping, tiny_encoders.Pretrained, tiny_encoders.Frozen])
def test_encoders_that_read_row_by_row_are_not_refused(encoder: Any) -> None:
    given = UserObjects(encoder=encoder)
    learner: Any = build_parts(given.named(DIVIDED), SPEC, given).learner
    assert learner.shards.count == 2
