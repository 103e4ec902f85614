"""The setting `policies`: which agents of a game share a policy."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from rl_training.core.errors import UserError, did_you_mean

Policies: TypeAlias = Literal["shared", "each"] | dict[str, Any]
"""`shared` by all agents, one for `each`, or a map from the name of a policy to its agents."""
SHARED: Literal["shared"] = "shared"
REMEDY = "use shared, each, or a map from the name of a policy to a list of agents"


def checked_policies(value: Any) -> Policies:
    """Return the setting as it is stored; raise ValueError with the remedy.

    >>> checked_policies({"team": ["a", "b"]})
    {'team': ['a', 'b']}
    """
    if value == "shared" or value == "each":
        return value  # type: ignore[no-any-return]  # one of the words
    if not isinstance(value, Mapping) or not value:
        hint = did_you_mean(value, ["shared", "each"]) if isinstance(value, str) else ""
        raise ValueError(f"{REMEDY}{hint}")
    found: dict[str, Any] = {}
    for name, agents in value.items():
        if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"name a policy with letters, digits, - and _, not {name!r}")
        listed = [agents] if isinstance(agents, str) else agents
        if not isinstance(listed, list | tuple) or not listed or not all(isinstance(a, str) for a in listed):
            raise ValueError(f"give the policy '{name}' a list of agents")
        found[name] = list(listed)
    names = [agent for agents in found.values() for agent in agents]
    twice = sorted({agent for agent in names if names.count(agent) > 1})
    if twice:
        raise ValueError(f"agent {', '.join(map(repr, twice))} is listed twice; each agent has one policy")
    return found


def agents_by_policy(policies: Policies, agents: Iterable[str]) -> dict[str, list[str]]:
    """Return the agents of each policy, in the order of the game; raise an error for agents that do not fit.

    >>> agents_by_policy("each", ["a", "b"])
    {'a': ['a'], 'b': ['b']}
    """
    known = list(agents)
    if policies == "shared":
        return {SHARED: known}
    if policies == "each":
        return {agent: [agent] for agent in known}
    assert isinstance(policies, dict)
    chosen = {agent: name for name, members in policies.items() for agent in members}
    unknown = [agent for agent in chosen if agent not in known]
    missing = [agent for agent in known if agent not in chosen]
    problems = [
        f"policies names agent '{agent}', which the game does not have{did_you_mean(agent, known)}; its agents are "
        f"{', '.join(known)}"
        for agent in unknown
    ]
    if missing:
        problems.append(f"policies gives no policy to {', '.join(missing)}; add them to one")
    if problems:
        raise UserError("; ".join(problems))
    return {name: [agent for agent in known if chosen[agent] == name] for name in policies}
