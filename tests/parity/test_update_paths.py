"""However gradients are found and batches are handed over, the same is learned: to the recorded traces."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from parity_harness import Driven
from traces import CASES, TOLERANCE, UPDATES, checksums, float64_trace, one_thread_of, read_traces

from rl_training.algorithms import continuous, dqn, objective, off_policy, on_policy, td3
from rl_training.models import explicit, kernels, pullbacks

RECORDED = read_traces()["float64"]
EXPLICIT = (
    "ppo", "ppo continuous", "ppo value clipping", "ppo target_kl", "ppo shared network", "ppo raw advantages",
    "ppo normalize both", "ppo dict", "ppo multi-discrete", "ppo multi-binary", "a2c", "a2c continuous",
    "a2c shared network", "dqn", "dqn squared error", "dqn double", "dqn prioritized", "dqn c51", "dqn quantile",
    "dqn target by timesteps", "sac", "sac fixed temperature", "sac ensemble", "sac dict", "td3", "ddpg",
    "ppo state-dependent noise", "ppo state-dependent noise of 4 steps, shared network", "a2c state-dependent noise",
    "sac state-dependent noise", "sac state-dependent and added noise",
)  # fmt: skip


def unknown(*arguments: Any, **named: Any) -> None:
    """Stand in for what finds a chain."""


@pytest.fixture(params=["autograd", "tensors"])
def path(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leave everything to autograd, or run chains on tensors, as on another device."""
    name: str = request.param
    if name == "autograd":
        monkeypatch.setattr(objective, "explicit_actor_critic", unknown)
        for module in (dqn, continuous, td3):
            monkeypatch.setattr(module, "explicit_mlp", unknown)
        for module in (continuous, td3):
            monkeypatch.setattr(module, "explicit_critics", unknown)
    else:
        for module in (kernels, explicit, pullbacks, on_policy, off_policy):
            monkeypatch.setattr(module, "computes_on_arrays", lambda device: False)
    return name


@pytest.mark.parametrize("name", EXPLICIT)
def test_every_path_leaves_the_recorded_trace(name: str, path: str) -> None:
    for update, (ours, theirs) in enumerate(zip(float64_trace(CASES[name]), RECORDED[name], strict=True)):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0), f"update {update} of {name} by {path}"


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
