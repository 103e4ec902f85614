"""Minari datasets, read with Minari's own API, one episode at a time.

Minari builds the environment of a dataset whose files do not contain the spaces, and the files choose the code that
this runs; such a dataset is refused. So is one whose files refer to other files, or announce what they do not hold.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import ConfigError, UserError, reason
from rl_training.core.types import Array
from rl_training.datasets.dataset import RecordedIn
from rl_training.datasets.recording import Episode, Recording, folder_bytes, plausible_size

EXTRA = "pip install 'rl-training[offline]'"
MAX_METADATA = 2**26
MAX_NUMBERS = 2**23
"""Numbers in one entry of a space: more than an image of 1920 x 1080 pixels has."""
MAX_STEPS = 2**48
NOT_READ = ("observation_space", "action_space", "env_spec", "eval_env_spec")
FORMATS = ("hdf5", "arrow", "parquet")


def import_minari() -> Any:
    """Return the package; it is imported only where it is needed."""
    try:
        import minari
    except ImportError as error:
        raise UserError(f"Minari datasets need Minari ({error}); install it with {EXTRA}") from error
    return minari


def is_minari_folder(path: Path) -> bool:
    """Return whether a folder holds a Minari dataset: its files are in the folder `data`."""
    return (path / "data" / "metadata.json").is_file()


def minari_folder(name: str) -> Path:
    """Return the folder of a local Minari dataset by its id."""
    import_minari()
    from minari.storage.datasets_root_dir import get_dataset_path

    found = Path(get_dataset_path("")) / name
    if ".." in PurePosixPath(name).parts or not is_minari_folder(found):
        raise UserError(
            f"dataset '{name}' is neither a file nor a folder in {Path.cwd()}, nor a Minari dataset on this machine; "
            f"give a path, or download it first: minari download {name}"
        )
    return found


def open_minari(folder: Path, name: str) -> Recording:
    """Return the dataset in a folder."""
    import_minari()
    from minari.dataset.minari_storage import MinariStorage

    metadata = _metadata(folder)
    with _reading(name):
        size = folder_bytes(folder / "data")
        if metadata["data_format"] == "hdf5":
            _check_hdf5(folder / "data" / "main_data.hdf5")
        storage = MinariStorage.read(folder / "data")

    def episodes() -> Iterator[Episode]:
        with _reading(name):
            for number in range(metadata["total_episodes"]):
                (found,) = storage.get_episodes([number])
                yield Episode(
                    flat_observations(found["observations"], storage.observation_space),
                    *(found[key] for key in ("actions", "rewards", "terminations", "truncations")),
                )

    return Recording(
        name,
        storage.observation_space,
        storage.action_space,
        metadata["total_steps"],
        metadata["total_episodes"],
        episodes,
        _recorded_in(metadata),
        {key: value for key, value in metadata.items() if key not in NOT_READ},
        file_bytes=size,
    )


def flat_observations(obs: Any, space: Space[Any]) -> dict[str, Array]:
    """Return the parts of nested observations [T + 1, ...] by flattened key, as `observation_leaves` names them."""
    found: dict[str, Array] = {}

    def collect(part: Any, inner: Space[Any], key: str) -> None:
        if isinstance(inner, spaces.Dict):
            entries: Any = inner.spaces.items()
        elif isinstance(inner, spaces.Tuple):
            entries = enumerate(inner.spaces)
        else:
            found[key] = np.asarray(part)
            return
        for name, leaf in entries:
            collect(part[name], leaf, f"{key}/{name}" if key else str(name))

    collect(obs, space, "")
    return found


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn whatever h5py, pyarrow and Minari raise for damaged files into one error."""
    try:
        yield
    except (UserError, GeneratorExit):
        raise
    except Exception as error:
        if isinstance(error, KeyError):
            raise UserError(f"dataset '{name}' cannot be read: {error} is missing") from error
        raise UserError(f"dataset '{name}' cannot be read: {reason(error)}") from error


def _metadata(folder: Path) -> dict[str, Any]:
    """Return the description of a dataset, which must contain its spaces; raise one error for all problems."""
    file = folder / "data" / "metadata.json"
    try:
        if file.stat().st_size > MAX_METADATA:
            raise UserError(f"{file} has more than {MAX_METADATA:,} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is not a description of a dataset")
    missing = [key for key in ("observation_space", "action_space") if not isinstance(found.get(key), str)]
    problems = [
        f"there is no {key}; reading the dataset would build the environment that it names, which runs code: write it "
        "again with a newer Minari"
        for key in missing
    ]
    for key in ("total_steps", "total_episodes"):
        count = found.get(key)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_STEPS:
            problems.append(f"{key} is {count!r} instead of a number")
    if found.get("data_format") not in FORMATS:
        problems.append(
            f"data_format is {found.get('data_format')!r}; it must be one of {', '.join(FORMATS)}"
        )
    for key in ("observation_space", "action_space"):
        if key not in missing:
            problems += [f"{key}: {problem}" for problem in _space_problems(found[key])]
    if problems:
        raise ConfigError(problems, str(file))
    return found


def _space_problems(text: str) -> list[str]:
    """Return why a described space is not built: an array of its shape would be created."""
    try:
        described = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [f"it cannot be read: {error}"]
    waiting, found = [described], list[str]()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict) or "type" not in part:
            return ["it is not the description of a space"]
        inner = part.get("subspaces", [])
        waiting += inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else []
        for key in ("shape", "n"):
            size = part.get(key, [])
            if key == "n" and part["type"] == "Discrete":
                continue
            numbers = size if isinstance(size, list) else [size]
            if not all(isinstance(number, int) and number >= 0 for number in numbers):
                found.append(f"its {key} is {str(size)[:60]} instead of sizes")
            elif prod(numbers) > MAX_NUMBERS:
                found.append(f"it has {prod(numbers):,} numbers; at most {MAX_NUMBERS:,} are supported")
    return found


def _check_hdf5(file: Path) -> None:
    """Raise if a file refers to other files, or announces more data than it has."""
    import h5py  # type: ignore[import-untyped]

    def problem(path: str, link: Any) -> str | None:  # what is not None ends the visit
        if not isinstance(link, h5py.HardLink):
            return f"entry '{path}' refers to another place"
        part = content[path]
        if not isinstance(part, h5py.Dataset):
            return None
        if part.external is not None or part.is_virtual:
            return f"entry '{path}' is stored in another file"
        stored = part.id.get_storage_size()
        if not plausible_size(part.nbytes, stored):
            return f"entry '{path}' announces {part.nbytes:,} bytes and has {stored:,}"
        return None

    with h5py.File(file, "r") as content:
        found = content.visititems_links(problem)
    if found is not None:
        raise UserError(f"{file} is not read: its {found}")


def _recorded_in(metadata: dict[str, Any]) -> RecordedIn:
    """Return the environment of the description: id, arguments and time limit, never its code."""
    text = metadata.get("env_spec")
    try:
        spec = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        spec = {}
    if not isinstance(spec, dict):
        spec = {}
    env_id, kwargs, limit = (spec.get(key) for key in ("id", "kwargs", "max_episode_steps"))
    named = _own_env_id(metadata)
    if (
        named.rpartition(":")[2] == env_id
    ):  # ours names the module that registers it, which Gymnasium's may not
        env_id = named
    return RecordedIn(
        env_id if isinstance(env_id, str) else "",
        kwargs if isinstance(kwargs, dict) else {},
        limit if isinstance(limit, int) and limit > 0 else None,
    )


def _own_env_id(metadata: dict[str, Any]) -> str:
    """Return the id that `record` wrote, such as `module:Id`."""
    recording = metadata.get("recording")
    place = recording.get("environment") if isinstance(recording, dict) else None
    named = place.get("env_id") if isinstance(place, dict) else None
    return named if isinstance(named, str) else ""
