"""stable-baselines3, driven through its own objects: the other side of the comparison on the same batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import stable_baselines3 as sb3
import torch
from gymnasium import Space
from parity_continuous import Tensors
from parity_harness import parameters_of
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

VERSION: str = sb3.__version__


class Still(gymnasium.Env[Any, Any]):
    """Has spaces and is never stepped."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


class GivenBatch:
    """Stands in for a replay buffer and draws the rows that were put into it."""

    rows: ReplayBufferSamples

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        assert batch_size == len(self.rows.rewards)
        return self.rows


def make_peer(algo: str, envs: list[Callable[[], Any]], *, sizes: list[int], **settings: Any) -> Any:
    """Return a model of the peer with hidden layers of `sizes`."""
    kwargs = {"net_arch": sizes} | settings.pop("policy_kwargs", {})
    model = getattr(sb3, algo.upper())(
        "MlpPolicy", DummyVecEnv(envs), policy_kwargs=kwargs, seed=1, device="cpu", **settings
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


class PeerLearner:
    """One of the peer's models: its tensors in the layout of `our_parts`, its losses as it logs them."""

    def __init__(
        self,
        algo: str,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        num_envs: int = 1,
        **settings: Any,
    ) -> None:
        still = [lambda: Still(observation_space, action_space)] * num_envs
        self.model = make_peer(algo, still, **settings)
        self.tensors: Tensors = peer_tensors(algo, self.model)
        self.rng = np.random.default_rng(0)

    def shift(self) -> None:
        """Move every tensor at random: away from zero biases, and from targets that equal what they follow."""
        for tensors in self.tensors.values():
            for tensor in tensors:
                tensor += torch.as_tensor(0.1 * self.rng.normal(size=tuple(tensor.shape)), dtype=tensor.dtype)

    def losses(self) -> dict[str, float]:
        """Return what the last update logged."""
        logged = self.model.logger.name_to_value.items()
        return {name.removeprefix("train/"): float(value) for name, value in logged}

    # -------------------------------------------------------------------------------------------- on-policy

    def fill_rollout(self, *, value_changes: float = 0.0) -> dict[str, Tensor]:
        """Fill the rollout buffer with random steps; return its rows [N * T], in the buffer's order.

        Log-probabilities are off by a random part, so that ratios are cut on both sides. With `value_changes` the
        recorded values are off by up to so much, and each return lies beyond the present value, seen from the recorded
        one: then the clipped error is never the smaller one, and it does not matter whether it alone counts (the peer)
        or the larger of both (the package).
        """
        model, rng, buffer = self.model, self.rng, self.model.rollout_buffer
        buffer.reset()
        size, envs = model.observation_space.shape[0], model.n_envs
        discrete = isinstance(model.action_space, gymnasium.spaces.Discrete)
        started = np.ones(envs, bool)
        beyond = []
        for _ in range(model.n_steps):
            obs = rng.normal(size=(envs, size)).astype(np.float32)
            actions = rng.integers(0, model.action_space.n, envs) if discrete else rng.normal(size=(envs, 2))
            with torch.no_grad():
                values, logprobs, _ = model.policy.evaluate_actions(
                    torch.as_tensor(obs),
                    torch.as_tensor(actions, dtype=torch.long if discrete else torch.float32),
                )
            change = torch.as_tensor(rng.uniform(-value_changes, value_changes, envs), dtype=torch.float32)
            beyond.append(values.flatten() + change.sign() * torch.as_tensor(rng.uniform(1, 2, envs)))
            noise = torch.as_tensor(0.2 * rng.normal(size=envs), dtype=torch.float32)
            rewards = rng.normal(size=envs)
            buffer.add(obs, actions, rewards, started, values.flatten() - change, logprobs + noise)
            started = rng.random(envs) < 0.2
        buffer.compute_returns_and_advantage(torch.as_tensor(rng.normal(size=envs)), started)
        if value_changes:
            buffer.returns[:] = torch.stack(beyond).numpy()
        flat = {
            name: torch.as_tensor(buffer.swap_and_flatten(getattr(buffer, name)).copy())
            for name in ("observations", "actions", "log_probs", "values", "advantages", "returns")
        }
        return {
            "obs": flat["observations"],
            "actions": flat["actions"].long().flatten() if discrete else flat["actions"],
            "logprobs": flat["log_probs"].flatten(),
            "values": flat["values"].flatten(),
            "advantages": flat["advantages"].flatten(),
            "returns": flat["returns"].flatten(),
        }

    def update_on_rollout(self, shuffle_seed: int) -> dict[str, float]:
        """Learn from the rollout buffer; return the losses."""
        np.random.seed(shuffle_seed)  # the stream that the peer shuffles with
        self.model.train()
        return self.losses()

    # ------------------------------------------------------------------------------------------- off-policy

    def update_on_transitions(self, rows: dict[str, Tensor], noise_seed: int) -> dict[str, float]:
        """Learn from rows [B]; return the losses."""
        given = GivenBatch()
        actions = rows["actions"]
        given.rows = ReplayBufferSamples(
            observations=rows["obs"],
            actions=actions if actions.is_floating_point() else actions[:, None],
            next_observations=rows["next_obs"],
            dones=rows["dones"][:, None],
            rewards=rows["rewards"][:, None],
        )
        self.model.replay_buffer = given
        torch.manual_seed(noise_seed)
        self.model.train(gradient_steps=1, batch_size=len(actions))
        return self.losses()


def sac_noise(seed: int, batch: int, actions: int) -> Tensor:
    """Return the normal numbers [2, B, A] of an update that begins with this seed: of actions, of next actions."""
    torch.manual_seed(seed)
    shape = (batch, actions)
    return torch.stack([torch.normal(torch.zeros(shape), torch.ones(shape)) for _ in range(2)])


def sde_noise(seed: int, features: int, actions: int) -> Tensor:
    """Return the normal numbers [H, A] of an update with state-dependent noise that begins with this seed."""
    torch.manual_seed(seed)
    return torch.normal(torch.zeros(features, actions), torch.ones(features, actions))


def td3_noise(seed: int, batch: int, actions: int) -> Tensor:
    """Return the normal numbers [B, A] of an update that begins with this seed."""
    torch.manual_seed(seed)
    return torch.empty(batch, actions).normal_(0, 1)


def _actor_critic(model: Any) -> Tensors:
    policy = model.policy
    return {
        "actor": _linear(policy.mlp_extractor.policy_net, policy.action_net),
        "critic": _linear(policy.mlp_extractor.value_net, policy.value_net),
        "log_std": [policy.log_std.detach()] if hasattr(policy, "log_std") else [],
    }


def _dqn(model: Any) -> Tensors:
    return {"values": parameters_of(model.q_net), "target": parameters_of(model.q_net_target)}


def _td3(model: Any) -> Tensors:
    return {
        "actor": parameters_of(model.actor),
        "target actor": parameters_of(model.actor_target),
        "critics": parameters_of(model.critic),
        "target critics": parameters_of(model.critic_target),
    }


def _sac(model: Any) -> Tensors:
    # the package takes the slope of tanh from what went in and needs no constant to keep its logarithm finite
    actor, distribution = model.actor, model.actor.action_dist
    if model.use_sde:  # where the distribution's own constant is added to variances, and stays
        distribution.bijector.epsilon = 0.0
        deviations = [actor.log_std.detach()]
    else:
        distribution.epsilon = 0.0
        deviations = _linear(actor.log_std)
    return {
        "actor": [*_linear(actor.latent_pi, actor.mu), *deviations],
        "critics": parameters_of(model.critic),
        "target critics": parameters_of(model.critic_target),
        "temperature": [] if model.log_ent_coef is None else [model.log_ent_coef.detach()[0]],
    }


def _linear(*modules: nn.Module) -> list[Tensor]:
    return [tensor for module in modules for tensor in parameters_of(module)]


def peer_tensors(algo: str, model: Any) -> Tensors:
    """Return views of all that the model learns, and of its targets, grouped as in `our_parts`."""
    readers: dict[str, Callable[[Any], Tensors]] = {
        "ppo": _actor_critic, "a2c": _actor_critic, "dqn": _dqn, "td3": _td3, "sac": _sac,
    }  # fmt: skip
    return readers[algo](model)


# ------------------------------------------------------------------------------------------- recorded episodes


@dataclass(frozen=True)
class Episode:
    """What an environment shows, whatever is done: one observation more than rewards, and how it ends."""

    obs: np.ndarray[Any, Any]
    rewards: np.ndarray[Any, Any]
    terminated: bool
    truncated: bool


def recorded_episodes(rng: np.random.Generator, count: int, size: int = 3) -> list[Episode]:
    """Return random episodes of 1 to 9 steps that end in all three ways; no observation comes twice."""
    episodes = []
    for index in range(count):
        length = int(rng.integers(1, 10))
        obs = rng.normal(size=(length + 1, size)).astype(np.float32)
        kind = index % 3
        episodes.append(Episode(obs, 0.3 * rng.normal(size=length), kind != 1, kind != 0))
    return episodes


class Recorded(gymnasium.Env[Any, Any]):
    """Shows the given episodes one after the other."""

    def __init__(self, episodes: list[Episode], action_space: Space[Any]) -> None:
        shape = episodes[0].obs.shape[1:]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = action_space
        self._coming = iter(episodes)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._episode, self._step = next(self._coming), 0
        return self._episode.obs[0], {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        episode, self._step = self._episode, self._step + 1
        last = self._step == len(episode.rewards)
        reward = float(episode.rewards[self._step - 1])
        return episode.obs[self._step], reward, last and episode.terminated, last and episode.truncated, {}


class KeepRollouts(BaseCallback):
    """Copies every rollout before it is learned from."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[dict[str, Tensor]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        names = ("values", "advantages", "returns")
        self.rollouts.append({name: torch.as_tensor(getattr(buffer, name).copy()) for name in names})
