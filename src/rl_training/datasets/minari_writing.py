"""Writes a recording as a Minari dataset, with Minari's own API."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import MAX_PROBLEMS, ConfigError, UserError
from rl_training.core.types import Array
from rl_training.datasets.checks import episode_problems
from rl_training.datasets.dataset import RecordedIn
from rl_training.datasets.minari_files import import_minari
from rl_training.datasets.recording import Episode, Recording
from rl_training.version import __version__

FACTS = ("algorithm_name", "author", "author_email", "code_permalink", "description")
"""What a dataset keeps of the description of the one that it was made from."""


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
    folder = folder.absolute()  # Minari needs it
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
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    storage = MinariStorage.new(data, *recording.spaces, data_format=data_format, jpeg_encoding=False)
    problems, sizes = list[str](), list[int]()

    def checked() -> Iterator[EpisodeBuffer]:
        for number, episode in enumerate(recording.episodes()):
            wrong = episode_problems(episode, *recording.spaces)
            problems.extend(f"episode {number}: {problem}" for problem in wrong)
            if len(problems) > MAX_PROBLEMS:
                return
            sizes.append(episode.num_steps)
            if not problems:
                yield EpisodeBuffer(id=number, **_numbers(episode, recording))

    storage.update_episodes(checked())
    if not sizes and not problems:
        problems.append("it has no episodes")
    if problems:
        raise ConfigError(problems, f"dataset '{recording.name}'")
    return sum(sizes), len(sizes)


def _numbers(episode: Episode, recording: Recording) -> dict[str, Any]:
    """Return an episode as the fields of Minari's, in the types of the spaces."""
    return {
        "observations": _nested(episode.obs, recording.observation_space),
        "actions": np.asarray(episode.actions, recording.action_space.dtype),
        "rewards": np.asarray(episode.rewards, np.float64),
        "terminations": np.asarray(episode.terminated, np.bool_),
        "truncations": np.asarray(episode.truncated, np.bool_),
        "infos": {},
    }


def _describe(recording: Recording, data: Path, steps: int, episodes: int, name: str) -> None:
    """Add to the description what Minari's writer does not know, such as the environment by its id."""
    file, where = data / "metadata.json", recording.recorded_in
    found = json.loads(file.read_text(encoding="utf-8"))
    found |= {key: value for key, value in recording.facts.items() if key in FACTS}
    found |= {"total_steps": steps, "total_episodes": episodes, "dataset_id": f"{name}-v0"}
    found |= {"minari_version": import_minari().__version__, "written_by": f"rl_training {__version__}"}
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
