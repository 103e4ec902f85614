import pytest
import torch
from torch import Tensor

from rl_training.algorithms.q_objective import (
    categorical_loss,
    categorical_losses,
    project,
    quantile_loss,
    quantile_losses,
    td_loss,
)

pytestmark = pytest.mark.usefixtures("float64")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def td_losses(
    values: Tensor, next_values: Tensor, rewards: Tensor, discounts: Tensor, *, huber: bool
) -> tuple[Tensor, Tensor]:
    """Return the loss and the error of each row."""
    pairs = zip(values, rewards + discounts * next_values, strict=True)
    rows = [td_loss({"values": value[None], "targets": target[None]}, huber=huber) for value, target in pairs]
    return torch.stack([row["loss"] for row in rows]), torch.cat([row["errors"] for row in rows])


def slow_projection(probabilities: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor) -> Tensor:
    """Atom by atom: the share of each neighbour falls linearly with its distance."""
    low, high, gap = support[0].item(), support[-1].item(), (support[1] - support[0]).item()
    result = torch.zeros_like(probabilities)
    for row in range(len(probabilities)):
        for atom in range(len(support)):
            moved = rewards[row].item() + discounts[row].item() * support[atom].item()
            moved = min(max(moved, low), high)
            for other in range(len(support)):
                share = max(0.0, 1.0 - abs(moved - support[other].item()) / gap)
                result[row, other] += share * probabilities[row, atom]
    return result


def slow_quantile_loss(quantiles: Tensor, targets: Tensor) -> float:
    """The sum over quantiles of the mean over targets, for one row."""
    total, count = 0.0, len(quantiles)
    for i in range(count):
        tau = (2 * i + 1) / (2 * count)
        for j in range(len(targets)):
            u = targets[j].item() - quantiles[i].item()
            huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
            total += abs(tau - (1.0 if u < 0 else 0.0)) * huber / len(targets)
    return total


def test_the_huber_loss_by_hand() -> None:
    values, next_values = torch.tensor([1.0, 0.0, 5.0]), torch.tensor([2.0, 10.0, 7.0])
    rewards, discounts = torch.tensor([0.5, -1.0, 3.0]), torch.tensor([0.5, 0.9, 0.0])
    # targets 1.5, 8 and (the task ended) 3: errors 0.5, 8 and -2
    losses, errors = td_losses(values, next_values, rewards, discounts, huber=True)
    assert losses.tolist() == pytest.approx([0.125, 7.5, 1.5])
    assert errors.tolist() == pytest.approx([0.5, 8.0, 2.0])


def test_the_squared_loss_by_hand() -> None:
    values, next_values = torch.tensor([1.0, 0.0, 5.0]), torch.tensor([2.0, 10.0, 7.0])
    rewards, discounts = torch.tensor([0.5, -1.0, 3.0]), torch.tensor([0.5, 0.9, 0.0])
    losses, errors = td_losses(values, next_values, rewards, discounts, huber=False)
    assert losses.tolist() == pytest.approx([0.25, 64.0, 4.0])
    assert errors.tolist() == pytest.approx([0.5, 8.0, 2.0])


@pytest.mark.parametrize("kind", ["huber", "mse", "c51", "quantile"])
def test_the_next_value_counts_exactly_where_the_discount_is_not_zero(kind: str) -> None:
    rewards, discounts = torch.tensor([0.3, 0.3]), torch.tensor([0.0, 0.9])  # terminated, truncated

    def losses(next_said: Tensor) -> Tensor:
        said = random(2, 5)
        if kind == "c51":
            return categorical_losses(said, next_said, rewards, discounts, torch.linspace(-2.0, 2.0, 5))[0]
        if kind == "quantile":
            return quantile_losses(said, next_said, rewards, discounts)[0]
        return td_losses(said[:, 0], next_said[:, 0], rewards, discounts, huber=kind == "huber")[0]

    one, other = losses(random(2, 5, seed=1)), losses(random(2, 5, seed=2))
    assert one[0].item() == pytest.approx(other[0].item(), abs=1e-12)
    assert one[1].item() != pytest.approx(other[1].item(), abs=1e-3)


@pytest.mark.parametrize("support", [(-10.0, 10.0, 51), (0.0, 3.0, 4), (-1.0, 1.0, 2)])
def test_the_projection_equals_a_slow_one_and_keeps_all_probability(
    support: tuple[float, float, int],
) -> None:
    atoms = torch.linspace(support[0], support[1], support[2])
    probabilities = random(15, support[2]).softmax(-1)
    rewards = 3 * random(15, seed=1)
    rewards[:4] = torch.tensor([1e6, -1e6, 0.0, 1.0])
    discounts = torch.full((15,), 0.97)
    discounts[::5] = 0.0
    projected = project(probabilities, rewards, discounts, atoms)
    torch.testing.assert_close(
        projected, slow_projection(probabilities, rewards, discounts, atoms), rtol=0, atol=1e-9
    )
    torch.testing.assert_close(projected.sum(1), torch.ones(15), rtol=0, atol=1e-12)
    assert (projected >= 0).all()


def test_atoms_that_land_exactly_on_the_grid_stay_whole() -> None:
    atoms, probabilities = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    one = torch.tensor([1.0])
    same = project(probabilities, torch.tensor([0.0]), one, atoms)
    shifted = project(probabilities, torch.tensor([1.0]), one, atoms)
    torch.testing.assert_close(same, probabilities)
    torch.testing.assert_close(shifted, torch.tensor([[0.0, 0.1, 0.2, 0.7]]))  # the top atom collects
    halved = project(probabilities, torch.tensor([0.0]), torch.tensor([0.5]), atoms)
    torch.testing.assert_close(halved, torch.tensor([[0.1 + 0.1, 0.1 + 0.3 + 0.2, 0.2, 0.0]]))


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (0.0, [1, 0, 0, 0]),
        (3.0, [0, 0, 0, 1]),
        (-5.0, [1, 0, 0, 0]),
        (9.0, [0, 0, 0, 1]),
        (1.25, [0, 0.75, 0.25, 0]),
    ],
)
def test_the_target_of_a_terminal_row_is_its_reward_alone(reward: float, expected: list[float]) -> None:
    atoms, probabilities = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    projected = project(probabilities, torch.tensor([reward]), torch.tensor([0.0]), atoms)
    torch.testing.assert_close(projected, torch.tensor([expected], dtype=torch.float64))


def test_mass_is_kept_in_single_precision_where_the_step_is_not_exact() -> None:
    atoms = torch.linspace(-10.0, 10.0, 51, dtype=torch.float32)
    probabilities = random(500, 51).softmax(-1).float()
    rewards = (10 * random(500, seed=1)).float()
    projected = project(probabilities, rewards, torch.full((500,), 0.99, dtype=torch.float32), atoms)
    torch.testing.assert_close(projected.sum(1), torch.ones(500, dtype=torch.float32), rtol=0, atol=1e-5)
    assert projected.min() >= -1e-6


def test_the_histogram_loss_is_the_cross_entropy_with_the_projected_target() -> None:
    atoms = torch.linspace(-2.0, 2.0, 7)
    logits, next_logits = random(6, 7).requires_grad_(), random(6, 7, seed=1)
    rewards, discounts = random(6, seed=2), torch.full((6,), 0.9)
    losses, errors = categorical_losses(logits, next_logits, rewards, discounts, atoms)
    target = slow_projection(next_logits.softmax(-1), rewards, discounts, atoms)
    expected = -(target * logits.softmax(-1).log()).sum(1)
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-9)
    assert torch.equal(errors, losses.detach())
    assert not errors.requires_grad
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    torch.testing.assert_close(gradient, logits.softmax(-1) - target, rtol=0, atol=1e-9)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_quantile_loss_equals_a_slow_one(count: int) -> None:
    quantiles, next_quantiles = 2 * random(8, count), 2 * random(8, count, seed=1)
    rewards, discounts = random(8, seed=2), torch.full((8,), 0.9)
    discounts[::3] = 0.0
    losses, errors = quantile_losses(quantiles, next_quantiles, rewards, discounts)
    for row in range(8):
        targets = rewards[row] + discounts[row] * next_quantiles[row]
        assert losses[row].item() == pytest.approx(slow_quantile_loss(quantiles[row], targets), abs=1e-12)
        error = abs(targets.mean().item() - quantiles[row].mean().item())
        assert errors[row].item() == pytest.approx(error, abs=1e-12)


def test_gradients_of_the_quantile_loss_are_those_of_finite_differences() -> None:
    rewards, discounts, following = random(4, seed=2), torch.full((4,), 0.9), random(4, 3, seed=1)
    quantiles = (2 * random(4, 3)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q: quantile_losses(q, following, rewards, discounts)[0], (quantiles,)
    )


def test_quantiles_of_a_coin_are_found_by_descent() -> None:
    """Half of the targets are 0, half are 10: a low quantile must go to 0, a high one to 10."""
    quantiles = torch.full((1, 4), 5.0).requires_grad_()
    targets = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    for _ in range(400):
        losses, _ = quantile_losses(quantiles, targets, torch.zeros(1), torch.ones(1))
        (gradient,) = torch.autograd.grad(losses.sum(), quantiles)
        quantiles = (quantiles - gradient).detach().requires_grad_()
    found = quantiles[0].tolist()
    assert found == sorted(found)
    assert max(found[:2]) < 1.0
    assert min(found[2:]) > 9.0


def test_errors_carry_no_gradient() -> None:
    said, following = random(3, 4).requires_grad_(), random(3, 4, seed=1)
    rewards, discounts = torch.zeros(3), torch.ones(3)
    for _, errors in (
        td_losses(said[:, 0], following[:, 0], rewards, discounts, huber=True),
        quantile_losses(said, following, rewards, discounts),
    ):
        assert not errors.requires_grad
        assert (errors >= 0).all()


@pytest.mark.parametrize("weights", [None, torch.tensor([2.0, 0.5, 0.0])])
def test_a_loss_is_the_mean_of_its_rows_times_their_weights(weights: Tensor | None) -> None:
    said, following, rewards, discounts = random(3, 5), random(3, 5, seed=1), random(3, seed=2), torch.ones(3)
    share = 1.0 if weights is None else weights
    common = {"rewards": rewards, "discounts": discounts, "weights": weights}
    support = torch.linspace(-2.0, 2.0, 5)
    found = categorical_loss({"logits": said, "next_logits": following, "support": support} | common)
    losses, errors = categorical_losses(said, following, rewards, discounts, support)
    assert found["loss"].item() == pytest.approx((losses * share).mean().item())
    assert torch.equal(found["errors"], errors)
    found = quantile_loss({"quantiles": said, "next_quantiles": following} | common)
    losses, errors = quantile_losses(said, following, rewards, discounts)
    assert found["loss"].item() == pytest.approx((losses * share).mean().item())
    assert torch.equal(found["errors"], errors)
    values, targets = said[:, 0], rewards + discounts * following[:, 0]
    found = td_loss({"values": values, "targets": targets, "weights": weights}, huber=False)
    assert found["loss"].item() == pytest.approx(((values - targets).square() * share).mean().item())
