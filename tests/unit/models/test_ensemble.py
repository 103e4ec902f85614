import pytest
import torch
from torch import nn

from rl_training.models.ensemble import EnsembleMLP
from rl_training.models.mlp import ACTIVATIONS, ActivationName

SIZES = (5, 7, 6, 1)


def make_ensemble(
    members: int = 3, activation: ActivationName = "relu", sizes: tuple[int, ...] = SIZES, seed: int = 0
) -> EnsembleMLP:
    return EnsembleMLP(members, sizes, activation, generator=torch.Generator().manual_seed(seed))


def split(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and actions, which the networks read side by side."""
    return inputs[:, :3], inputs[:, 3:]


def separate(ensemble: EnsembleMLP, activation: ActivationName) -> list[nn.Sequential]:
    """Plain networks with the members' weights."""
    networks = []
    for member in range(ensemble.num_members):
        layers: list[nn.Module] = []
        for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[2])
            linear.weight.data = weight.detach()[member].T.clone()
            linear.bias.data = bias.detach()[member, 0].clone()
            layers += [linear, ACTIVATIONS[activation]()]
        networks.append(nn.Sequential(*layers[:-1]))
    return networks


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_members_have_the_values_and_gradients_of_separate_networks(activation: ActivationName) -> None:
    ensemble = make_ensemble(activation=activation)
    inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    weights = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    outputs = ensemble(*split(inputs))
    assert outputs.shape == (3, 8)
    (outputs.square() * weights).sum().backward()
    for member, network in enumerate(separate(ensemble, activation)):
        expected = network(inputs)[:, 0]
        torch.testing.assert_close(outputs[member], expected, rtol=0, atol=1e-13)
        (expected.square() * weights[member]).sum().backward()
        linear = [module for module in network if isinstance(module, nn.Linear)]
        for layer, weight, bias in zip(linear, ensemble.weights, ensemble.biases, strict=True):
            torch.testing.assert_close(weight.grad[member].T, layer.weight.grad, rtol=0, atol=1e-12)
            torch.testing.assert_close(bias.grad[member, 0], layer.bias.grad, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_gradients_reach_the_inputs_from_every_member() -> None:
    ensemble = make_ensemble()
    inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    (ours,) = torch.autograd.grad(ensemble(*split(inputs)).sum(), inputs)
    (theirs,) = torch.autograd.grad(
        sum(network(inputs).sum() for network in separate(ensemble, "relu")), inputs
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("members", [1, 2])
def test_the_first_members_alone_give_the_first_rows(members: int) -> None:
    ensemble, inputs = make_ensemble(), torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    part = ensemble(*split(inputs), members=members)
    assert part.shape == (members, 8)
    torch.testing.assert_close(part, ensemble(*split(inputs))[:members])


def test_the_first_member_alone_gives_the_others_no_gradient() -> None:
    ensemble, inputs = make_ensemble(), torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    ensemble(*split(inputs), members=1).sum().backward()
    for weight in ensemble.weights:
        assert weight.grad[0].any()
        assert not weight.grad[1:].any()


def test_an_ensemble_of_one_and_one_without_hidden_layers_work() -> None:
    inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    single = make_ensemble(members=1)
    torch.testing.assert_close(single(*split(inputs))[0], separate(single, "relu")[0](inputs)[:, 0])
    linear = make_ensemble(sizes=(5, 1))
    expected = inputs @ linear.weights[0][2, :, 0] + linear.biases[0][2, 0, 0]
    torch.testing.assert_close(linear(*split(inputs))[2], expected)


def test_every_member_starts_with_weights_of_its_own_inside_torchs_bounds() -> None:
    ensemble = make_ensemble(sizes=(16, 64, 1))
    for weight, bias, fan_in in zip(ensemble.weights, ensemble.biases, (16, 64), strict=True):
        assert not torch.equal(weight[0], weight[1])
        assert not torch.equal(bias[0], bias[1])
        assert 0.8 * fan_in**-0.5 < weight.abs().max() <= fan_in**-0.5
        assert bias.abs().max() <= fan_in**-0.5


def test_initial_weights_follow_the_generator() -> None:
    one, same, other = make_ensemble(seed=1), make_ensemble(seed=1), make_ensemble(seed=2)
    assert torch.equal(one.weights[0], same.weights[0])
    assert not torch.equal(one.weights[0], other.weights[0])


@pytest.mark.parametrize(("members", "sizes"), [(0, (3, 1)), (2, (3, 2)), (2, (3, 0, 1))])
def test_an_impossible_ensemble_is_refused(members: int, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes must be positive and end with 1, got"):
        make_ensemble(members, sizes=sizes)


def test_layer_norm_is_that_of_torch_for_each_member():
    settings = {"layer_norm": True, "generator": torch.Generator().manual_seed(0)}
    ensemble = EnsembleMLP(2, SIZES, "relu", **settings)
    for part in [*ensemble.scales, *ensemble.shifts]:
        nn.init.normal_(part)
    inputs = torch.randn(4, 5)
    expected = []
    for member, plain in enumerate(separate(ensemble, "relu")):
        x, (*hidden, last) = inputs, [layer for layer in plain if isinstance(layer, nn.Linear)]
        for layer, scale, shift in zip(hidden, ensemble.scales, ensemble.shifts, strict=True):
            norm = nn.LayerNorm(layer.out_features)
            norm.weight.data, norm.bias.data = scale.data[member, 0], shift.data[member, 0]
            x = norm(layer(x)).relu()
        expected.append(last(x)[:, 0])
    torch.testing.assert_close(ensemble(*split(inputs)), torch.stack(expected))
    torch.testing.assert_close(ensemble(*split(inputs), members=1), expected[0][None])


def test_layer_norm_changes_no_other_parameter():
    plain = make_ensemble(2).state_dict()
    normalized = EnsembleMLP(2, SIZES, "relu", layer_norm=True, generator=torch.Generator().manual_seed(0))
    known = normalized.state_dict()
    assert all(torch.equal(part, known[name]) for name, part in plain.items())
    assert {name.split(".")[0] for name in known.keys() - plain.keys()} == {"scales", "shifts"}
