import math

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_training.models.heads import LOG_STD_MAX, LOG_STD_MIN, squashed_gaussian_act, squashed_gaussian_sample


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("float64")
def test_log_probabilities_equal_those_of_torchs_distributions() -> None:
    params, noise = random(50, 6).clamp(-1.9, 1.9), random(50, 3, seed=1)
    actions, logprobs = squashed_gaussian_sample(params, noise)
    mean, log_std = params[:, :3], params[:, 3:]
    normal = Independent(Normal(mean, log_std.exp()), 1)
    reference = TransformedDistribution(normal, TanhTransform(cache_size=1))
    raw = mean + log_std.exp() * noise
    torch.testing.assert_close(actions, raw.tanh(), rtol=0, atol=1e-15)
    # the transform remembers what the action was made from, so the comparison does not go through atanh
    cached = reference.transforms[0](raw)
    torch.testing.assert_close(logprobs, reference.log_prob(cached), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_log_probabilities_are_those_of_the_action_itself() -> None:
    """Where the action has not rounded to 1, the density of the action must integrate to 1."""
    actions = torch.linspace(-1, 1, 200_001)[1:-1]
    raw = torch.atanh(actions)
    mean, log_std = 0.3, -0.5
    noise = (raw - mean) / math.exp(log_std)
    _, logprobs = squashed_gaussian_sample(
        torch.tensor([[mean, log_std]]).expand(len(raw), 2), noise.unsqueeze(1)
    )
    assert (logprobs.exp().sum() * 1e-5).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("raw", [-20.0, 20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probabilities_and_gradients_stay_finite_where_the_action_rounds_to_one(
    raw: float, dtype: torch.dtype
) -> None:
    params = torch.tensor([[raw, 0.0]], dtype=dtype, requires_grad=True)
    actions, logprobs = squashed_gaussian_sample(params, torch.zeros(1, 1, dtype=dtype))
    assert actions.abs() == 1.0
    # log(1 - tanh(u)^2) is close to log 4 - 2|u|
    expected = -0.5 * math.log(2 * math.pi) - (math.log(4) - 40)
    assert logprobs.item() == pytest.approx(expected, rel=1e-6)
    (gradient,) = torch.autograd.grad(logprobs.sum(), params)
    assert gradient[0, 0].item() == pytest.approx(math.copysign(2.0, raw), rel=1e-6)
    assert gradient.isfinite().all()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("given", "used"), [(-50.0, LOG_STD_MIN), (50.0, LOG_STD_MAX), (0.5, 0.5)])
def test_the_deviation_is_kept_in_bounds(given: float, used: float) -> None:
    noise = torch.tensor([[0.7]])
    actions, logprobs = squashed_gaussian_sample(torch.tensor([[0.1, given]]), noise)
    expected_actions, expected = squashed_gaussian_sample(torch.tensor([[0.1, used]]), noise)
    assert torch.equal(actions, expected_actions)
    assert torch.equal(logprobs, expected)
    acted = squashed_gaussian_act(np.array([[0.1, given]]), noise.numpy())
    assert acted.item() == pytest.approx(math.tanh(0.1 + 0.7 * math.exp(used)), abs=1e-12)


@pytest.mark.usefixtures("float64")
def test_gradients_flow_through_the_sample_as_finite_differences_say() -> None:
    params, noise = random(3, 4).requires_grad_(), random(3, 2, seed=1)
    assert torch.autograd.gradcheck(lambda p: squashed_gaussian_sample(p, noise), (params,))


@pytest.mark.usefixtures("float64")
def test_acting_in_numpy_equals_sampling_in_torch() -> None:
    params, noise = 3 * random(20, 6), random(20, 3, seed=1)
    actions, _ = squashed_gaussian_sample(params, noise)
    np.testing.assert_allclose(
        squashed_gaussian_act(params.numpy(), noise.numpy()), actions.numpy(), rtol=0, atol=1e-14
    )


def test_acting_without_noise_is_the_squashed_mean() -> None:
    params = random(20, 6).numpy()
    before = params.copy()
    np.testing.assert_array_equal(squashed_gaussian_act(params, None), np.tanh(params[:, :3]))
    np.testing.assert_array_equal(params, before)
