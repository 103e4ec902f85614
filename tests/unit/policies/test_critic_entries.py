"""What only the critic reads: the same numbers in NumPy and torch, in collecting and in learning."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from records import step_arrays

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.components import BuildContext
from rl_training.core.errors import UserError
from rl_training.core.rows import Rows
from rl_training.core.spaces.stored import CRITIC_KEY, stored_space
from rl_training.core.types import EnvSpec, Progress, tensors_of
from rl_training.models.mlp import MLPActorCritic
from rl_training.models.recurrent import LSTMActorCritic
from rl_training.runtime.sampler import LocalSampler

ROWS = 6
PLAIN = EnvSpec(
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Discrete(4),
    ROWS,
    critic_space=spaces.Box(-9, 9, (5,), np.float32),
)
"""As in a game: a plain observation, and a state beside it."""
NESTED = EnvSpec(
    spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32)}),
    spaces.Discrete(4),
    ROWS,
    masked=True,
    critic_space=spaces.Dict(
        {"b": spaces.Dict({"c": spaces.Discrete(3)}), "d": spaces.Box(-9, 9, (2, 2), np.float32)}
    ),
)
ALGOS = ("ppo", "a2c", "recurrent_ppo", "mappo")


def parts_of(algo: str, spec: EnvSpec, **settings: Any) -> Any:
    algorithm = ALGORITHMS[algo]
    config = algorithm.config_class(**{"num_steps": 16, "hidden_sizes": (8,)} | settings)
    return algorithm.build(config, BuildContext(spec, seed=0, normalize_obs=True))


def some_obs(spec: EnvSpec, seed: int = 0) -> dict[str, Any]:
    space = stored_space(spec)
    space.seed(seed)
    drawn = [dict(flat(space.sample())) for _ in range(ROWS)]
    obs = {key: np.stack([each[key] for each in drawn]) for key in drawn[0]}
    if "/action_mask" in obs:
        obs["/action_mask"] = np.ones_like(obs["/action_mask"])
    return obs


def flat(obs: Any, key: str = "") -> Any:
    if not isinstance(obs, dict):
        yield key, obs
        return
    for name, part in obs.items():
        yield from flat(part, f"{key}/{name}" if key else name)


@pytest.mark.parametrize("spec", [PLAIN, NESTED], ids=["plain", "nested"])
@pytest.mark.parametrize("algo", ALGOS)
def test_numpy_and_torch_agree(algo: str, spec: EnvSpec) -> None:
    policy = parts_of(algo, spec).actor.policy
    obs = some_obs(spec)
    policy.observe({key: torch.from_numpy(part) for key, part in some_obs(spec, 1).items()})
    memory = policy.initial_state(ROWS)
    named: dict[str, Any] = {}
    if algo == "recurrent_ppo":
        rng = np.random.default_rng(0)
        memory = tuple(rng.normal(size=part.shape).astype(np.float32) for part in memory)
        named = {
            "memory": tuple(map(torch.from_numpy, memory)),
            "starts": torch.zeros(ROWS, dtype=torch.bool),
        }
    assert policy._current_twin() is not None
    seen = {key: part for key, part in obs.items() if key != "/action_mask"}
    with torch.no_grad():
        params, values, *after = policy.network(policy.prepare(tensors_of(seen)), **named)
    if algo == "recurrent_ppo":
        ours = policy.step(obs, memory)
        for part, theirs in zip(ours[2], after[0], strict=True):
            np.testing.assert_allclose(part, theirs.numpy(), rtol=1e-5, atol=1e-6)
        alone = policy.params_and_memory(obs, memory)
        half = len(memory) // 2
        for part, theirs in zip(alone[1][:half], after[0][:half], strict=True):
            np.testing.assert_allclose(part, theirs.numpy(), rtol=1e-5, atol=1e-6)
        for part, before in zip(alone[1][half:], memory[half:], strict=True):  # the critic's
            np.testing.assert_array_equal(part, before)
        alone = alone[0]
    else:
        ours = policy.outputs(obs)
        np.testing.assert_array_equal(policy.values(obs), ours[1])
        alone = policy.params(obs)
    np.testing.assert_allclose(ours[0], params.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[1], values.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(alone, ours[0])


@pytest.mark.parametrize("algo", ALGOS)
def test_log_probabilities_need_no_critic(algo: str) -> None:
    policy = parts_of(algo, PLAIN).actor.policy
    obs = tensors_of(some_obs(PLAIN))
    actions = torch.zeros(ROWS, dtype=torch.int64)
    torch.testing.assert_close(policy.log_prob(obs, actions), policy.log_prob(obs[""], actions))


class Still:
    """Rows that are cut by a time limit at every third step; each observation and state is new."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self.rows, self.notices = spec, Rows.one_per_env(ROWS), []
        self.out = step_arrays(some_obs(spec), np.zeros(ROWS), final_obs=some_obs(spec))
        self.time = 0

    def reset(self) -> None: ...
    def restart(self, envs: Any) -> None: ...

    def step(self, action: Any) -> None:
        self.time += 1
        for target, seed in ((self.out.obs, self.time), (self.out.final_obs, 100 + self.time)):
            for key, part in some_obs(self.spec, seed).items():
                target[key][...] = part
        self.out.truncated[:] = self.out.ended[:] = self.out.any_ended = self.time % 3 == 0


@pytest.mark.parametrize("algo", ALGOS)
def test_a_state_beside_plain_observations_is_collected_and_learned_from(algo: str) -> None:
    parts = parts_of(algo, PLAIN, gamma=0.5)
    policy, stepper = parts.actor.policy, Still(PLAIN)
    sampler = LocalSampler(stepper, parts.actor.explorer, parts.source)
    sampler.start()
    sampler.collect(16, Progress())
    buffer = parts.source.buffer
    assert set(buffer.obs) == {"", CRITIC_KEY}
    np.testing.assert_array_equal(buffer.obs[CRITIC_KEY][1].numpy(), some_obs(PLAIN, 1)[CRITIC_KEY])
    if algo != "recurrent_ppo":  # whose values depend on its memory
        np.testing.assert_allclose(buffer.values[1].numpy(), policy.values(some_obs(PLAIN, 1)), rtol=1e-6)
        final = policy.values(some_obs(PLAIN, 103))
        np.testing.assert_allclose(buffer.final_values[2].numpy(), final, rtol=1e-6)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    for batch in parts.source.batches(Progress(total_timesteps=96)):
        result = parts.learner.update(batch, Progress(total_timesteps=96))
        assert torch.isfinite(result.metrics["loss"])
    changed = {name for name, tensor in policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert "entries.normalizer.moments.mean" in changed
    assert "normalizer.moments.mean" in changed
    assert any(name.startswith("network.network") and "critic" in name for name in changed)


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
def test_shared_layers_are_refused_in_games_too(algo: str) -> None:
    shared = {"shared_network": True} | ({"share_core": True} if algo == "recurrent_ppo" else {})
    with pytest.raises(UserError, match="shared_network is true, but the critic reads more than the actor"):
        parts_of(algo, PLAIN, **shared)


@pytest.mark.parametrize("network", [MLPActorCritic, LSTMActorCritic])
def test_a_shared_network_has_one_input(network: Any) -> None:
    with pytest.raises(ValueError, match="critic_input_size is given"):
        network(
            3, 2, critic_input_size=5, shared=True, **({"share_core": True} if "LSTM" in str(network) else {})
        )


def test_the_inputs_of_the_critic_are_beside_those_of_the_actor() -> None:
    policy = parts_of("ppo", NESTED).actor.policy
    obs = {key: part for key, part in some_obs(NESTED).items() if key != "/action_mask"}
    inputs = policy.prepare(tensors_of(obs))
    assert {key: tuple(part.shape) for key, part in inputs.items()} == {"": (ROWS, 3), CRITIC_KEY: (ROWS, 7)}
    alone = policy.prepare(tensors_of({"a": obs["a"]}))
    torch.testing.assert_close(alone, inputs[""])
