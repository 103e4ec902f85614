"""Plays the episodes of a recording: each is a function of the seed and its number."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.core.seeding import (
    RECORDED_ACTIONS,
    RECORDED_EPISODES,
    derived_seed,
    episode_seed,
    evaluation_generators,
    numpy_generator,
)
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.spaces.masks import mask_counts
from rl_training.core.types import Array
from rl_training.datasets.recording import Episode
from rl_training.envs.episodes import SeededEpisodes
from rl_training.envs.masks import NAME as MASK
from rl_training.envs.masks import has_mask_entry, sample_allowed, split_mask_entry
from rl_training.envs.observations import nested_leaves
from rl_training.envs.wrapper_statistics import Statistics
from rl_training.experiment.agent import Agent
from rl_training.experiment.recording.behaviour import Behaviour

RANDOM = "random"


class Player:
    """Plays single episodes with one environment; `agents` have names, in the order of the behaviour's weights."""

    def __init__(
        self, agents: Mapping[str, Agent], env: SeededEpisodes, behaviour: Behaviour, max_steps: int
    ) -> None:
        self.agents, self.env, self.behaviour, self.max_steps = (
            list(agents.items()),
            env,
            behaviour,
            max_steps,
        )
        self.masked = self.agents[0][1].spec.masked
        self.num_cut = 0
        """Episodes that did not end within `max_steps`, and were truncated."""
        in_info = self.masked and not has_mask_entry(env.observation_space)
        self._mask_size = sum(mask_counts(env.action_space) or ()) if in_info else 0
        self._actions = copy.deepcopy(env.action_space)
        self._adapter = ActionAdapter(env.action_space)
        self._statistics: list[Statistics | None] = [
            next(iter(agent.statistics), None) for _, agent in self.agents
        ]
        env.freeze_statistics()

    def play(self, number: int) -> Episode:
        """Return episode `number`."""
        behaviour, seed = self.behaviour, self.behaviour.seed
        rng = numpy_generator(seed, RECORDED_ACTIONS, number)
        weights = np.array(behaviour.weights, np.float64)
        chosen = int(rng.choice(len(weights), p=weights / weights.sum()))
        name, agent = self.agents[chosen]
        is_random = bool(rng.random() < behaviour.random_fraction)
        own = derived_seed(seed, RECORDED_ACTIONS, number)
        with evaluation_generators(own):
            self._actions.seed(own)
            self.env.action_space.seed(own)  # wrappers may draw from it
            self.env.episode, self.env.new_statistics = number - 1, self._statistics[chosen]
            return self._play(number, None if is_random else agent, RANDOM if is_random else name, rng)

    def _play(self, number: int, agent: Agent | None, name: str, rng: np.random.Generator) -> Episode:
        env, memory, over = self.env, None, False
        obs, info = env.reset()
        columns = _Columns(env.observation_space, env.action_space)
        columns.see(obs, self._mask_in(info))
        while not over:
            masks = info.get(MASK) if self.masked else None
            if agent is None:
                action = self._random_action(obs, masks)
            else:
                action, memory = agent.act(
                    obs, memory, deterministic=self.behaviour.deterministic, action_masks=masks, rng=rng
                )
                action = self._with_noise(action, rng)
            obs, reward, terminated, truncated, info = env.step(action)
            cut = len(columns.rewards) + 1 >= self.max_steps and not (terminated or truncated)
            self.num_cut += cut
            over = bool(terminated or truncated or cut)
            columns.see(obs, self._mask_in(info))
            columns.pay(action, reward, bool(terminated), over and not terminated)
        return columns.episode(episode_seed(self.behaviour.seed, 0, number, RECORDED_EPISODES), name)

    def _mask_in(self, info: dict[str, Any]) -> Array | None:
        """Return the mask in `info`, if masks are there; everything is allowed after the end."""
        if not self._mask_size:
            return None
        return np.asarray(info.get(MASK, np.ones(self._mask_size)), np.bool_).reshape(self._mask_size)

    def _random_action(self, obs: Any, masks: Any) -> Any:
        if self.masked:
            mask = split_mask_entry(obs)[1] if masks is None else masks
            if mask is not None:
                return sample_allowed(self._actions, np.asarray(mask, np.bool_).reshape(-1))
        return self._actions.sample()

    def _with_noise(self, action: Array, rng: np.random.Generator) -> Array:
        if not self.behaviour.noise:
            return action
        units = self._adapter.from_env(action[None])
        noisy: Array = self._adapter.to_env(units + rng.normal(0.0, self.behaviour.noise, units.shape))[0]
        return noisy


class _Columns:
    """Collects an episode step by step, with copies: environments may reuse the memory of observations."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self._leaves, self._action_space = observation_leaves(observation_space), action_space
        self._obs: dict[str, list[Array]] = {key: [] for key in self._leaves}
        self._masks: list[Array] = []
        self._actions: list[Array] = []
        self.rewards: list[float] = []
        self._terminated: list[bool] = []
        self._truncated: list[bool] = []

    def see(self, obs: Any, mask: Array | None) -> None:
        """Add an observation, and the mask that belongs to it."""
        for key, part in nested_leaves(obs):
            self._obs[key].append(np.array(part, self._leaves[key].dtype))
        if mask is not None:
            self._masks.append(mask)

    def pay(self, action: Any, reward: Any, terminated: bool, truncated: bool) -> None:
        """Add what was done, and what it led to."""
        self._actions.append(np.array(action, self._action_space.dtype))
        self.rewards.append(float(reward))
        self._terminated.append(terminated)
        self._truncated.append(truncated)

    def episode(self, seed: int, behaviour: str) -> Episode:
        """Return the whole episode."""
        return Episode(
            {key: np.stack(parts) for key, parts in self._obs.items()},
            np.stack(self._actions),
            np.array(self.rewards, np.float64),
            np.array(self._terminated, np.bool_),
            np.array(self._truncated, np.bool_),
            {MASK: np.stack(self._masks)} if self._masks else {},
            seed,
            behaviour,
        )


__all__ = ["RANDOM", "Player"]
