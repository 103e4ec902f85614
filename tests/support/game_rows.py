"""Plays games through a stepper and tells, for each agent, the same story as PettingZoo's own loop."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.games import AGENT_KEY, Team
from rl_training.core.seeding import episode_seed
from rl_training.core.spaces.masks import MASK_KEY
from rl_training.core.types import Array, leaves
from rl_training.envs.games.stepper import GameStepper
from rl_training.envs.stepper_factory import training_stepper
from support.games import Choice, Deed, Role, Story, World, choices, play_at_once, play_in_turns


def game_stepper(build: Any, num_envs: int = 2, **settings: Any) -> GameStepper:
    """Return a stepper of games that a function builds."""
    given = {"algo": "ppo", "env_id": "Plot", "seed": 3, "use_action_masks": "auto", "rebuild_envs": "off"}
    config = TrainConfig(num_envs=num_envs, **given | settings)
    stepper = training_stepper(config, build)
    assert isinstance(stepper, GameStepper)
    return stepper


def games_of(stepper: GameStepper) -> list[World]:
    """Return the games themselves, of a stepper in this process."""
    return [env.unwrapped.raw for env in stepper.inner.env.envs]  # type: ignore[attr-defined]


class Acting:
    """Draws actions for all rows, in the units of policies, and allowed ones."""

    def __init__(self, stepper: GameStepper, seed: int) -> None:
        self.stepper, self.rng = stepper, np.random.default_rng(seed)
        self.specs = stepper.game.team_specs(stepper.inner.spec.num_envs)

    def actions(self) -> Any:
        """Return an array of actions, or one for each team."""
        found = tuple(self._of(team) for team in self.stepper.game.teams)
        return found if len(found) > 1 else found[0]

    def _of(self, team: Team) -> Array:
        rows, space = self.specs[team.name].num_envs, team.action_space
        if isinstance(space, spaces.Box):
            return self.rng.uniform(-1, 1, (rows, *space.shape)).astype(np.float32)
        obs = team_obs(self.stepper.out.obs, team, self.stepper)
        sizes = choices(space)
        allowed = obs[MASK_KEY] if team.masked else np.ones((rows, sum(sizes)), np.bool_)
        parts = np.split(allowed, np.cumsum(sizes)[:-1], axis=1)
        drawn = np.array(
            [[self.rng.choice(np.flatnonzero(part[row])) for part in parts] for row in range(rows)]
        )
        return drawn[:, 0] if isinstance(space, spaces.Discrete) else drawn


def team_obs(obs: Any, team: Team, stepper: GameStepper) -> Any:
    return obs[team.name] if len(stepper.game.teams) > 1 else obs


class Watcher:
    """Steps games and tells the stories of those that are over: environment, number of the game, and stories."""

    def __init__(self, stepper: GameStepper, seed: int = 0) -> None:
        self.stepper, self.acting = stepper, Acting(stepper, seed)
        self.envs = stepper.inner.spec.num_envs
        self.places = {}
        row = 0
        for team in stepper.game.teams:
            for number, seat in enumerate(team.seats):
                self.places[seat.name] = (team, number, row)
                row += self.envs
        self.stories = [self._fresh() for _ in range(self.envs)]
        self.count = [0] * self.envs

    def _fresh(self) -> dict[str, Story]:
        return {agent: Story() for agent in self.places}

    def row(self, obs: Any, agent: str, env: int) -> dict[str, Array]:
        """Return what is seen in the row of an agent, by leaf."""
        team, number, _ = self.places[agent]
        own = team_obs(obs, team, self.stepper)
        return {key: array[number * self.envs + env].copy() for key, array in leaves(own)}

    def play(self, steps: int) -> Iterator[tuple[int, int, dict[str, Story]]]:
        """Step, and yield every game that ends."""
        self.stepper.reset()
        out = self.stepper.out
        for _ in range(steps):
            acts, actions = out.acts.copy(), self.acting.actions()  # type: ignore[union-attr]
            before = {
                (agent, env): self.row(out.obs, agent, env)
                for agent in self.places
                for env in range(self.envs)
            }
            self.stepper.step(actions)
            assert out.valid.tolist() == acts.tolist()
            assert out.num_valid == acts.sum()
            assert out.any_ended == out.ended.any()
            assert (out.ended == (out.terminated | out.truncated)).all()
            assert not (out.terminated & out.truncated).any()
            for agent, (team, number, first) in self.places.items():
                for env in range(self.envs):
                    row, story = first + env, self.stories[env][agent]
                    if acts[row]:
                        assert not story.end, "it acts after its end"
                        own = actions if len(self.stepper.game.teams) == 1 else actions[self._team(team)]
                        story.deeds.append(Deed(before[agent, env], np.array(own[number * self.envs + env])))
                    story.pay(float(out.reward[row]))
                    if out.ended[row]:
                        assert not story.end, "it ends twice"
                        story.end = "terminated" if out.terminated[row] else "truncated"
                        story.last_seen = self.row(out.final_obs, agent, env)
            for env in np.flatnonzero(self.stepper.inner.out.ended):
                yield int(env), self.count[env], self.stories[env]
                self.stories[env] = self._fresh()
                self.count[env] += 1

    def _team(self, team: Team) -> int:
        return [each.name for each in self.stepper.game.teams].index(team.name)


def plain_stories(build: Any, played: World, seed: int, env: int, number: int) -> dict[str, Story]:
    """Play a game again with PettingZoo's own loop and the actions that it received."""
    wanted = episode_seed(seed, env, number)
    actions = [actions for found, actions in played.played if found == wanted][-1]
    queues = {agent: [act for other, act in actions if other == agent] for agent in played.possible_agents}
    choose: Choice = lambda agent: queues[agent].pop(0)  # noqa: E731
    game = build()
    play: Any = play_in_turns if hasattr(game, "agent_iter") else play_at_once
    found: dict[str, Story] = play(game, wanted, choose)
    assert not any(queues.values()), "the game received more actions"
    return found


def compare(
    stepper: GameStepper, told: dict[str, Story], known: dict[str, Story], roles: dict[str, Role]
) -> None:
    """Assert that two tellings of a game agree, for all agents."""
    for agent, story in known.items():
        other, role = told[agent], roles[agent]
        team = stepper.game.team_of(agent)
        assert len(other.deeds) == len(story.deeds), agent
        assert other.before == story.before
        for mine, theirs in zip(other.deeds, story.deeds, strict=True):
            assert mine.paid == pytest_approx(theirs.paid)
            assert_same_row(mine.seen, theirs.seen, team, agent)
            np.testing.assert_allclose(
                in_game_units(mine.action, role.actions), np.reshape(theirs.action, -1), rtol=1e-5, atol=1e-6
            )
        if story.end:
            assert other.end == story.end, agent
            assert_same_row(other.last_seen, story.last_seen, team, agent, masks=False)
        else:  # it never came, so the end of the game is its own
            assert not other.deeds


def pytest_approx(number: float) -> Any:
    import pytest

    return pytest.approx(number, abs=1e-9)


def in_game_units(action: Array, space: Any) -> Array:
    """Return what the game must have received for an action of a policy."""
    if isinstance(space, spaces.Discrete):
        return np.reshape(action + space.start, -1)
    if isinstance(space, spaces.MultiDiscrete):
        return np.reshape(action, -1)
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    return low + (np.reshape(action, -1)[: low.size] + 1) / 2 * (high - low)


def assert_same_row(row: dict[str, Array], raw: Any, team: Team, agent: str, *, masks: bool = True) -> None:
    """Assert that a row holds an agent's observation: padded with zeros, with its mask, and its number in the team."""
    row = dict(row)
    mask = row.pop(MASK_KEY, None)
    assert (AGENT_KEY in row) == team.with_ids
    if team.with_ids:
        assert int(row.pop(AGENT_KEY)) == team.number(agent)
    if isinstance(raw, dict) and "action_mask" in raw:
        if masks:
            said = np.asarray(raw["action_mask"]).astype(bool)
            assert mask is not None
            assert mask[: said.size].tolist() == said.tolist()
            assert not mask[said.size :].any()
        raw = raw["observation"]
    known = raw if isinstance(raw, dict) else {next(iter(row)): raw}
    assert set(row) == set(known)
    for key, value in row.items():
        flat, told = np.reshape(value, -1), np.reshape(known[key], -1)
        np.testing.assert_array_equal(flat[: told.size], told)
        assert not flat[told.size :].any()
