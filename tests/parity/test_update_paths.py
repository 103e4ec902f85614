"""However gradients are found and batches are handed over, the same is learned: to the recorded traces."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from parity_harness import Driven
from traces import (
    CASES,
    FRAGILE,
    POLE,
    PPO,
    SMOOTH,
    TOLERANCE,
    UPDATES,
    Case,
    Checksums,
    checksums,
    float64_trace,
    followed,
    one_thread_of,
    read_traces,
)

from rl_training.algorithms import (
    a2c,
    actor_critic_objective,
    continuous_critics,
    cql,
    ppo,
    q_objective,
    rebrac,
    sac,
    td3,
    td3_bc,
)
from rl_training.models.fast.backend import TorchBackend

RECORDED = read_traces()["float64"]
EXPLICIT = (
    "ppo", "ppo continuous", "ppo value clipping", "ppo target_kl", "ppo shared network", "ppo raw advantages",
    "ppo normalize both", "ppo dict", "ppo multi-discrete", "ppo multi-binary", "a2c", "a2c continuous",
    "a2c shared network", "dqn", "dqn squared error", "dqn double", "dqn prioritized", "dqn c51", "dqn quantile",
    "dqn target by timesteps", "sac", "sac fixed temperature", "sac ensemble", "sac dict", "td3", "ddpg",
    "ppo state-dependent noise", "ppo state-dependent noise of 4 steps, shared network", "a2c state-dependent noise",
    "sac state-dependent noise", "sac state-dependent and added noise", "sac layer norm", "td3 layer norm", "td3_bc",
    "td3_bc normalize_obs", "rebrac", "cql", "cql layer norm",
)  # fmt: skip

# 4 sequences of 5 steps, 3 and 1 at a time; episodes begin within them
MEMORY = PPO | {"hidden_sizes": (8,), "core_size": 6, "sequence_length": 5, "batch_size": 15}
ENCODED = {"encoder": "tiny_encoders:Plain", "features_dim": 6}
CATCH = "rl_training.envs.tasks:rl_training/Catch-v0"
REMEMBERING = {
    "lstm": Case("recurrent_ppo", POLE, MEMORY),
    "gru": Case("recurrent_ppo", POLE, MEMORY | {"core": "gru"}),
    "lstm shared core": Case("recurrent_ppo", POLE, MEMORY | {"share_core": True}),
    "gru shared network": Case(
        "recurrent_ppo", FRAGILE, MEMORY | {"core": "gru", "share_core": True, "shared_network": True}
    ),
    "lstm two layers": Case("recurrent_ppo", FRAGILE, MEMORY | {"core_layers": 2, "normalize_obs": True}),
    "lstm encoder": Case("recurrent_ppo", POLE, MEMORY | ENCODED),
    "lstm images": Case("recurrent_ppo", CATCH, MEMORY | {"encoder": "small", "features_dim": 6}),
    "lstm state-dependent noise": Case("recurrent_ppo", FRAGILE, MEMORY | SMOOTH | {"sde_sample_freq": 3}),
    "gru shared network, state-dependent noise": Case(
        "recurrent_ppo", FRAGILE, MEMORY | SMOOTH | {"core": "gru", "share_core": True, "shared_network": True}
    ),
    "lstm state-dependent noise of its outputs": Case("recurrent_ppo", FRAGILE, MEMORY | SMOOTH | {"hidden_sizes": ()}),
    "gru two encoders": Case("recurrent_ppo", POLE, MEMORY | ENCODED | {"core": "gru", "share_encoder": False}),
}  # fmt: skip


def unknown(*arguments: Any, **named: Any) -> None:
    """Stand in for what finds a chain."""


@pytest.fixture(params=["autograd", "tensors"])
def path(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leave everything to autograd, or run chains on tensors, as on another device."""
    name: str = request.param
    if name == "autograd":
        monkeypatch.setattr(actor_critic_objective, "explicit_actor_critic", unknown)
        monkeypatch.setattr(actor_critic_objective, "explicit_recurrent", unknown)
        monkeypatch.setattr(q_objective, "explicit_outputs", unknown)
        for module in (continuous_critics, td3):
            monkeypatch.setattr(module, "explicit_mlp", unknown)
        for module in (continuous_critics, td3):
            monkeypatch.setattr(module, "explicit_critics", unknown)
    else:
        for module in (actor_critic_objective, q_objective, continuous_critics):
            monkeypatch.setattr(module, "fast_backend", TorchBackend)
    return name


@pytest.mark.parametrize("name", EXPLICIT)
def test_every_path_leaves_the_recorded_trace(name: str, path: str) -> None:
    for update, (ours, theirs) in enumerate(zip(float64_trace(CASES[name]), RECORDED[name], strict=True)):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0), f"update {update} of {name} by {path}"


@pytest.mark.parametrize("name", EXPLICIT)
def test_the_setting_autograd_leaves_the_recorded_trace(name: str) -> None:
    case = replace(CASES[name], settings=CASES[name].settings | {"update_path": "autograd"})
    assert path_of(case) == "autograd"
    for update, (ours, theirs) in enumerate(zip(float64_trace(case), RECORDED[name], strict=True)):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0), f"update {update} of {name}"


LOSSES = {
    ppo: ("ppo_loss",), a2c: ("a2c_loss",), q_objective: ("td_loss", "categorical_loss", "quantile_loss"),
    sac: ("sac_critic_loss", "sac_actor_loss", "sac_temperature_loss"), td3: ("td3_critic_loss", "td3_actor_loss"),
    td3_bc: ("td3_bc_actor_loss",), rebrac: ("rebrac_actor_loss",), cql: ("cql_critic_loss",),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLICIT)
def test_replaced_losses_by_autograd_leave_the_recorded_trace(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, functions in LOSSES.items():
        for function in functions:
            if (name, function) != ("sac fixed temperature", "sac_temperature_loss"):  # nothing to train
                monkeypatch.setattr(module, function, partial(getattr(module, function)))
    assert "by autograd" in path_of(CASES[name])
    for update, (ours, theirs) in enumerate(zip(float64_trace(CASES[name]), RECORDED[name], strict=True)):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0), f"update {update} of {name}"


@pytest.fixture(scope="module", params=REMEMBERING)
def remembered(request: Any) -> tuple[Case, Checksums]:
    """Return a case with a memory, and the trace it leaves where nothing stands in the way of `path`."""
    case = REMEMBERING[request.param]
    return case, float64_trace(case)


def path_of(case: Case) -> str:
    found: str = next(followed(case)).learner.update_path
    return found


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_memory_is_explicit_and_so_is_all_above_an_encoder(name: str) -> None:
    assert path_of(REMEMBERING[name]) == ("explicit after autograd" if "encoder" in name else "explicit")


def test_every_path_through_a_memory_leaves_the_same_trace(
    remembered: tuple[Case, Checksums], path: str
) -> None:
    case, expected = remembered
    assert path_of(case) == ("autograd" if path == "autograd" else "explicit after autograd")
    for update, (ours, theirs) in enumerate(zip(float64_trace(case), expected, strict=True)):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0), f"update {update} by {path}"


def drive(name: str, together: bool) -> Iterator[Driven]:
    """Drive a case with the batches that are owed together, or one by one."""
    driven = Driven(CASES[name].config)
    if together:
        driven.source.batch_size, drawn = 10**6, driven.source.batch_size
        sample = driven.source.buffer.sample
        driven.source.buffer.sample = lambda rows, *a, **k: sample(rows // 10**6 * drawn, *a, **k)
    try:
        for result in driven.updates():
            assert result.updates == (2 if together else 1)
            yield driven
    finally:
        driven.stepper.close()


@pytest.mark.parametrize(
    "name",
    [
        "dqn",
        "dqn double",
        "dqn target by timesteps",
        "dqn c51",
        "dqn noisy",
        "sac",
        "sac ensemble",
        "td3",
        "sac state-dependent noise",
    ],
)
def test_batches_together_teach_what_they_teach_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.data.sources.MAX_ROWS_AT_ONCE", 2**40)
    monkeypatch.setattr("rl_training.data.sources.MAX_BYTES_AT_ONCE", 2**60)
    with one_thread_of(torch.float64):
        single = [checksums(driven) for driven in drive(name, together=False)]
        both = [checksums(driven) for driven in drive(name, together=True)]
    assert len(single) == 2 * len(both) == UPDATES
    for ours, theirs in zip(both, single[1::2], strict=True):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0)
