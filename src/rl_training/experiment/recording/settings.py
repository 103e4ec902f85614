"""What a recording depends on, as plain data: it is kept in the folder, and in the dataset's metadata."""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import wrapper_texts
from rl_training.envs.factory import EnvFactory, registered_spec
from rl_training.experiment.agent import Agent
from rl_training.experiment.recording.behaviour import Behaviour
from rl_training.version import __version__


def all_settings(
    agents: Mapping[str, Agent],
    config: TrainConfig,
    behaviour: Behaviour,
    num_episodes: int,
    data_format: str,
    *,
    named: bool,
) -> dict[str, Any]:
    """Return everything that the dataset depends on, and who made it, as plain data."""
    told = asdict(behaviour) | {"weights": list(behaviour.weights)}
    return {
        "agents": [
            {
                "name": name,
                "algorithm": agent.config.algo,
                "timesteps": agent.timesteps,
                "weights_digest": weights_digest(agent),
            }
            for name, agent in agents.items()
        ],
        **told,
        "num_episodes": num_episodes,
        "format": data_format,
        "environment": {
            "env_id": config.env_id,
            "built_by_function": not named,
            "env_kwargs": dict(config.env_kwargs),
            "env_wrappers": list(wrapper_texts(config.env_wrappers)),
            "preprocessing": config.preprocessing,
            "max_episode_steps": config.max_episode_steps,
            "use_action_masks": config.use_action_masks,
        },
        "versions": {
            "rl_training": __version__,
            "gymnasium": gymnasium.__version__,
            "numpy": np.__version__,
            "torch": torch.__version__.split("+")[0],
        },
    }


def compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that must be the same to go on: agents by their weights, and not the versions."""
    kept = {name: value for name, value in settings.items() if name not in ("agents", "versions", "weights")}
    digests = [each["weights_digest"] for each in settings["agents"]]
    return {"agents": digests, "weights": [float(each) for each in settings["weights"]]} | kept


def weights_digest(agent: Agent) -> str:
    """Return a hash of the policy's weights and statistics."""
    found = hashlib.sha256()
    policy: Any = agent.policy
    for name, value in sorted(policy.state_dict().items()):
        found.update(name.encode())
        if isinstance(value, torch.Tensor):
            array = value.detach().cpu().contiguous()
            found.update(f"{tuple(array.shape)}{array.dtype}".encode() + array.numpy().tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()[:16]


def recorded_spec(config: TrainConfig, factory: EnvFactory | None) -> EnvSpec | None:
    """Return the environment as Gymnasium describes it: id, arguments and time limit; None for a function's."""
    if factory is not None:
        return None
    spec, kwargs = copy.deepcopy(registered_spec(config)), dict(config.env_kwargs)
    limit = config.max_episode_steps or kwargs.pop("max_episode_steps", None)
    spec.kwargs = {**spec.kwargs, **kwargs}
    spec.max_episode_steps = spec.max_episode_steps if limit is None else limit
    try:
        spec.to_json()
    except Exception:  # an entry point or an argument that is no plain data
        return None
    return spec


__all__ = ["all_settings", "compared", "recorded_spec", "weights_digest"]
