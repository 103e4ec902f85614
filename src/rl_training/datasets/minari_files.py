"""Minari datasets, read with Minari's own API, one episode at a time.

Minari builds the environment of a dataset whose files do not contain the spaces, and the files choose the code that
this runs; such a dataset is refused.
"""

import json
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError, reason
from rl_training.datasets.builder import Allocate, DatasetBuilder, flat_observations
from rl_training.datasets.dataset import Dataset, RecordedIn

EXTRA = "pip install 'rl-training[offline]'"
MAX_METADATA = 2**26
NOT_READ = ("observation_space", "action_space", "env_spec", "eval_env_spec")


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
    if not is_minari_folder(found):
        raise UserError(
            f"dataset '{name}' is neither a file or a folder nor a Minari dataset on this machine; give a path, or "
            f"download it first: minari download {name}"
        )
    return found


def read_minari(folder: Path, name: str, allocate: Allocate) -> Dataset:
    """Return the dataset in a folder."""
    import_minari()
    from minari.dataset.minari_storage import MinariStorage

    metadata = _metadata(folder)
    recorded_in = _recorded_in(metadata)
    try:
        storage = MinariStorage.read(folder / "data")
        sizes = int(storage.total_steps), int(storage.total_episodes)
        builder = DatasetBuilder(storage.observation_space, storage.action_space, *sizes, allocate=allocate)
        for number in range(sizes[1]):
            (episode,) = storage.get_episodes([number])
            builder.add(
                flat_observations(episode["observations"]),
                episode["actions"],
                episode["rewards"],
                episode["terminations"],
                episode["truncations"],
            )
            if builder.full_of_problems:
                break
    except UserError:
        raise
    except Exception as error:  # whatever h5py, pyarrow and Minari raise for damaged files
        raise UserError(f"dataset '{name}' cannot be read: {reason(error)}") from error
    facts = {key: value for key, value in metadata.items() if key not in NOT_READ}
    return builder.finish(name, recorded_in, facts)


def _metadata(folder: Path) -> dict[str, Any]:
    """Return the description of a dataset, which must contain its spaces."""
    file = folder / "data" / "metadata.json"
    try:
        if file.stat().st_size > MAX_METADATA:
            raise UserError(f"{file} has more than {MAX_METADATA:,} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is not a description of a dataset")
    missing = [key for key in ("observation_space", "action_space") if not isinstance(found.get(key), str)]
    if missing:
        raise UserError(
            f"{file} has no {' and no '.join(missing)}; reading it would build the environment that it names, which "
            "runs code: write the dataset again with a newer Minari"
        )
    return found


def _recorded_in(metadata: dict[str, Any]) -> RecordedIn:
    """Return the environment of the description: id, arguments and time limit, never its code."""
    text = metadata.get("env_spec")
    try:
        spec = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
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
