"""Several policies in one game: an actor, a source and a learner for each team, as the parts of one run."""

from collections.abc import Callable, Mapping
from typing import Any

from rl_training.algorithms.components import Actor, Parts, StatefulLearner
from rl_training.core.seeding import TEAMS, derived_seed
from rl_training.core.types import EnvSpec, Progress, State, UpdateResult
from rl_training.data.team_sources import TeamBatch, TeamSources
from rl_training.policies.teams import TeamsExplorer, TeamsPolicy, team_rows


class TeamLearners:
    """The learners of all teams by name: a batch goes to the learner of its team, whose metrics carry its name."""

    def __init__(self, learners: Mapping[str, StatefulLearner]) -> None:
        self.learners = dict(learners)

    @property
    def update_path(self) -> str:
        """How gradients are computed: the paths of all learners."""
        return " and ".join(dict.fromkeys(each.update_path for each in self.learners.values()))

    @property
    def fixed_learning_rate(self) -> float | None:
        return next(iter(self.learners.values())).fixed_learning_rate

    @fixed_learning_rate.setter
    def fixed_learning_rate(self, value: float | None) -> None:
        for learner in self.learners.values():
            learner.fixed_learning_rate = value

    @property
    def owners(self) -> dict[str, Any]:
        """The objects with state of all learners, by `part/team`."""
        return {
            _under(name, part): owner
            for name, learner in self.learners.items()
            for part, owner in getattr(learner, "owners", {}).items()
        }

    def update(self, batch: TeamBatch, progress: Progress) -> UpdateResult:
        """Train the policy of the batch's team."""
        result = self.learners[batch.team].update(batch.rows, progress)
        named = {f"{batch.team}/{name}": value for name, value in result.metrics.items()}
        return UpdateResult(named, result.priorities, result.updates)

    def state_dict(self) -> dict[str, State]:
        return _merged({name: each.state_dict() for name, each in self.learners.items()})

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        for name, learner in self.learners.items():
            learner.load_state_dict(state_of_team(state, name))

    def learned_state(self) -> dict[str, State]:
        return _merged({name: each.learned_state() for name, each in self.learners.items()})

    def load_learned(self, state: Mapping[str, State]) -> None:
        for name, learner in self.learners.items():
            learner.load_learned(state_of_team(state, name))

    def not_finite(self, state: Mapping[str, State]) -> str | None:
        """Return the name of a learned value that is not finite, with its team; None if there is none."""
        for name, learner in self.learners.items():
            if (culprit := learner.not_finite(state_of_team(state, name))) is not None:
                return f"{name}: {culprit}"
        return None


def _under(team: str, part: str) -> str:
    file, _, rest = part.partition("/")
    return "/".join(filter(None, (file, team, rest)))


def _merged(states: Mapping[str, Mapping[str, State]]) -> dict[str, State]:
    """Return the states of all teams by file, then by team; the model's, as the policy has them."""
    found: dict[str, State] = {}
    for team, state in states.items():
        for file, content in state.items():
            if file == "model":
                found.setdefault(file, {}).update(
                    {f"teams.{team}.{name}": part for name, part in content.items()}
                )
            else:
                found.setdefault(file, {})[team] = content
    return found


def state_of_team(state: Mapping[str, State], team: str) -> dict[str, State]:
    """Return a team's part of the state of all learners."""
    prefix, found = f"teams.{team}.", {}
    for file, content in state.items():
        if file == "model":
            found[file] = {
                name.removeprefix(prefix): part for name, part in content.items() if name.startswith(prefix)
            }
        elif isinstance(content, Mapping) and team in content:
            found[file] = content[team]
    return found


def team_specs(spec: EnvSpec) -> dict[str, tuple[EnvSpec, int]]:
    """Return the spec of each team, and a number for its seed."""
    assert spec.game is not None
    games = spec.num_envs // len(spec.game.seats)
    return {name: (own, number) for number, (name, own) in enumerate(spec.game.team_specs(games).items())}


def team_seed(seed: int, number: int) -> int:
    """Return the seed of a team's weights and random streams."""
    return derived_seed(seed, TEAMS, number)


def joined_actor(spec: EnvSpec, actors: Mapping[str, Actor[Any]]) -> Actor[Any]:
    """Return the actors of all teams as one."""
    policy = TeamsPolicy(spec, {name: actor.policy for name, actor in actors.items()})
    return Actor(policy, TeamsExplorer(spec, {name: actor.explorer for name, actor in actors.items()}))  # type: ignore[arg-type]  # columns by team


def joined_parts(spec: EnvSpec, build: Callable[[EnvSpec, int], Parts]) -> Parts:
    """Return the parts of a run whose teams learn on their own; `build` takes a team's spec and its number."""
    teams = {name: build(own, number) for name, (own, number) in team_specs(spec).items()}
    return Parts(
        joined_actor(spec, {name: parts.actor for name, parts in teams.items()}),
        TeamSources({name: parts.source for name, parts in teams.items()}, team_rows(spec)),
        TeamLearners({name: parts.learner for name, parts in teams.items()}),
    )
