"""The agents of a recording, and the one environment that they all play in."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs.determinism import settle_rebuilding
from rl_training.envs.factory import EnvFactory
from rl_training.envs.specs import env_spec
from rl_training.experiment.agent import Agent, check_spaces
from rl_training.experiment.files import refuse_link_inside
from rl_training.experiment.loading import load_agent

Source = str | PathLike[str] | Algorithm
PLACE = ("env_kwargs", "env_wrappers", "preprocessing", "max_episode_steps")
"""Settings of an environment in which agents of one dataset must agree."""


def load_all(
    sources: Sequence[Source], env: EnvFactory | str | None, *, trust_modules: bool
) -> dict[str, Agent]:
    """Return the agents by a name of their own: the run's and the checkpoint's."""
    found: dict[str, Agent] = {}
    for source in sources:
        if isinstance(source, Algorithm):
            agent = source.agent
        else:
            agent = load_agent(source, env=env, trust_modules=trust_modules, probe=False)
        name = _agent_name(agent)
        if name in found:
            if found[name].path is not None and found[name].path == agent.path:
                raise UserError(f"agent {source} is given twice; use weights to let it play more episodes")
            name = f"{name} ({len(found)})"
        found[name] = agent
    return found


def _agent_name(agent: Agent) -> str:
    """Return the names of run and checkpoint, without the folders above, which say nothing about the agent."""
    if agent.path is None:
        return str(agent.config.algo)
    path = agent.path.absolute()
    in_run = path.parent.name == "checkpoints"
    return f"{path.parent.parent.name}/{path.name}" if in_run else path.name


def refuse_links(folder: Path, agents: Mapping[str, Agent]) -> None:
    """Raise if the folder is reached through a link that is inside an agent's run."""
    for agent in agents.values():
        if agent.path is not None:
            above = agent.path.parent
            refuse_link_inside(above.parent if above.name == "checkpoints" else agent.path, folder)


def shared_environment(
    agents: Mapping[str, Agent], env: EnvFactory | str | None, seed: int, say: Callable[[str], None]
) -> tuple[TrainConfig, EnvFactory | None]:
    """Return the config and the function for the one environment that all agents play in: the first agent's."""
    (first, leader), *others = agents.items()
    config, factory = leader.playground(env)
    for name, agent in others:
        agent.environment(env)  # refuses what is not trusted
        asked = PLACE if env is not None else ("env_id", *PLACE)
        for setting in asked:
            mine, theirs = getattr(leader.config, setting), getattr(agent.config, setting)
            if mine != theirs:
                raise UserError(
                    f"agents {first} and {name} were trained in different environments ({setting}: {mine} and "
                    f"{theirs}); record them separately, or give the environment with --env-id (in Python: env=...)"
                )
        if leader.spec.masked != agent.spec.masked:
            raise UserError(
                f"only one of the agents {first} and {name} was trained with action masks; record them separately"
            )
        if not _same(leader.statistics[:1], agent.statistics[:1]):
            raise UserError(
                f"the wrappers of agents {first} and {name} have different running statistics, so their observations "
                "would not be comparable; record them separately"
            )
    config = config.with_overrides(seed=seed)
    return settle_rebuilding(config, factory, say), factory


def _same(one: Any, other: Any) -> bool:
    """Return whether nested statistics are equal."""
    if isinstance(one, dict | list) and type(one) is type(other) and len(one) == len(other):
        keys = one if isinstance(one, dict) else range(len(one))
        return all(
            (not isinstance(one, dict) or key in other) and _same(one[key], other[key]) for key in keys
        )
    return bool(np.array_equal(one, other))


def check_all(agents: Mapping[str, Agent], config: TrainConfig, env: gymnasium.Env[Any, Any]) -> None:
    """Raise if the environment's spaces are not those of an agent."""
    masked = config.use_action_masks == "on"
    for agent in agents.values():
        found = env_spec(
            *(env.observation_space, env.action_space, 1),
            masked=masked,
            critic_obs=agent.config.critic_obs,
            for_critic=False,
        )
        check_spaces(agent.name, config, found, agent.spec)


__all__ = ["Source", "check_all", "load_all", "refuse_links", "shared_environment"]
