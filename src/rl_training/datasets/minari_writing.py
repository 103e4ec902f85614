"""Writes Minari datasets with Minari's own storage, without loss: images are not JPEG-encoded."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec

from rl_training.core.errors import MAX_PROBLEMS, ConfigError, UserError, reason
from rl_training.core.types import Array
from rl_training.datasets.checks import episode_problems
from rl_training.datasets.dataset import RecordedIn
from rl_training.datasets.minari_files import import_minari
from rl_training.datasets.recording import Episode, Recording, Spaces
from rl_training.version import __version__

Format = Literal["hdf5", "arrow"]
NEEDED = {"hdf5": ("h5py", "PIL"), "arrow": ("pyarrow", "PIL")}
"""Modules that Minari imports for a format."""
FACTS = ("algorithm_name", "author", "author_email", "code_permalink", "description")
"""What a dataset keeps of the description of the one that it was made from."""


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


def check_target(folder: Path) -> None:
    """Raise if a dataset cannot be written to a folder."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists; give a new folder, or delete it first")
    if not folder.absolute().parent.is_dir():
        raise UserError(f"there is no folder {folder.parent}; create it first")


def write_minari(recording: Recording, folder: Path, data_format: str = "hdf5") -> int:
    """Write a recording to a new folder; return the number of its episodes.

    The folder gets its name when it is complete, so a process that is killed leaves nothing half-made. All problems of
    the episodes are one error.
    """
    import_minari()
    check_target(folder)
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / "data").mkdir(parents=True)
        steps, episodes = _write(recording, temporary / "data", data_format)
        _describe(recording, temporary / "data", steps, episodes, folder.name)
        temporary.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return episodes


def _write(recording: Recording, data: Path, data_format: str) -> tuple[int, int]:
    problems, sizes = list[str](), list[int]()

    def checked() -> Iterator[Episode]:
        for number, episode in enumerate(recording.episodes()):
            wrong = episode_problems(episode, *recording.spaces)
            problems.extend(f"episode {number}: {problem}" for problem in wrong)
            if len(problems) > MAX_PROBLEMS:
                return
            sizes.append(episode.num_steps)
            if not problems:
                yield episode

    write_episodes(data, checked(), recording.spaces, data_format=data_format)
    if not sizes and not problems:
        problems.append("it has no episodes")
    if problems:
        raise ConfigError(problems, f"dataset '{recording.name}'")
    return sum(sizes), len(sizes)


def write_episodes(
    data: Path,
    episodes: Iterable[Episode],
    spaces_of: Spaces,
    *,
    data_format: str,
    env_spec: EnvSpec | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write episodes into the folder `data` of a dataset."""
    minari = import_minari()
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    # Minari joins a relative path to itself
    storage = MinariStorage.new(data.absolute(), *spaces_of, env_spec, data_format, jpeg_encoding=False)
    told: list[dict[str, Any]] = []

    def buffers() -> Iterator[EpisodeBuffer]:
        for number, episode in enumerate(episodes):
            told.append({"behaviour": episode.behaviour} if episode.behaviour else {})
            yield EpisodeBuffer(id=number, seed=episode.seed, **_numbers(episode, spaces_of))

    storage.update_episodes(buffers())
    if any(told):
        storage.update_episode_metadata(told)
    storage.update_metadata({**(metadata or {}), "minari_version": minari.__version__})


def _numbers(episode: Episode, spaces_of: Spaces) -> dict[str, Any]:
    """Return an episode as the fields of Minari's, in the types of the spaces."""
    return {
        "observations": _nested(episode.obs, spaces_of[0]),
        "actions": np.asarray(episode.actions, spaces_of[1].dtype),
        "rewards": np.asarray(episode.rewards, np.float64),
        "terminations": np.asarray(episode.terminated, np.bool_),
        "truncations": np.asarray(episode.truncated, np.bool_),
        "infos": dict(episode.infos),
    }


def _describe(recording: Recording, data: Path, steps: int, episodes: int, name: str) -> None:
    """Add to the description what Minari's writer does not know, such as the environment by its id."""
    file, where = data / "metadata.json", recording.recorded_in
    found = json.loads(file.read_text(encoding="utf-8"))
    found |= {key: value for key, value in recording.facts.items() if key in FACTS}
    found |= {"total_steps": steps, "total_episodes": episodes, "dataset_id": f"{name}-v0"}
    found["written_by"] = f"rl_training {__version__}"
    if where.env_id:
        found["env_spec"] = _spec_text(where)
    file.write_text(json.dumps(found, default=str), encoding="utf-8")


def _spec_text(where: RecordedIn) -> str:
    """Return the environment as Minari describes it; in full, if Gymnasium knows it."""
    changes: dict[str, Any] = {"kwargs": dict(where.env_kwargs)}
    if where.max_episode_steps is not None:
        changes["max_episode_steps"] = where.max_episode_steps
    spec = gymnasium.registry.get(where.env_id)
    if spec is None or callable(spec.entry_point):
        return json.dumps({"id": where.env_id, **changes})
    known: str = replace(spec, **changes).to_json()
    return known


def _nested(obs: Any, space: Space[Any], key: str = "") -> Any:
    """Return flat observations [T + 1, ...] as Minari writes those of a nested space, in the space's types."""
    if isinstance(space, spaces.Dict):
        return {name: _nested(obs, part, _joined(key, name)) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(obs, part, _joined(key, str(place))) for place, part in enumerate(space.spaces))
    found: Array = np.asarray(obs[key], space.dtype)
    return found


def _joined(key: str, name: str) -> str:
    return f"{key}/{name}" if key else name


def dataset_id(name: str) -> str:
    """Return a folder's name as Minari calls datasets, with a version.

    >>> dataset_id("pendulum mixed"), dataset_id("medium-v2")
    ('pendulum-mixed-v0', 'medium-v2')
    """
    plain = re.sub(r"[^-\w]+", "-", name).strip("-") or "dataset"
    return plain if re.search(r"-v\d+$", plain) else f"{plain}-v0"
