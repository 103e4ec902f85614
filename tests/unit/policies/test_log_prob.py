"""`log_prob` of an action that was sampled equals the log-probability that sampling returned, for every policy."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.config import TrainConfig
from rl_training.core.columns import allocated
from rl_training.core.spaces.masks import with_mask
from rl_training.core.types import ActArrays, EnvSpec, Progress
from rl_training.experiment.building import build_parts
from rl_training.models.fast.backend import TorchBackend
from rl_training.models.heads import inverse_tanh, squashed_gaussian_log_prob, squashed_gaussian_sample

ROWS = 64
PROGRESS = Progress(timesteps=1000, total_timesteps=10_000)
OBS = spaces.Box(-5, 5, (3,), np.float32)
BOX = spaces.Box(-2, 3, (2,), np.float32)
SPACES = [spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3), BOX]


@pytest.fixture(params=["float32", "float64"], autouse=True)
def dtype(request: pytest.FixtureRequest) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    yield getattr(np, request.param)
    torch.set_default_dtype(before)


def actor_of(algo: str, space: Space[Any], *, masked: bool = False, **settings: Any) -> Any:
    config = TrainConfig(algo=algo, env_id="none", seed=0, num_envs=ROWS).with_overrides(**settings)
    return build_parts(config, EnvSpec(OBS, space, ROWS, masked)).actor


def observed(dtype: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((ROWS, 3)).astype(dtype)


def explored(actor: Any, obs: Any, dtype: Any) -> ActArrays:
    """Return what the explorer recorded for one step."""
    policy, numbers = actor.policy, [np.zeros(ROWS, dtype) for _ in range(4)]
    acted = ActArrays(
        np.zeros((ROWS, *policy.action_shape), policy.action_dtype),
        *numbers,
        extra=allocated(actor.explorer.columns, ROWS),
    )
    actor.explorer.act(obs, acted, PROGRESS)
    return acted


def assert_equal(found: torch.Tensor, expected: Any, dtype: Any) -> None:
    assert found.requires_grad
    assert found.shape == (ROWS,)
    tolerance = 1e-4 if dtype is np.float32 else 1e-10
    np.testing.assert_allclose(found.detach(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_actor_critic_heads(space: Space[Any], normalize_obs: bool, dtype: Any) -> None:
    actor, obs = actor_of("ppo", space, normalize_obs=normalize_obs), observed(dtype)
    actor.policy.observe(torch.from_numpy(3 + 2 * obs))
    acted = explored(actor, obs, dtype)
    found = actor.policy.log_prob(torch.from_numpy(obs), torch.from_numpy(acted.action))
    assert_equal(found, acted.logprob, dtype)


@pytest.mark.parametrize("space", SPACES[:3], ids=str)
def test_masks_apply(space: Space[Any], dtype: Any) -> None:
    actor, obs = actor_of("ppo", space, masked=True), observed(dtype)
    size = {4: 4, 2: 5, 3: 6}[getattr(space, "n", 2)]
    mask = np.random.default_rng(1).random((ROWS, size)) < 0.5
    mask[:, 1::2] |= ~mask[:, ::2][:, : size // 2]
    if size == 5:
        mask[:, 2] = True
    both = with_mask(obs, mask)
    acted = explored(actor, both, dtype)
    tensors = {key: torch.from_numpy(part) for key, part in both.items()}
    assert_equal(actor.policy.log_prob(tensors, torch.from_numpy(acted.action)), acted.logprob, dtype)
    unmasked = actor.policy.log_prob(torch.from_numpy(obs), torch.from_numpy(acted.action))
    assert (unmasked.detach().numpy() < acted.logprob).any()


def test_state_dependent_exploration(dtype: Any) -> None:
    actor, obs = actor_of("ppo", BOX, use_sde=True), observed(dtype)
    acted = explored(actor, obs, dtype)
    found = actor.policy.log_prob(torch.from_numpy(obs), torch.from_numpy(acted.action))
    assert_equal(found, acted.logprob, dtype)


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("space", [SPACES[0], BOX], ids=str)
def test_recurrent_policies_with_a_state(core: str, space: Space[Any], dtype: Any) -> None:
    actor = actor_of(RecurrentPPO.name, space, core=core, num_steps=16)
    first, second = observed(dtype), observed(dtype, 1)
    one = explored(actor, first, dtype)
    actor.explorer.forget([0, 5])
    two = explored(actor, second, dtype)
    obs = torch.from_numpy(np.concatenate([first, second]))
    actions = torch.from_numpy(np.concatenate([one.action, two.action]))
    starts = np.concatenate([one.extra["episode_starts"], two.extra["episode_starts"]])
    state = tuple(map(torch.from_numpy, actor.policy.initial_state(ROWS)))
    found = actor.policy.log_prob(obs, actions, state, torch.from_numpy(starts))
    assert_equal(found[:ROWS], one.logprob, dtype)
    assert_equal(found[ROWS:], two.logprob, dtype)
    # without a state every row is the first step of an episode
    alone = actor.policy.log_prob(torch.from_numpy(first), torch.from_numpy(one.action))
    assert_equal(alone, one.logprob, dtype)


@pytest.mark.parametrize("use_sde", [False, True])
def test_squashed_policies(use_sde: bool, dtype: Any) -> None:
    policy = actor_of("sac", BOX, use_sde=use_sde).policy
    obs, rng = torch.from_numpy(observed(dtype)), np.random.default_rng(2)
    noise, _ = policy.draw(lambda *shape: torch.from_numpy(rng.standard_normal(shape).astype(dtype)), ROWS)
    with torch.no_grad():
        actions, logprobs, _ = policy.sampled(policy.network(policy.prepare(obs)), noise, TorchBackend())
    assert_equal(policy.log_prob(obs, actions), logprobs, dtype)


@pytest.mark.parametrize("raw", [0.0, 1e-6, 0.3, 3.0, 6.0, 8.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_actions_near_the_bounds(raw: float, sign: int, dtype: Any) -> None:
    """The difference from sampling is what the rounding of the action itself explains."""
    params, noise = torch.tensor([[sign * raw, -1.0]]), torch.tensor([[0.4 * sign]])
    actions, expected = squashed_gaussian_sample(params, noise)
    found = squashed_gaussian_log_prob(params, actions)
    rounding = torch.finfo(actions.dtype).eps / (1 - actions.double().square()).item()
    # by the raw action the log-probability has a slope below 2 + |noise| / std
    tolerance = (2 + 0.4 * np.e) * rounding + 20 * torch.finfo(actions.dtype).eps
    assert found.item() == pytest.approx(expected.item(), abs=tolerance)


@pytest.mark.parametrize("action", [0.0, 0.5, -0.999, 0.99999, -0.9999999])
def test_the_density_is_exact_for_the_action_as_it_is_stored(action: float, dtype: Any) -> None:
    params, actions = torch.tensor([[1.5, -0.7]]), torch.tensor([[action]])
    normal = Normal(params[:, :1].double(), params[:, 1:].double().exp())
    reference = TransformedDistribution(Independent(normal, 1), TanhTransform())
    expected = reference.log_prob(actions.double()).item()
    found = squashed_gaussian_log_prob(params, actions).item()
    assert found == pytest.approx(expected, rel=3e-6 if dtype is np.float32 else 1e-7)


@pytest.mark.parametrize("action", [-1.0, 1.0])
def test_an_action_on_the_bound_has_a_finite_log_probability_and_gradient(action: float) -> None:
    params = torch.tensor([[0.2, 0.1]], requires_grad=True)
    log_prob = squashed_gaussian_log_prob(params, torch.tensor([[action]]))
    log_prob.sum().backward()
    assert log_prob.isfinite().all()
    assert params.grad is not None
    assert params.grad.isfinite().all()
    raw, _ = inverse_tanh(torch.tensor([action]))
    assert raw.sign().item() == action
