"""What each agent sees: its observation without the mask, with images preprocessed."""

import contextlib
from typing import Any

from gymnasium import Space, spaces

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.games import Seat
from rl_training.core.spaces.masks import NoMask, as_masks, mask_counts, possible
from rl_training.core.types import Array, Info
from rl_training.envs.checks import InvalidResult
from rl_training.envs.masks import NAME, has_mask_entry
from rl_training.envs.preprocessing.images import ObservationImages

PLAIN = "observation"
"""The only other entry beside a mask, in games that follow PettingZoo's convention."""


def without_mask(space: Space[Any]) -> Space[Any]:
    """Return an agent's observation space without its mask; that of the only other entry, if it is `observation`."""
    if not isinstance(space, spaces.Dict) or NAME not in space.spaces:
        return space
    rest = [(name, part) for name, part in space.spaces.items() if name != NAME]
    if len(rest) == 1 and rest[0][0] == PLAIN:
        return rest[0][1]
    return spaces.Dict(rest)


def split_observation(obs: Any) -> tuple[Any, Any]:
    """Return an agent's observation in the form of `without_mask`, and its mask (None if there is none)."""
    if not isinstance(obs, dict) or NAME not in obs:
        return obs, None
    rest = {name: part for name, part in obs.items() if name != NAME}
    return (rest[PLAIN] if set(rest) == {PLAIN} else rest), obs[NAME]


class SeatViews:
    """Turns what the game shows its agents into what their policies see."""

    def __init__(self, game: Any, config: TrainConfig) -> None:
        agents = list(game.possible_agents)
        self.spaces = {agent: game.observation_space(agent) for agent in agents}
        self.actions = {agent: game.action_space(agent) for agent in agents}
        self.uses_masks = config.use_action_masks != "off"
        self._images: dict[str, ObservationImages] = {}
        self._begun: set[str] = set()
        self._late: set[str] = set()
        """Agents that are not there at first, so it is not known whether they have masks."""
        self._by_info = self._masked_by_info(game)
        self.seats = {agent: self._seat(agent, config) for agent in agents}

    def _seat(self, agent: str, config: TrainConfig) -> Seat:
        space, actions = self.spaces[agent], self.actions[agent]
        for name, each in (("observation_space", space), ("action_space", actions)):
            if not isinstance(each, Space):
                raise UserError(
                    f"game '{config.env_id}' has {name}('{agent}') {each!r}; return a space of gymnasium.spaces"
                )
        seen = without_mask(space)
        if config.preprocessing == "image":
            self._images[agent] = ObservationImages(seen, config.frames, config.algorithm.image_channels)
            seen = self._images[agent].space
        maskable = self.uses_masks and mask_counts(actions) is not None
        return Seat(
            agent, seen, actions, masked=maskable and (has_mask_entry(space) or agent in self._by_info)
        )

    def _masked_by_info(self, game: Any) -> set[str]:
        """Return the agents that find their masks in `info`: those that do at first, and those that come later."""
        asked = [
            agent
            for agent, space in self.spaces.items()
            if not has_mask_entry(space) and mask_counts(self.actions[agent]) is not None
        ]
        if not self.uses_masks or not asked:
            return set()
        first = first_infos(game)
        found = {agent for agent in asked if NAME in first.get(agent, {})}
        if found:
            self._late = {agent for agent in asked if agent not in first}
        return found | self._late

    def restart(self) -> None:
        """Begin a new episode."""
        self._begun.clear()

    def of(self, agent: str, raw: Any) -> tuple[Any, Any]:
        """Return what an agent's policy sees, None if it sees nothing now, and the mask in its observation."""
        if raw is None:
            return None, None
        obs, said = split_observation(raw)
        if agent in self._images:
            images = self._images[agent]
            obs = images.push(obs) if agent in self._begun else images.restart(obs)
            self._begun.add(agent)
        return obs, said

    def mask(self, agent: str, said: Any, info: Info | None) -> Array | None:
        """Return the mask of an agent that acts next, None if it has none; `said` is the one in its observation."""
        if not self.seats[agent].masked:
            return None
        said = (info or {}).get(NAME) if said is None else said
        if said is None and agent in self._late:
            return None
        if said is None:
            raise InvalidResult(
                f"gave agent '{agent}' no mask of its actions; give one at every step of its own, or set "
                "use_action_masks to off"
            )
        counts = mask_counts(self.actions[agent])
        assert counts is not None
        try:
            mask = as_masks(said, sum(counts))
        except NoMask as problem:
            raise InvalidResult(f"gave agent '{agent}' an action mask {problem}") from None
        if not possible(mask[None], counts).all():
            raise InvalidResult(
                f"allows agent '{agent}' no action, although it acts next: its mask is {mask.astype(int).tolist()}; "
                "end the game for it, or fix the mask"
            )
        return mask


def first_infos(game: Any) -> dict[str, Info]:
    """Begin a game, and return the first `info` of each agent; nothing if that fails, which training will report."""
    with contextlib.suppress(Exception):
        result = game.reset(seed=0)
        infos = result[1] if isinstance(result, tuple) else game.infos
        return {agent: infos.get(agent) or {} for agent in game.agents}
    return {}
