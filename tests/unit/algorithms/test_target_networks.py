import pytest
import torch
from torch import nn

from rl_training.algorithms.optimizers import flatten_parameters
from rl_training.algorithms.target_networks import TargetNetwork


def pair() -> tuple[nn.Sequential, TargetNetwork]:
    """A network with running statistics and its target; the online parameters have moved away since."""
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    flat = flatten_parameters(list(online.parameters()))
    target = TargetNetwork(online, flat)
    with torch.no_grad():
        flat.add_(torch.randn(flat.shape))
    online(5 + torch.randn(16, 3))  # moves the running statistics
    return online, target


def statistics(network: nn.Module) -> list[torch.Tensor]:
    return [buffer.clone() for buffer in network.buffers()]


def parameters(network: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def test_a_target_is_a_copy_that_stays_while_the_online_network_learns() -> None:
    online, target = pair()
    for mine, theirs in zip(parameters(target.network), parameters(online), strict=True):
        assert not torch.equal(mine, theirs)
    before = parameters(target.network)
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1.0)
    for mine, old in zip(parameters(target.network), before, strict=True):
        assert torch.equal(mine, old)
    assert not any(parameter.requires_grad for parameter in target.network.parameters())
    assert all(parameter.requires_grad for parameter in online.parameters())


@pytest.mark.parametrize("tau", [0.005, 0.5, 1.0])
def test_following_moves_every_parameter_by_the_part_tau(tau: float) -> None:
    online, target = pair()
    before, goal = parameters(target.network), parameters(online)
    target.follow(tau)
    for mine, old, theirs in zip(parameters(target.network), before, goal, strict=True):
        torch.testing.assert_close(mine, (1 - tau) * old + tau * theirs)
    for now, theirs in zip(parameters(online), goal, strict=True):
        assert torch.equal(now, theirs)


def test_following_wholly_makes_the_networks_equal() -> None:
    online, target = pair()
    target.follow()
    for mine, theirs in zip(parameters(target.network), parameters(online), strict=True):
        assert torch.equal(mine, theirs)


def test_running_statistics_are_copied_not_averaged() -> None:
    online, target = pair()
    assert not torch.equal(statistics(online)[0], statistics(target.network)[0])
    target.follow(0.005)
    for mine, theirs in zip(statistics(target.network), statistics(online), strict=True):
        assert torch.equal(mine, theirs)
    online(torch.randn(16, 3))
    assert not torch.equal(statistics(online)[0], statistics(target.network)[0])


def test_a_state_round_trip_restores_parameters_and_statistics_in_place() -> None:
    _, target = pair()
    target.follow(0.3)
    state = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    other_online, other = pair()
    other.load_state_dict(state)
    for mine, theirs in zip(
        [*parameters(other.network), *statistics(other.network)],
        [*parameters(target.network), *statistics(target.network)],
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    other.follow(0.5)  # still one vector
    target.follow(0.5)
    for mine, theirs in zip(parameters(other.network), parameters(target.network), strict=True):
        assert torch.equal(mine, theirs)
    assert all(parameter.requires_grad for parameter in other_online.parameters())


def test_a_vector_of_another_network_is_refused() -> None:
    network = nn.Linear(3, 4)
    with pytest.raises(ValueError, match="flat has 5 numbers, but the network has 16 parameters"):
        TargetNetwork(network, torch.zeros(5))
