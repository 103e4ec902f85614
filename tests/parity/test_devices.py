"""Every algorithm and switch, trained on another device, leaves the trace that it leaves on the CPU.

The device is a pretended one (`support/pretend_device.py`): a mix of devices or a forgotten `.to` raises an error, and
whatever would make the CPU wait for the device is counted.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from test_update_paths import CATCH, ENCODED, REMEMBERING
from torch import nn
from traces import (
    CASES,
    TOLERANCE,
    Case,
    Checksums,
    checksums,
    driven_by,
    float64_trace,
    one_thread_of,
    read_traces,
)

from support.pretend_device import NAME, PretendTensor, pretend_device, transfers

FOLLOWED = 5
"""Updates per case; the rest of a trace adds nothing but time."""
RECORDED = read_traces()["float64"]
LOCKS = "rl_training.envs.tasks:rl_training/Locks-v0"
IMAGES = {"encoder": "small", "features_dim": 6}
OTHERS = {
    "ppo images": Case("ppo", CATCH, CASES["ppo"].settings | IMAGES),
    "ppo encoder": Case("ppo", CASES["ppo"].env_id, CASES["ppo"].settings | ENCODED),
    "dqn images": Case("dqn", CATCH, CASES["dqn"].settings | IMAGES),
    "ppo masks": Case("ppo", LOCKS, CASES["ppo"].settings | {"use_action_masks": "on"}),
    "dqn masks": Case("dqn", LOCKS, CASES["dqn"].settings | {"use_action_masks": "on"}),
    **REMEMBERING,
}
"""Cases without a recorded trace: the CPU is asked first."""
WAITS = {"ppo target_kl": {"item"}}
"""Where an update must wait for the device. Recurrent networks wait for the places at which episodes begin."""


def trained_elsewhere(case: Case) -> tuple[Checksums, set[str]]:
    """Return the trace of a case on the pretend device, and the kinds of transfer inside its updates."""
    trace, waits = [], set[str]()
    with one_thread_of(torch.float64), pretend_device() as device:
        elsewhere = replace(case, settings=case.settings | {"device": device})
        driven = driven_by(elsewhere)
        update = driven.learner.update

        def counted(batch, progress):
            transfers.clear()
            result = update(batch, progress)
            waits.update(transfers)
            return result

        driven.learner.update = counted
        for _ in itertools.islice(driven.updates(), FOLLOWED):
            assert all(
                isinstance(parameter, PretendTensor) for parameter in driven.learner.policy.parameters()
            )
            trace.append(checksums(driven))
        driven.close()
    return trace, waits


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_another_device_learns_the_same_and_is_not_waited_for(name):
    case = CASES[name] if name in CASES else OTHERS[name]
    trace, waits = trained_elsewhere(case)
    expected = RECORDED[name] if name in CASES else float64_trace(case)
    for update, (ours, theirs) in enumerate(zip(trace, expected[:FOLLOWED], strict=True)):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0), f"update {update} of {name}"
    assert waits == WAITS.get(name, {"tolist"} if case.algo == "recurrent_ppo" else set())


def test_the_pretend_device_refuses_what_a_gpu_refuses():
    with pretend_device() as device:
        network = nn.Linear(3, 2).to(device)
        there = torch.zeros(4, 3, device=device)
        assert network(there).device.type == NAME
        with pytest.raises(RuntimeError, match="same device"):
            network(torch.zeros(4, 3))
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.zeros(4, 3)
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()


def test_the_pretend_device_counts_what_a_gpu_waits_for():
    with pretend_device() as device:
        there = torch.arange(4.0, device=device)
        total = there.sum() * 2 + 1.0
        assert transfers == []
        assert total.item() == 13
        assert there[torch.tensor([1, 3])].cpu().tolist() == [1, 3]
        assert there.tolist() == [0, 1, 2, 3]
        assert transfers == ["item", "index", "cpu", "tolist"]
