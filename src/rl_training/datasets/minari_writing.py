"""Writes episodes as a Minari dataset with Minari's own storage, without loss: images are not JPEG-encoded."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from rl_training.core.errors import UserError, reason
from rl_training.datasets.episode import Episode, nested
from rl_training.datasets.minari_files import import_minari

Format = Literal["hdf5", "arrow"]
NEEDED = {"hdf5": ("h5py", "PIL"), "arrow": ("pyarrow", "PIL")}
"""Modules that Minari imports for a format."""


def refuse_unwritable(observation_space: Space[Any], action_space: Space[Any], data_format: str) -> None:
    """Raise if Minari or a module for the format is missing, or if Minari cannot describe a space."""
    import_minari()
    from minari.serialization import deserialize_space, serialize_space

    if data_format not in NEEDED:
        raise UserError(f"format is '{data_format}'; use one of {', '.join(NEEDED)}")
    try:
        from minari.dataset._storages import get_minari_storage

        get_minari_storage(data_format)
    except ImportError as error:
        raise UserError(
            f"the format '{data_format}' cannot be written: {reason(error)}; pip install 'rl-training[offline]'"
        ) from error
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        try:
            again = deserialize_space(serialize_space(space))
        except (NotImplementedError, KeyError, ValueError, TypeError):
            again = None
        if again != space:
            raise UserError(f"Minari cannot store the {name} {space}; change it with a wrapper")


def write_minari(
    folder: Path,
    episodes: Iterable[Episode],
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    data_format: Format = "hdf5",
    env_spec: EnvSpec | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a dataset into `folder`, which becomes the folder `data` of a dataset; `metadata` needs a `dataset_id`."""
    minari = import_minari()
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    storage = MinariStorage.new(
        folder, observation_space, action_space, env_spec, data_format, jpeg_encoding=False
    )
    told: list[dict[str, Any]] = []

    def buffers() -> Iterable[Any]:
        for number, episode in enumerate(episodes):
            told.append({"behaviour": episode.behaviour})
            yield EpisodeBuffer(
                id=number,
                seed=episode.seed,
                observations=nested(observation_space, episode.observations),
                actions=episode.actions,
                rewards=list(episode.rewards),
                terminations=list(episode.terminated),
                truncations=list(episode.truncated),
                infos=dict(episode.infos),
            )

    storage.update_episodes(buffers())
    storage.update_episode_metadata(told)
    storage.update_metadata({**(metadata or {}), "minari_version": minari.__version__})


def dataset_id(name: str) -> str:
    """Return a folder's name as Minari calls datasets, with a version.

    >>> dataset_id("pendulum mixed"), dataset_id("medium-v2")
    ('pendulum-mixed-v0', 'medium-v2')
    """
    plain = re.sub(r"[^-\w]+", "-", name).strip("-") or "dataset"
    return plain if re.search(r"-v\d+$", plain) else f"{plain}-v0"


__all__ = ["Format", "dataset_id", "refuse_unwritable", "write_minari"]
