"""Actions for the agents of a game, from what they see: dicts by agent in, dicts by agent out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.games import Game, Seat, TeamRows
from rl_training.core.protocols import Policy
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.layout import space_text
from rl_training.core.spaces.masks import MASK_KEY
from rl_training.core.types import Array, PolicyState, joined
from rl_training.envs.games.seats import split_observation
from rl_training.envs.masks import check_user_masks
from rl_training.envs.observations import batched, nested_leaves


class SeatActions:
    """Lets the policies of a game act for agents by name."""

    def __init__(self, game: Game, policy: Policy) -> None:
        self.game, self.policy = game, policy
        self._seats = {seat.name: (team, seat) for team in game.teams for seat in team.seats}
        self._adapters = [ActionAdapter(team.action_space) for team in game.teams]

    def act(
        self,
        observations: Any,
        state: PolicyState | None,
        action_masks: Any,
        *,
        deterministic: bool,
        rng: np.random.Generator,
    ) -> tuple[Any, PolicyState | None]:
        """Return the action of each agent in `observations`, a dict by agent, and the next state, with a row per agent.

        Agents without an observation do nothing and keep their row of the state. Where all agents are alike, a single
        observation may be given instead; the result is then a single action. `action_masks` are a dict by agent as
        well.
        """
        if not isinstance(observations, Mapping) or not set(observations) & set(self._seats):
            agent = self._any_agent(observations)
            masks = None if action_masks is None else {agent: action_masks}
            actions, state = self.act(
                {agent: observations}, state, masks, deterministic=deterministic, rng=rng
            )
            return actions[agent], state
        self._refuse_unknown(observations)
        seen: dict[str, Any] = {}
        for team in self.game.teams:
            rows = TeamRows.empty(team)
            for number, seat in enumerate(team.seats):
                if seat.name in observations:
                    self._write(rows, number, seat, observations[seat.name], action_masks)
            own: dict[str, Array] = dict(rows.obs)
            seen[team.name] = joined(own if rows.mask is None else {**own, MASK_KEY: rows.mask})
        before = self.policy.initial_state(len(self._seats)) if state is None else state
        whole = seen if len(self.game.teams) > 1 else next(iter(seen.values()))
        chosen, after = self.policy.act(whole, before, deterministic=deterministic, rng=rng)
        by_team = chosen if len(self.game.teams) > 1 else (chosen,)
        actions = self._by_agent(by_team, observations)
        present = np.array([agent in observations for agent in self.game.agents])
        kept = tuple(np.where(present[:, None], new, old) for new, old in zip(after, before, strict=True))
        return actions, kept or None

    def _any_agent(self, obs: Any) -> str:
        """Return the agent that a single observation may belong to: any, if one policy treats all alike."""
        team = self.game.teams[0]
        alike = len({space_text(s.observation_space) + space_text(s.action_space) for s in team.seats}) == 1
        if len(self.game.teams) == 1 and not team.with_ids and alike:
            return team.seats[0].name
        raise UserError(
            "the agents of this game differ, so an observation needs the name of its agent: pass a dict such as "
            f"{{'{team.seats[0].name}': observation}}; the agents are {', '.join(self._seats)}"
        )

    def _refuse_unknown(self, observations: Mapping[str, Any]) -> None:
        unknown = [str(agent) for agent in observations if agent not in self._seats]
        if unknown:
            raise UserError(
                f"observations are given for {', '.join(unknown)}, but the agents are {', '.join(self._seats)}"
            )

    def _write(self, rows: TeamRows, number: int, seat: Seat, raw: Any, action_masks: Any) -> None:
        obs, mask = split_observation(raw)
        try:
            batch, is_batch = batched(seat.observation_space, obs)
        except UserError as error:
            raise UserError(f"agent '{seat.name}': {error}") from None
        if is_batch:
            raise UserError(f"agent '{seat.name}': give one observation, and not a batch")
        rows.write(number, {key: part[0] for key, part in nested_leaves(batch)})
        given = None if action_masks is None else action_masks.get(seat.name)
        mask = mask if given is None else given
        if mask is not None and seat.masked:
            mask = check_user_masks(seat.action_space, mask, 1, f"the mask of agent '{seat.name}'")[0]
        rows.allow(number, mask if seat.masked else None)

    def _by_agent(self, by_team: Any, observations: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for team, adapter, chosen in zip(self.game.teams, self._adapters, by_team, strict=True):
            flat = adapter.to_env(chosen).reshape(len(team.seats), -1)
            for seat, row in zip(team.seats, flat, strict=True):
                if seat.name in observations:
                    found[seat.name] = team.env_action(seat, row)
        return {agent: found[agent] for agent in observations}
