import pytest
import torch
from torch import nn

from rl_training.algorithms.optimizers import FlatAdam, flatten_parameters
from support.descent import minimize


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)


def loss_of(net: nn.Module, step: int, scale: float = 10.0) -> torch.Tensor:
    weight = next(net.parameters())
    rng = torch.Generator().manual_seed(step)
    inputs = torch.randn(8, 4, generator=rng, dtype=torch.float64).to(weight.dtype)
    return scale * (net(inputs) - 1.0).square().mean()


def parameters_of(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


@pytest.mark.parametrize("max_grad_norm", [None, 0.5, 1e6])
def test_steps_equal_torchs_adam_with_clipping(max_grad_norm: float | None) -> None:
    ours, theirs = network(), network()
    flat = FlatAdam(ours.parameters(), max_grad_norm=max_grad_norm)
    adam = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    for step in range(8):
        learning_rate = 0.01 / (step + 1)
        adam.param_groups[0]["lr"] = learning_rate
        adam.zero_grad()
        loss_of(theirs, step).backward()
        bound = float("inf") if max_grad_norm is None else max_grad_norm
        their_norm = nn.utils.clip_grad_norm_(theirs.parameters(), bound)
        adam.step()
        norm = minimize(flat, loss_of(ours, step), torch.tensor(learning_rate, dtype=torch.float64))
        torch.testing.assert_close(norm, their_norm, rtol=1e-12, atol=0)
        torch.testing.assert_close(parameters_of(ours), parameters_of(theirs), rtol=0, atol=1e-12)


def test_single_precision_keeps_seven_digits_of_the_first_step() -> None:
    """The first step is learning_rate * g / (|g| + eps): nothing of it may be lost in the bias corrections."""
    parameter = nn.Parameter(torch.zeros(3))
    flat = FlatAdam([parameter])
    minimize(flat, (parameter * torch.tensor([2.0, -5.0, 100.0])).sum(), torch.tensor(1.0))
    expected = torch.tensor([-2 / (2 + 1e-5), 5 / (5 + 1e-5), -100 / (100 + 1e-5)])
    torch.testing.assert_close(parameter.detach(), expected, rtol=5e-7, atol=0)


def test_parameters_stay_views_of_one_vector() -> None:
    net = network()
    before = parameters_of(net)
    flat = FlatAdam(net.parameters())
    assert torch.equal(flat.flat, before)
    for step in range(2):
        minimize(flat, loss_of(net, step), torch.tensor(0.1))
    assert torch.equal(parameters_of(net), flat.flat)
    assert not torch.equal(flat.flat, before)
    storages = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    assert storages == {flat.flat.untyped_storage().data_ptr()}
    flat.flat.zero_()
    assert not any(parameter.any() for parameter in net.parameters())


def test_loading_a_model_writes_into_the_vector() -> None:
    net, other = network(), nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    flat = FlatAdam(net.parameters())
    net.load_state_dict(other.state_dict())
    assert torch.equal(flat.flat, parameters_of(other))


def test_flattening_keeps_shapes_and_order() -> None:
    parameters = [
        nn.Parameter(torch.ones(2, 3)),
        nn.Parameter(torch.full((4,), 2.0)),
        nn.Parameter(torch.tensor(3.0)),
    ]
    flat = flatten_parameters(parameters)
    assert [tuple(parameter.shape) for parameter in parameters] == [(2, 3), (4,), ()]
    assert flat.tolist() == [1.0] * 6 + [2.0] * 4 + [3.0]


@pytest.mark.parametrize(("scale", "clipped"), [(100.0, True), (1e-4, False)])
def test_gradients_are_clipped_to_the_norm_and_the_norm_before_is_told(scale: float, clipped: bool) -> None:
    net = network()
    flat = FlatAdam(net.parameters(), max_grad_norm=0.5)
    raw = torch.autograd.grad(loss_of(net, 0, scale), list(net.parameters()))
    raw_norm = torch.cat([part.reshape(-1) for part in raw]).norm()
    norm = minimize(flat, loss_of(net, 0, scale), torch.tensor(0.1))
    torch.testing.assert_close(norm, raw_norm)
    used = flat.exp_avg.norm() / (1 - 0.9)
    expected = torch.tensor(0.5, dtype=torch.float64) if clipped else raw_norm
    torch.testing.assert_close(used, expected, rtol=1e-5, atol=0)


def test_moments_continue_after_a_state_round_trip() -> None:
    one, other = network(), network()
    first, second = (
        FlatAdam(one.parameters(), max_grad_norm=0.5),
        FlatAdam(other.parameters(), max_grad_norm=0.5),
    )
    for step in range(3):
        minimize(first, loss_of(one, step), torch.tensor(0.1))
    other.load_state_dict(one.state_dict())
    second.load_state_dict(first.state_dict())
    for flat, net in ((first, one), (second, other)):
        minimize(flat, loss_of(net, 9), torch.tensor(0.1))
    assert torch.equal(parameters_of(one), parameters_of(other))
    assert second.state_dict()["step"] == 4


@pytest.mark.parametrize("asked_for", [False, True])
def test_moments_that_are_too_small_become_0_and_the_process_is_as_before(asked_for: bool) -> None:
    parameter = nn.Parameter(torch.zeros(3))
    flat = FlatAdam([parameter])
    flat.exp_avg.fill_(2.0**-126)  # the smallest normal number
    torch.set_flush_denormal(asked_for)
    try:
        flat.descend(torch.tensor(1e-3))
        small = torch.full((3,), 2.0**-126) * 0.5
        assert bool((small == 0).all()) is asked_for
    finally:
        torch.set_flush_denormal(False)
    assert not flat.exp_avg.any()
