import numpy as np
import pytest
import torch

from rl_training.core.types import Array
from rl_training.data.replay_sampling import UNITS, PrioritizedSampler, SumTree, UniformSampler

CAPACITIES = [1, 15, 16, 17, 256, 257, 70_000]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def sampler_of(errors: list[float], *, alpha: float = 0.6, capacity: int = 40) -> PrioritizedSampler:
    sampler = PrioritizedSampler(capacity, alpha=alpha)
    positions = np.arange(len(errors))
    sampler.added(positions)
    sampler.update(positions, np.array(errors, np.float32))
    return sampler


def draws(
    sampler: PrioritizedSampler, count: int, *, kept: int = 5, beta: float = 1.0
) -> tuple[Array, Array]:
    return sampler.draw(count, generator(), start=0, kept=kept, beta=beta)


def brute_force(leaves: Array, sums: Array) -> Array:
    """Return the leaf in whose part of the number line each sum lies."""
    return np.searchsorted(np.cumsum(leaves), sums, side="right")


def assert_same_sums(one: SumTree, other: SumTree) -> None:
    """Every node."""
    levels = zip(
        [*one.groups, *one.running, one.top], [*other.groups, *other.running, other.top], strict=True
    )
    assert all(np.array_equal(a, b) for a, b in levels)


# ------------------------------------------------------------------------------------------------- uniform


@pytest.mark.parametrize(
    ("start", "kept", "rows"),
    [
        (0, 4, {0, 1, 2, 3}),
        (0, 10, set(range(10))),
        (3, 10, set(range(10))),
        (2, 5, {2, 3, 4, 5, 6}),
        (8, 5, {8, 9, 0, 1, 2}),
        (9, 1, {9}),
    ],
)
def test_uniform_draws_reach_every_kept_row_and_no_other(start: int, kept: int, rows: set[int]) -> None:
    positions, weights = UniformSampler(10).draw(2000, generator(), start=start, kept=kept, beta=1.0)
    assert weights is None
    counts = np.bincount(positions, minlength=10)
    assert set(np.flatnonzero(counts)) == rows
    expected = 2000 / kept
    chi_square = sum((counts[row] - expected) ** 2 / expected for row in rows)
    assert chi_square < 35  # the 99.99th percentile with nine degrees of freedom is 33.7


# --------------------------------------------------------------------------------------------- prioritised


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_are_drawn_in_proportion_to_their_priorities(alpha: float) -> None:
    errors = [0.1, -0.5, 1.0, 2.0, -4.0]
    sampler, rng = sampler_of(errors, alpha=alpha), generator()
    counts = np.zeros(40)
    for _ in range(2000):
        positions, _ = sampler.draw(8, rng, start=0, kept=5, beta=1.0)
        counts += np.bincount(positions, minlength=40)
    priorities = np.abs(errors) ** alpha
    expected = 16_000 * priorities / priorities.sum()
    assert ((counts[:5] - expected) ** 2 / expected).sum() < 23.5  # 99.99 % with four degrees of freedom
    assert counts[5:].sum() == 0


def test_draws_are_stratified() -> None:
    positions, _ = draws(sampler_of([1.0] * 16), 16, kept=16)
    assert sorted(positions) == list(range(16))
    positions, _ = draws(sampler_of([2.0, 1.0, 1.0], alpha=1.0), 16, kept=3)
    assert np.abs(np.bincount(positions) - [8, 4, 4]).max() <= 1


@pytest.mark.parametrize("count", [1, 3, 32, 100])
def test_the_largest_random_numbers_draw_the_last_row_and_none_beyond(count: int) -> None:
    """Their product with the sum of the priorities is rounded up to that sum."""

    class Largest(np.random.Generator):
        def random(self, size: int) -> Array:  # type: ignore[override]
            return np.full(size, np.nextafter(1.0, 0.0))

    sampler, rng = sampler_of([0.5, 2.0, 1.0]), Largest(np.random.PCG64(0))
    positions, _ = sampler.draw(count, rng, start=0, kept=3, beta=1.0)
    assert positions[-1] == 2


def test_importance_weights_follow_the_paper() -> None:
    errors, beta = [0.1, 0.5, 1.0, 2.0, 4.0], 0.4
    positions, weights = draws(sampler_of(errors), 64, beta=beta)
    priorities = (np.abs(errors) + 1e-6) ** 0.6
    expected = (1 / (5 * priorities / priorities.sum())) ** beta
    assert set(positions) == set(range(5))
    np.testing.assert_allclose(weights, expected[positions] / expected[positions].max(), rtol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_the_largest_weight_of_a_batch_is_one(beta: float) -> None:
    sampler = sampler_of(list(generator(1).random(40) + 0.01))
    for seed in range(20):
        _, weights = sampler.draw(4, generator(seed), start=0, kept=40, beta=beta)
        assert weights.max() == 1.0
        assert (weights > 0).all()


def test_weights_are_ones_for_beta_zero_and_for_equal_priorities() -> None:
    assert draws(sampler_of([0.1, 3.0, 7.0]), 32, kept=3, beta=0.0)[1].tolist() == [1.0] * 32
    assert draws(sampler_of([2.0] * 5), 32, beta=1.0)[1].tolist() == [1.0] * 32


def test_a_new_row_has_the_largest_priority_ever_seen() -> None:
    sampler = PrioritizedSampler(8, alpha=1.0, epsilon=0.0)
    sampler.added(np.array([0]))
    assert sampler.tree.leaves[0] == UNITS
    sampler.update(np.array([0]), np.array([-5.0]))
    sampler.update(np.array([0]), np.array([0.25]))
    sampler.added(np.array([1, 2]))
    assert (sampler.tree.leaves / UNITS).tolist() == [0.25, 5.0, 5.0, 0, 0, 0, 0, 0]


def test_a_row_without_error_can_still_be_drawn() -> None:
    sampler = sampler_of([0.0, 0.0])
    np.testing.assert_allclose(sampler.tree.leaves[:2] / UNITS, 1e-6**0.6, rtol=1e-3)
    assert (sampler_of([0.0], alpha=1.0).tree.leaves[:1] > 0).all()
    assert set(draws(sampler, 16, kept=2)[0]) == {0, 1}


def test_a_restored_sampler_draws_the_same_and_knows_the_largest_priority() -> None:
    sampler, copy = sampler_of([0.1, 9.0, 1.0]), PrioritizedSampler(40)
    sampler.update(np.array([1]), np.array([0.1]))
    state = sampler.state_dict()
    copy.load_state_dict(state)
    sampler.added(np.array([3]))
    copy.added(np.array([3]))
    assert_same_sums(sampler.tree, copy.tree)
    for one, other in zip(draws(sampler, 64, kept=4), draws(copy, 64, kept=4), strict=True):
        assert np.array_equal(one, other)


def test_saved_priorities_do_not_move_with_the_sampler() -> None:
    sampler = sampler_of([1.0, 2.0], alpha=1.0)
    state = sampler.state_dict()
    sampler.update(np.array([0, 1]), np.array([7.0, 7.0]))
    np.testing.assert_allclose(state["priorities"][:2] / UNITS, [1.0, 2.0], rtol=1e-5)


def test_enormous_errors_neither_overflow_nor_starve_the_draw() -> None:
    sampler = sampler_of([1e30, 3.0, np.inf, 1e30], capacity=4)
    assert 0 < sampler.tree.total < 2**63
    positions, weights = draws(sampler, 64, kept=4)
    assert set(positions) == {0, 2, 3}
    assert np.isfinite(weights).all()


def test_an_error_that_is_no_number_counts_as_none() -> None:
    sampler = sampler_of([np.nan, 1.0])
    assert sampler.tree.leaves[0] == 1
    assert np.isfinite(draws(sampler, 16, kept=2)[1]).all()


@pytest.mark.parametrize("priorities", [np.array([0.5, 1.0]), np.array([-1, 3])], ids=["floats", "negative"])
def test_priorities_that_no_sampler_saved_are_refused(priorities: Array) -> None:
    state = {"priorities": torch.from_numpy(priorities), "max_priority": 1}
    with pytest.raises(ValueError, match="priorities of the replay buffer"):
        PrioritizedSampler(2).load_state_dict(state)


def test_the_memory_of_the_tree_is_known_before_it_is_taken() -> None:
    for capacity in (1_000, 200_000):
        tree = PrioritizedSampler(capacity).tree
        taken = sum(array.nbytes for array in (*tree.groups, *tree.running, tree.top))
        assert PrioritizedSampler(capacity).nbytes == pytest.approx(taken, rel=0.05)
    PrioritizedSampler(2**50)


# ------------------------------------------------------------------------------------------------ sum tree


def numbers(rng: np.random.Generator, tree: SumTree, count: int) -> Array:
    """Whole numbers in [0, total), with both ends."""
    return np.concatenate([[0, tree.total - 1], rng.integers(0, tree.total, count)])


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_tree_equals_brute_force_after_random_updates(capacity: int) -> None:
    rng, tree, leaves = generator(capacity), SumTree(capacity), np.zeros(capacity, np.int64)
    for _ in range(60):
        count = int(rng.integers(1, 40))
        index = rng.integers(0, capacity, count)  # with repetition, so that small trees see duplicates
        values = rng.integers(0, 2**40, count) * (rng.random(count) < 0.7)
        tree.set(index, values)
        for place, value in zip(index, values, strict=True):
            leaves[place] = value
    assert np.array_equal(tree.leaves, leaves)
    tree.set(np.array([capacity - 1]), np.array([5]))
    leaves[-1] = 5
    assert tree.total == leaves.sum()
    written = np.flatnonzero(leaves)
    last = leaves.cumsum()[written] - 1
    assert np.array_equal(tree.find(last), written)
    assert np.array_equal(tree.find(last - leaves[written] + 1), written)
    random = numbers(rng, tree, 2000)
    assert np.array_equal(tree.find(random), brute_force(leaves, random))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_loaded_sums_are_those_kept_by_set(capacity: int) -> None:
    rng, tree, loaded = generator(capacity), SumTree(capacity), SumTree(capacity)
    for _ in range(60):
        tree.set(rng.integers(0, capacity, 32), rng.integers(0, 2**40, 32))
    loaded.load(rng.integers(0, 9, capacity))  # what was there before does not matter
    loaded.load(tree.leaves)
    assert_same_sums(tree, loaded)


def test_of_equal_indices_the_last_one_counts_in_the_sums_too() -> None:
    tree = SumTree(20)
    tree.set(np.array([3, 17, 3, 17, 3]), np.array([1, 2, 4, 8, 16]))
    assert tree.leaves[[3, 17]].tolist() == [16, 8]
    assert tree.total == 24


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_ends_of_the_number_line_belong_to_written_leaves(capacity: int) -> None:
    for only in {0, capacity // 2, capacity - 1}:
        tree = SumTree(capacity)
        tree.set(np.array([only]), np.array([3]))
        assert tree.find(np.arange(3)).tolist() == [only] * 3


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_empty_leaves_are_never_found(capacity: int) -> None:
    rng, tree = generator(capacity), SumTree(capacity)
    leaves = rng.integers(1, 4, capacity) * (rng.random(capacity) < 0.3)
    leaves[0], leaves[-1] = 0, 7
    tree.load(leaves)
    found = tree.find(np.arange(tree.total))
    assert np.array_equal(np.bincount(found, minlength=capacity), leaves)


def test_values_of_very_different_size_do_not_leave_a_rest_behind() -> None:
    tree = SumTree(100)
    tree.set(np.arange(100), np.ones(100, np.int64))
    tree.set(np.array([50]), np.array([2**60]))
    tree.set(np.array([50]), np.array([1]))
    assert tree.total == 100
