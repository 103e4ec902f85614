import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rl_training.models.fast.acting import NumpyMLP, numpy_twin
from rl_training.models.mlp import ActivationName, mlp_with_head
from rl_training.models.q_network import NoisyLinear, QNetwork

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_network(
    hidden_sizes: tuple[int, ...] = (8, 6),
    *,
    outputs_per_action: int = 1,
    dueling: bool = False,
    noisy: bool = False,
    seed: int = 0,
) -> QNetwork:
    return QNetwork(
        4,
        3,
        hidden_sizes,
        outputs_per_action=outputs_per_action,
        dueling=dueling,
        noisy=noisy,
        generator=generator(seed),
    )


def features(rows: int = 5) -> torch.Tensor:
    return torch.randn(rows, 4, generator=generator(9))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("rows", [1, 6])
def test_a_noisy_layer_equals_one_whose_weights_are_written_out(rows: int) -> None:
    layer = NoisyLinear(4, 3, generator=generator())
    with torch.no_grad():  # unlike deviations, so that a transposed or mixed-up one shows
        layer.weight_sigma.uniform_(0.1, 1.0, generator=generator(1))
        layer.bias_sigma.uniform_(0.1, 1.0, generator=generator(2))
    x = torch.randn(6, 4, generator=generator(3))
    inputs, outputs = (
        torch.randn(rows, 4, generator=generator(4)),
        torch.randn(rows, 3, generator=generator(5)),
    )
    actual = layer(x, (inputs, outputs))
    for row in range(6):
        e_in, e_out = inputs[row % rows], outputs[row % rows]
        weight = layer.weight + layer.weight_sigma * torch.outer(e_out, e_in)
        bias = layer.bias + layer.bias_sigma * e_out
        torch.testing.assert_close(actual[row], F.linear(x[row], weight, bias), rtol=0, atol=1e-13)


def test_a_noisy_layer_without_noise_is_the_mean_one() -> None:
    layer, x = NoisyLinear(4, 3, generator=generator()), features()
    assert torch.equal(layer(x, None), F.linear(x, layer.weight, layer.bias))


def test_a_noisy_layer_starts_as_the_paper_says() -> None:
    layer = NoisyLinear(16, 64, generator=generator())
    assert 0.2 < layer.weight.abs().max() <= 0.25
    assert layer.bias.abs().max() <= 0.25
    assert torch.equal(layer.weight_sigma, torch.full((64, 16), 0.5 / 4))
    assert torch.equal(layer.bias_sigma, torch.full((64,), 0.5 / 4))


def test_noise_is_the_signed_root_of_a_standard_normal() -> None:
    noise = make_network((8, 64), noisy=True).draw_noise(np.random.default_rng(0), CPU, rows=2000)
    assert noise is not None
    drawn = noise[0][1]
    raw = drawn.sign() * drawn.square()
    assert raw.mean().abs() < 0.02
    assert raw.std().item() == pytest.approx(1.0, abs=0.02)
    assert (raw < 1).float().mean().item() == pytest.approx(0.8413, abs=0.01)


@pytest.mark.parametrize(("dueling", "layers"), [(False, 2), (True, 4)])
def test_noise_covers_the_noisy_layers_of_all_streams(dueling: bool, layers: int) -> None:
    network = make_network(dueling=dueling, noisy=True)
    noise = network.draw_noise(np.random.default_rng(0), CPU, rows=5)
    assert noise is not None
    sizes = [(8, 6), (6, 3), (8, 6), (6, 1)][:layers]
    assert [(tuple(i.shape), tuple(o.shape)) for i, o in noise] == [((5, i), (5, o)) for i, o in sizes]
    base = network(features(), noise)
    for index in range(layers):
        changed = list(noise)
        changed[index] = (noise[index][0], -noise[index][1])
        assert not torch.allclose(network(features(), changed), base), index


def test_each_row_of_noise_disturbs_its_own_row() -> None:
    network = make_network(noisy=True)
    same = torch.ones(5, 4)
    noise = network.draw_noise(np.random.default_rng(0), CPU, rows=5)
    outputs = network(same, noise)[:, :, 0]
    assert len({tuple(row.tolist()) for row in outputs}) == 5


def test_a_quiet_network_draws_no_noise() -> None:
    rng = np.random.default_rng(0)
    assert make_network().draw_noise(rng, CPU) is None
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("outputs_per_action", [1, 7])
def test_a_dueling_network_takes_the_mean_advantage_out(outputs_per_action: int) -> None:
    network = make_network(outputs_per_action=outputs_per_action, dueling=True)
    assert network.value is not None
    outputs = network(features())
    body = network.body(features())
    advantage = network.advantage(body, None).view(5, 3, outputs_per_action)
    value = network.value(body, None)
    torch.testing.assert_close(outputs.mean(1), value)
    torch.testing.assert_close(outputs[:, 2] - outputs[:, 0], advantage[:, 2] - advantage[:, 0])
    for row in range(5):
        mean = sum(advantage[row, action] for action in range(3)) / 3
        for action in range(3):
            expected = value[row] + advantage[row, action] - mean
            torch.testing.assert_close(outputs[row, action], expected)


def test_outputs_belong_to_actions_first_and_atoms_second() -> None:
    network = make_network(outputs_per_action=2)
    outputs = network(features())
    assert outputs.shape == (5, 3, 2)
    last = network.advantage.layers[-1]
    hidden = torch.relu(network.advantage.layers[0](network.body(features())))
    torch.testing.assert_close(outputs[:, 1, 0], F.linear(hidden, last.weight, last.bias)[:, 2])


@pytest.mark.parametrize("hidden_sizes", [(), (8,), (8, 6, 5)])
@pytest.mark.parametrize("dueling", [False, True])
def test_any_number_of_hidden_layers_works(hidden_sizes: tuple[int, ...], dueling: bool) -> None:
    network = make_network(hidden_sizes, dueling=dueling)
    assert network(features()).shape == (5, 3, 1)
    assert len(network.body) == 2 * max(len(hidden_sizes) - 1, 0)
    assert len(network.advantage.layers) == min(len(hidden_sizes), 1) + 1


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 actions"):
        QNetwork(4, 0, (8,), generator=generator())


def twin_of(network: nn.Module) -> NumpyMLP:
    twin = numpy_twin(network)
    assert isinstance(twin, NumpyMLP)
    return twin


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
@pytest.mark.parametrize("hidden_sizes", [(), (8,), (8, 6)])
def test_the_network_in_numpy_equals_torchs(
    activation: ActivationName, hidden_sizes: tuple[int, ...]
) -> None:
    network = mlp_with_head((4, *hidden_sizes, 3), activation, generator=generator())
    x = 3 * features()
    before = x.clone()
    outputs = twin_of(network)(x.numpy())
    np.testing.assert_allclose(outputs, network(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert torch.equal(x, before)


def test_the_numpy_network_sees_training_in_place_and_notices_a_move() -> None:
    network = mlp_with_head((4, 8, 3), "relu", generator=generator())
    view = twin_of(network)
    before = view(features().numpy())
    last = network[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.bias.add_(1.0)
    np.testing.assert_allclose(view(features().numpy()), before + 1.0, rtol=1e-5)
    assert view.current
    network.double()
    assert not view.current
