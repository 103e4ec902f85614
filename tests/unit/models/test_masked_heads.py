"""Masked distributions against brute force: a distribution over the allowed choices alone, written out."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical

from rl_training.core.spaces.masks import mask_counts
from rl_training.models.heads import make_head

SPACES = [spaces.Discrete(5), spaces.MultiDiscrete([3, 2, 4]), spaces.MultiBinary(3)]
ROWS = 64


def some_masks(counts: list[int], rng: np.random.Generator) -> np.ndarray:
    """Random masks [ROWS, M] that allow something of every component; the first row allows one choice of each."""
    parts = []
    for count in counts:
        part = rng.random((ROWS, count)) < 0.5
        part[np.arange(ROWS), rng.integers(0, count, ROWS)] = True
        part[0] = np.arange(count) == count - 1
        parts.append(part)
    return np.concatenate(parts, axis=1)


def brute_force(space: spaces.Space, params: torch.Tensor, mask: np.ndarray) -> list[dict[int, torch.Tensor]]:
    """Return for each component of one row {choice: probability} over the allowed choices alone."""
    counts = mask_counts(space)
    found = []
    for i, (logits, allowed) in enumerate(
        zip(
            torch.split(params, 1 if isinstance(space, spaces.MultiBinary) else counts),
            np.split(mask, np.cumsum(counts)[:-1]),
            strict=True,
        )
    ):
        if isinstance(space, spaces.MultiBinary):
            logits = torch.stack([torch.zeros(()).to(params), params[i]])
        choices = np.flatnonzero(allowed)
        weights = torch.exp(logits[choices])
        found.append({int(c): w / weights.sum() for c, w in zip(choices, weights, strict=True)})
    return found


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probabilities_and_entropy_are_those_of_the_allowed_choices(space, dtype):
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    head = make_head(space, 0.0)
    params = torch.randn(ROWS, head.num_params, generator=generator).to(dtype)
    masks = some_masks(mask_counts(space), rng)
    tables = [brute_force(space, row, mask) for row, mask in zip(params, masks, strict=True)]
    chosen = [[rng.choice(list(part)) for part in table] for table in tables]
    actions = torch.tensor(chosen)
    if isinstance(space, spaces.Discrete):
        actions = actions[:, 0]

    logprobs, entropy = head.logprob_entropy(head.masked(params, torch.from_numpy(masks), torch), actions)
    expected = torch.stack(
        [
            sum(part[choice].log() for part, choice in zip(table, row, strict=True))
            for table, row in zip(tables, chosen, strict=True)
        ]
    )
    spread = torch.stack(
        [sum(Categorical(torch.stack(list(part.values()))).entropy() for part in table) for table in tables]
    )
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(logprobs, expected.to(dtype), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(entropy, spread.to(dtype), atol=max(tolerance, 1e-6), rtol=tolerance)
    assert entropy[0].abs() < 1e-6, "one allowed choice leaves no doubt"


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_gradients_are_finite_and_do_not_reach_what_is_not_allowed(space):
    rng = np.random.default_rng(1)
    head = make_head(space, 0.0)
    params = torch.randn(ROWS, head.num_params, requires_grad=True)
    masks = some_masks(mask_counts(space), rng)
    drawn, _ = head.sample(head.masked(params.detach().numpy(), masks), rng)
    logprobs, entropy = head.logprob_entropy(
        head.masked(params, torch.from_numpy(masks), torch), torch.from_numpy(drawn)
    )
    (logprobs.sum() + entropy.sum()).backward()
    assert torch.isfinite(params.grad).all()
    if isinstance(space, spaces.MultiBinary):
        decided = ~(masks[:, ::2] & masks[:, 1::2])
        assert (params.grad.numpy()[decided] == 0).all()
    else:
        assert (params.grad.numpy()[~masks] == 0).all()


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_only_allowed_choices_are_drawn_as_often_as_they_should_be(space):
    rng = np.random.default_rng(2)
    head = make_head(space, 0.0)
    params = rng.standard_normal(head.num_params).astype(np.float32)
    mask = some_masks(mask_counts(space), rng)[7]
    count = 40_000
    allowed = head.masked(np.tile(params, (count, 1)), np.tile(mask, (count, 1)))
    actions, logprobs = head.sample(allowed, rng)
    actions = actions.reshape(count, -1)
    table = brute_force(space, torch.from_numpy(params), mask)
    for column, part in enumerate(table):
        drawn = dict(zip(*np.unique(actions[:, column], return_counts=True), strict=True))
        assert set(drawn) <= set(part)
        for choice, probability in part.items():
            assert drawn.get(choice, 0) / count == pytest.approx(float(probability), abs=0.012)
    row = actions[3]
    expected = sum(float(part[int(choice)].log()) for part, choice in zip(table, row, strict=True))
    assert logprobs[3] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_the_mode_is_the_most_likely_of_all_allowed_actions(space):
    rng = np.random.default_rng(3)
    head = make_head(space, 0.0)
    params = rng.standard_normal((ROWS, head.num_params)).astype(np.float32)
    masks = some_masks(mask_counts(space), rng)
    modes = head.mode(head.masked(params, masks)).reshape(ROWS, -1)
    for row in range(ROWS):
        table = brute_force(space, torch.from_numpy(params[row]), masks[row])
        joint = {
            choices: np.prod([float(part[c]) for part, c in zip(table, choices, strict=True)])
            for choices in itertools.product(*table)
        }
        assert tuple(modes[row].tolist()) == max(joint, key=joint.get)


def test_a_draw_that_rounds_up_to_the_total_is_never_one_that_is_not_allowed():
    head = make_head(spaces.Discrete(4), 0.0)

    class Highest:
        def random(self, count):
            return np.full(count, 1.0)

    params = head.masked(
        np.zeros((3, 4), np.float32), np.array([[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]], bool)
    )
    actions, logprobs = head.sample(params, Highest())
    assert [bool(m[a]) for m, a in zip([[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]], actions, strict=True)] == [
        True
    ] * 3
    assert np.isfinite(logprobs).all()


def test_continuous_actions_have_no_masks():
    head = make_head(spaces.Box(-1, 1, (2,)), 0.0)
    with pytest.raises(NotImplementedError, match="continuous"):
        head.masked(np.zeros((1, 2)), np.ones((1, 2), bool))
