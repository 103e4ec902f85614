"""Cores against torch's cells stepped one by one, and the whole network in torch against its twin in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.models.cores import CELLS, IdentityCore, RecurrentCore
from rl_training.models.fast.acting import NumpyRecurrent, numpy_twin
from rl_training.models.recurrent import LSTMActorCritic

LENGTH, ROWS, INPUTS, SIZE = 7, 5, 3, 4


@pytest.fixture(autouse=True)
def _double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(kind: Any, layers: int = 1, *, orthogonal: bool = False) -> RecurrentCore:
    generator = torch.Generator().manual_seed(3)
    return RecurrentCore(kind, INPUTS, SIZE, num_layers=layers, orthogonal=orthogonal, generator=generator)


def sequences(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features [L * B, D] and starts [L * B]; one row begins at once, one never does."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(LENGTH, ROWS, INPUTS, generator=rng)
    starts = torch.rand(LENGTH, ROWS, generator=rng) < 0.3
    starts[0, 0], starts[:, 1] = True, False
    return features.view(-1, INPUTS), starts.view(-1)


def memory_of(core: Any, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(9)
    return tuple(torch.randn(rows, size, generator=rng) for size in core.memory_sizes)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", CELLS)
def test_a_core_equals_its_cells_stepped_one_by_one_and_emptied_where_an_episode_starts(
    kind: Any, layers: int
) -> None:
    core = made(kind, layers)
    features, starts = sequences()
    memory = memory_of(core)
    found, after = core(features, memory, starts)
    for row in range(ROWS):
        hidden = [part[row].view(layers, 1, SIZE) for part in memory]
        for step in range(LENGTH):
            if starts.view(LENGTH, ROWS)[step, row]:
                hidden = [torch.zeros_like(part) for part in hidden]
            seen = features.view(LENGTH, ROWS, -1)[step, row].view(1, 1, -1)
            out, new = core.cells(seen, tuple(hidden) if kind == "lstm" else hidden[0])
            hidden = list(new) if kind == "lstm" else [new]
            torch.testing.assert_close(found.view(LENGTH, ROWS, -1)[step, row], out[0, 0])
        for part, expected in zip(after, hidden, strict=True):
            torch.testing.assert_close(part[row], expected.reshape(-1))


@pytest.mark.parametrize("kind", CELLS)
def test_nothing_before_an_episode_reaches_into_it_and_no_gradient_leaves_it(kind: Any) -> None:
    core = made(kind)
    features, starts = sequences()
    starts.view(LENGTH, ROWS)[4] = True
    memory = memory_of(core)
    features.requires_grad_()
    found, _ = core(features, memory, starts)
    other = features.detach().clone()
    other.view(LENGTH, ROWS, -1)[:4] += 1.0
    changed, _ = core(other, tuple(part + 1 for part in memory), starts)
    torch.testing.assert_close(changed.view(LENGTH, -1)[4:], found.view(LENGTH, -1)[4:], rtol=0, atol=0)
    assert not torch.equal(changed, found)
    (slope,) = torch.autograd.grad(found.view(LENGTH, -1)[4:].sum(), features)
    assert torch.equal(slope.view(LENGTH, -1)[:4], torch.zeros(4, ROWS * INPUTS))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", CELLS)
def test_acting_in_numpy_equals_the_network(kind: Any, layers: int, share: bool) -> None:
    network = LSTMActorCritic(
        INPUTS, 2, core=kind, core_size=SIZE, core_layers=layers, share_core=share, orthogonal=False
    )
    twin = numpy_twin(network)
    assert isinstance(twin, NumpyRecurrent)
    memory = tuple(torch.zeros(ROWS, size) for size in network.memory_sizes)
    arrays = tuple(part.numpy() for part in memory)
    never = torch.zeros(ROWS, dtype=torch.bool)
    for seed in range(4):
        x = torch.randn(ROWS, INPUTS, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            params, values, memory = network(x, memory=memory, starts=never)
        ours, our_values, arrays = twin(x.numpy(), arrays)
        np.testing.assert_allclose(ours, params.numpy(), rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(our_values, values.numpy(), rtol=1e-11, atol=1e-14)
        for one, two in zip(arrays, memory, strict=True):
            np.testing.assert_allclose(one, two.numpy(), rtol=1e-11, atol=1e-14)
    with torch.no_grad():
        next(network.parameters()).mul_(2.0)
    moved = twin(x.numpy(), arrays)[0]
    with torch.no_grad():
        expected = network(x, memory=tuple(map(torch.from_numpy, arrays)), starts=never)[0]
    np.testing.assert_allclose(moved, expected.numpy(), rtol=1e-11, atol=1e-14)


def test_a_core_without_memory_passes_features_on_and_has_no_twin() -> None:
    network = LSTMActorCritic(INPUTS, 2, core=None)
    assert isinstance(network.core, IdentityCore)
    assert network.memory_sizes == ()
    assert numpy_twin(network) is None


@pytest.mark.parametrize("orthogonal", [True, False])
def test_weights_come_from_the_generator_alone(orthogonal: bool) -> None:
    before = torch.get_rng_state()
    one, two = made("lstm", orthogonal=orthogonal), made("lstm", orthogonal=orthogonal)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()
    assert torch.equal(torch.get_rng_state(), before)
    biases = [p for name, p in one.named_parameters() if "bias" in name]
    assert all(bool((bias == 0).all()) == orthogonal for bias in biases)


def test_one_step_gives_action_value_log_probability_and_the_next_memory() -> None:
    network = LSTMActorCritic(INPUTS, 2, core_size=SIZE)
    x = torch.randn(ROWS, INPUTS)
    actions, values, logprobs, memory = network.act(x, rng=np.random.default_rng(0))
    assert actions.shape == values.shape == logprobs.shape == (ROWS,)
    assert set(actions.tolist()) <= {0, 1}
    assert [part.shape for part in memory] == [(ROWS, SIZE), (ROWS, SIZE)]
    again = network.act(x, memory, torch.ones(ROWS, dtype=torch.bool), rng=np.random.default_rng(0))
    np.testing.assert_array_equal(again[1], values)
    assert not torch.equal(network.act(x, memory)[1], values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_size": 0, "action_size": 2}, "input_size and action_size must be positive, got 0 and 2"),
        ({"input_size": 3, "action_size": 2, "core_size": 0}, "must be positive, got 3, 0 and 1"),
        ({"input_size": 3, "action_size": 2, "core_layers": -1}, "must be positive, got 3, 64 and -1"),
        ({"input_size": 3, "action_size": 2, "core": "rnn"}, "core is 'rnn'; use lstm or gru"),
    ],
)
def test_senseless_sizes_fail_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LSTMActorCritic(**arguments)
