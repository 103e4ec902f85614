from typing import Any

import pytest
import torch
from torch import nn

from rl_training.algorithms.optimizers import FlatAdam, FlatRMSprop
from support.descent import minimize


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def loss_of(net: nn.Module, step: int) -> torch.Tensor:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return 10 * (net(inputs) - 1.0).square().mean()


def parameters_of(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


@pytest.mark.parametrize("max_grad_norm", [None, 0.5, 1e6])
@pytest.mark.parametrize("kind", ["rmsprop", "adam"])
def test_twenty_steps_equal_torchs_optimizer_with_clipping(kind: str, max_grad_norm: float | None) -> None:
    ours, theirs = network(), network()
    flat: Any
    other: torch.optim.Optimizer
    if kind == "rmsprop":
        flat = FlatRMSprop(ours.parameters(), max_grad_norm=max_grad_norm, decay=0.95, eps=1e-3)
        other = torch.optim.RMSprop(theirs.parameters(), alpha=0.95, eps=1e-3)
    else:
        flat = FlatAdam(ours.parameters(), max_grad_norm=max_grad_norm, betas=(0.8, 0.99), eps=1e-8)
        other = torch.optim.Adam(theirs.parameters(), betas=(0.8, 0.99), eps=1e-8)
    norms = []
    for step in range(20):
        learning_rate = 0.01 / (step + 1)
        other.param_groups[0]["lr"] = learning_rate
        other.zero_grad()
        loss_of(theirs, step).backward()
        bound = float("inf") if max_grad_norm is None else max_grad_norm
        norms.append(nn.utils.clip_grad_norm_(theirs.parameters(), bound))
        other.step()
        norm = minimize(flat, loss_of(ours, step), torch.tensor(learning_rate, dtype=torch.float64))
        torch.testing.assert_close(norm, norms[-1], rtol=1e-12, atol=0)
        torch.testing.assert_close(parameters_of(ours), parameters_of(theirs), rtol=0, atol=1e-12)
    assert max(norms) > 0.5  # or nothing would have been clipped


def test_defaults_are_those_of_the_paper() -> None:
    ours, theirs = network(), network()
    flat = FlatRMSprop(ours.parameters())
    other = torch.optim.RMSprop(theirs.parameters(), lr=0.01, alpha=0.99, eps=1e-5)
    for step in range(3):
        other.zero_grad()
        loss_of(theirs, step).backward()
        other.step()
        minimize(flat, loss_of(ours, step), torch.tensor(0.01, dtype=torch.float64))
    torch.testing.assert_close(parameters_of(ours), parameters_of(theirs), rtol=0, atol=1e-12)


def test_averages_continue_after_a_state_round_trip() -> None:
    one, other = network(), network(seed=1)
    first, second = FlatRMSprop(one.parameters()), FlatRMSprop(other.parameters())
    for step in range(3):
        minimize(first, loss_of(one, step), torch.tensor(0.1))
    other.load_state_dict(one.state_dict())
    second.load_state_dict(first.state_dict())
    for flat, net in ((first, one), (second, other)):
        minimize(flat, loss_of(net, 9), torch.tensor(0.1))
    assert torch.equal(parameters_of(one), parameters_of(other))


@pytest.mark.parametrize("kind", [FlatAdam, FlatRMSprop])
def test_the_state_of_another_network_is_refused(kind: Any) -> None:
    state = kind(nn.Linear(1, 1, bias=False).parameters()).state_dict()
    with pytest.raises(ValueError, match=r"has shape \(1,\) instead of \(44,\)"):
        kind(network().parameters()).load_state_dict(state)


@pytest.mark.parametrize("kind", [FlatAdam, FlatRMSprop])
def test_only_its_own_parameters_get_gradients(kind: Any) -> None:
    mine, others = network(), network(seed=1)
    before = parameters_of(others)
    flat = kind(mine.parameters())
    minimize(flat, loss_of(mine, 0) * loss_of(others, 0), torch.tensor(0.1))
    assert all(parameter.grad is None for parameter in [*mine.parameters(), *others.parameters()])
    assert torch.equal(parameters_of(others), before)
