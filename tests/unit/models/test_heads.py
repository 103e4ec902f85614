from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from rl_training.core.errors import UserError
from rl_training.models.heads import (
    BernoulliHead,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
    categorical_sample,
    make_head,
)

COUNTS = [2, 4, 3]
KINDS = ["categorical", "multi", "bernoulli", "gaussian"]


def head_of(kind: str) -> Any:
    if kind == "categorical":
        return CategoricalHead(5)
    if kind == "multi":
        return MultiCategoricalHead(COUNTS)
    if kind == "bernoulli":
        return BernoulliHead(4)
    head = GaussianHead(3)
    head.log_std.data = torch.tensor([-0.7, 0.0, 0.4], dtype=torch.float64)
    return head


def reference(kind: str, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy by torch.distributions."""
    if kind == "categorical":
        law: Any = Categorical(logits=params)
    elif kind == "multi":
        laws = [Categorical(logits=part) for part in params.split(COUNTS, dim=-1)]
        logprobs = sum(law.log_prob(a) for law, a in zip(laws, actions.unbind(-1), strict=True))
        return logprobs, sum(law.entropy() for law in laws)  # type: ignore[return-value]
    elif kind == "bernoulli":
        law = Independent(Bernoulli(logits=params), 1)
        actions = actions.to(params.dtype)
    else:
        law = Independent(Normal(params, torch.tensor([-0.7, 0.0, 0.4], dtype=torch.float64).exp()), 1)
    return law.log_prob(actions), law.entropy()


def random_params(kind: str, rows: int = 64, scale: float = 2.0) -> Any:
    return scale * np.random.default_rng(0).standard_normal((rows, head_of(kind).num_params))


@pytest.mark.parametrize("kind", KINDS)
def test_log_probability_and_entropy_agree_with_torch_distributions(kind: str) -> None:
    head, params = head_of(kind), random_params(kind)
    actions = torch.from_numpy(head.sample(params, np.random.default_rng(1))[0])
    logprobs, entropy = head.logprob_entropy(torch.from_numpy(params), actions)
    expected_logprobs, expected_entropy = reference(kind, torch.from_numpy(params), actions)
    torch.testing.assert_close(logprobs, expected_logprobs, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_torch_distributions(kind: str) -> None:
    head, params = head_of(kind), torch.from_numpy(random_params(kind)).requires_grad_()
    actions = torch.from_numpy(head.sample(params.detach().numpy(), np.random.default_rng(1))[0])
    weights = torch.linspace(-1.0, 1.0, len(params), dtype=torch.float64)

    def gradient(logprobs: Tensor, entropy: Tensor) -> Tensor:
        return torch.autograd.grad(((logprobs + 0.3 * entropy) * weights).sum(), params)[0]

    ours = gradient(*head.logprob_entropy(params, actions))
    torch.testing.assert_close(ours, gradient(*reference(kind, params, actions)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sampled_log_probability_is_the_learned_one(kind: str) -> None:
    head, params = head_of(kind), random_params(kind)
    actions, logprobs = head.sample(params, np.random.default_rng(2))
    learned, _ = head.logprob_entropy(torch.from_numpy(params), torch.from_numpy(actions))
    assert logprobs.shape == (len(params),)
    np.testing.assert_allclose(logprobs, learned.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_repeats_by_seed(kind: str) -> None:
    head, params = head_of(kind), random_params(kind)
    draws = [head.sample(params, np.random.default_rng(seed))[0] for seed in (0, 0, 1)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_parameters_stay_finite_and_silent(kind: str, dtype: Any) -> None:
    params = random_params(kind, scale=1000.0).astype(dtype)
    actions, logprobs = head_of(kind).sample(params, np.random.default_rng(0))
    assert np.isfinite(logprobs).all()
    assert np.isfinite(actions).all()


def test_categorical_frequencies_follow_the_softmax() -> None:
    logits = np.array([0.0, 1.0, -1.0, 0.5, -30.0])
    rows = 100_000
    actions, _ = CategoricalHead(5).sample(np.tile(logits, (rows, 1)), np.random.default_rng(0))
    probabilities = np.exp(logits) / np.exp(logits).sum()
    deviations = np.sqrt(probabilities * (1 - probabilities) / rows)
    assert (np.abs(np.bincount(actions, minlength=5) / rows - probabilities) <= 5 * deviations + 1e-12).all()


def test_multi_categorical_choices_are_independent() -> None:
    logits = np.array([0.3, -0.3, 0.0, 0.5, 1.0, -1.0, 0.2, 0.0, -0.5])
    rows = 100_000
    actions, _ = MultiCategoricalHead(COUNTS).sample(np.tile(logits, (rows, 1)), np.random.default_rng(0))
    parts = [np.exp(part) / np.exp(part).sum() for part in np.split(logits, np.cumsum(COUNTS)[:-1])]
    joint = np.einsum("i,j,k->ijk", *parts)
    counts = np.zeros(COUNTS)
    np.add.at(counts, tuple(actions.T), 1)
    assert (np.abs(counts / rows - joint) <= 5 * np.sqrt(joint * (1 - joint) / rows)).all()


def test_bernoulli_frequencies_follow_the_sigmoid() -> None:
    logits = np.array([-2.0, 0.0, 0.7, 3.0])
    rows = 100_000
    actions, _ = BernoulliHead(4).sample(np.tile(logits, (rows, 1)), np.random.default_rng(0))
    probabilities = 1 / (1 + np.exp(-logits))
    deviations = np.sqrt(probabilities * (1 - probabilities) / rows)
    assert (np.abs(actions.mean(axis=0) - probabilities) <= 5 * deviations).all()
    assert np.abs(np.corrcoef(actions.T) - np.eye(4)).max() < 5 / np.sqrt(rows)


def test_gaussian_samples_have_the_stated_mean_and_deviation() -> None:
    means, rows = np.array([-1.0, 0.0, 5.0]), 100_000
    head = head_of("gaussian")
    actions, _ = head.sample(np.tile(means, (rows, 1)), np.random.default_rng(0))
    deviations = head.log_std.detach().exp().numpy()
    assert (np.abs(actions.mean(axis=0) - means) < 5 * deviations / np.sqrt(rows)).all()
    np.testing.assert_allclose(actions.std(axis=0), deviations, rtol=0.02)
    assert np.abs(np.corrcoef(actions.T) - np.eye(3)).max() < 5 / np.sqrt(rows)


@pytest.mark.parametrize(("uniform", "action"), [(0.0, 1), (0.49, 1), (0.51, 3), (np.nextafter(1.0, 0.0), 3)])
def test_impossible_choices_are_never_made(uniform: float, action: int) -> None:
    logits = np.array([[-2000.0, 0.0, -2000.0, 0.0, -2000.0]], np.float32)
    actions, logprobs = categorical_sample(logits, np.array([uniform]))
    assert actions.tolist() == [action]
    np.testing.assert_allclose(logprobs, [-np.log(2)], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "params", "mode"),
    [
        ("categorical", [[0.0, 1.0, 3.0, 2.0, -1.0]], [2]),
        ("multi", [[0.0, 1.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0]], [[1, 0, 2]]),
        ("bernoulli", [[-1.0, 2.0, -0.1, 0.1]], [[0, 1, 0, 1]]),
        ("gaussian", [[0.5, -3.0, 2.0]], [[0.5, -3.0, 2.0]]),
    ],
)
def test_the_mode_is_the_most_likely_action(kind: str, params: list[Any], mode: list[Any]) -> None:
    assert head_of(kind).mode(np.array(params)).tolist() == mode


@pytest.mark.parametrize(
    ("space", "head", "num_params"),
    [
        (spaces.Discrete(4, start=2), CategoricalHead, 4),
        (spaces.MultiDiscrete([2, 3]), MultiCategoricalHead, 5),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), MultiCategoricalHead, 14),
        (spaces.MultiBinary((2, 3)), BernoulliHead, 6),
        (spaces.Box(-1, 1, (2, 2)), GaussianHead, 4),
    ],
)
def test_every_action_space_has_its_head(space: Space[Any], head: type, num_params: int) -> None:
    made = make_head(space, -0.5)
    assert type(made) is head
    assert made.num_params == num_params


def test_the_initial_deviation_is_what_was_asked() -> None:
    head = make_head(spaces.Box(-1, 1, (2,)), -0.5)
    assert isinstance(head, GaussianHead)
    assert head.log_std.tolist() == [-0.5, -0.5]
    assert [name for name, _ in head.named_parameters()] == ["log_std"]


def test_an_unsupported_action_space_is_refused() -> None:
    with pytest.raises(UserError, match="Tuple"):
        make_head(spaces.Tuple([spaces.Discrete(2)]), 0.0)
