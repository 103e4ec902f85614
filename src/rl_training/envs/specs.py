"""Which part of an environment's observations the actor reads, which part only critics read, and which is a mask."""

from collections.abc import Sequence
from typing import Any

from gymnasium import Space, spaces

from rl_training.core.errors import UserError, did_you_mean
from rl_training.core.spaces.layout import space_text
from rl_training.core.types import EnvSpec
from rl_training.envs.masks import NAME


def env_spec(
    space: Space[Any],
    action_space: Space[Any],
    num_envs: int,
    *,
    masked: bool,
    critic_obs: Sequence[str] = (),
    for_critic: bool = True,
) -> EnvSpec:
    """Return the spec of environments with these spaces: without the mask entry, and without the critic's entries.

    `critic_obs` name the entries that only critics read; they become `critic_space`. Without `for_critic`, where
    nothing is learned, they are dropped, and an environment need not have them.
    """
    if masked and isinstance(space, spaces.Dict) and NAME in space.spaces:
        space = _without(space, [NAME])
        if not space.spaces:
            raise UserError(
                f"the only entry of observations is '{NAME}'; add another entry, or set use_action_masks to off"
            )
    critic_space = _critic_space(space, critic_obs) if critic_obs and for_critic else None
    if critic_obs and isinstance(space, spaces.Dict):
        space = _without(space, critic_obs)
    return EnvSpec(space, action_space, num_envs, masked, critic_space=critic_space)


def without_critic_obs(spec: EnvSpec, obs: Any) -> Any:
    """Return an observation of the environment, or a batch, without the entries that only critics read."""
    if not isinstance(obs, dict) or not isinstance(spec.critic_space, spaces.Dict):
        return obs
    return {name: part for name, part in obs.items() if name not in spec.critic_space.spaces}


def _without(space: spaces.Dict, names: Sequence[str]) -> spaces.Dict:
    return spaces.Dict([(name, part) for name, part in space.spaces.items() if name not in names])


def _critic_space(space: Space[Any], names: Sequence[str]) -> spaces.Dict:
    """Return the named entries in the order of the observation; raise if that leaves nothing for the actor."""
    if not isinstance(space, spaces.Dict):
        raise UserError(
            f"critic_obs names entries of a Dict observation, but observations are {space_text(space)}; let the "
            "environment return a Dict, or leave critic_obs out"
        )
    known = [str(name) for name in space.spaces]
    for name in names:
        if name not in space.spaces:
            raise UserError(
                f"critic_obs names '{name}', but observations have the entries {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            )
    if not set(known) - set(names):
        raise UserError(
            f"critic_obs names all entries of observations ({', '.join(known)}), which leaves nothing for the actor; "
            "leave one out"
        )
    return spaces.Dict([(name, part) for name, part in space.spaces.items() if name in names])
