"""Checkpoints as folders of safetensors and JSON: nothing in them can run code.

`step_<N>/` holds one `<group>.safetensors` per group of state (`model` is all that acting needs) and
`manifest.json` with the config, the progress, everything that is not a tensor, and the size and hash of each file.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from rl_training.config import TrainConfig, config_from_dict
from rl_training.core.errors import UserError
from rl_training.core.types import Progress, State
from rl_training.experiment.files import sync_folder, write_bytes, write_json, write_text
from rl_training.version import __version__

FORMAT_VERSION = 1
POINTERS = ("last", "best")


@dataclass(frozen=True)
class Checkpoint:
    """What was read back: verified, and with the tensors in their places."""

    path: Path
    config: TrainConfig
    progress: Progress
    state: dict[str, State]
    evaluation: dict[str, Any] | None


def write_checkpoint(
    folder: Path,
    *,
    config: TrainConfig,
    progress: Progress,
    state: Mapping[str, State],
    evaluation: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint folder: complete under its name, or not there at all."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files, plain = {}, {}
    for group, content in state.items():
        tensors, plain[group] = split_state(content)
        if tensors:
            blob = save_tensors(tensors)
            write_bytes(temporary / f"{group}.safetensors", blob)
            files[f"{group}.safetensors"] = {"size": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    manifest = {
        "format_version": FORMAT_VERSION,
        "rl_training_version": __version__,
        "config": config.to_dict(),
        "progress": {"timesteps": progress.timesteps, "updates": progress.updates},
        "evaluation": evaluation,
        "files": files,
        "state": plain,
    }
    write_json(temporary / "manifest.json", manifest)
    sync_folder(temporary)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(temporary, folder)
    sync_folder(folder.parent)
    return folder


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify the checkpoint folder at `path`; what is damaged is named."""
    manifest = _read_manifest(path)
    try:
        config = config_from_dict(manifest["config"], f"{path / 'manifest.json'}")
        progress = Progress(
            timesteps=int(manifest["progress"]["timesteps"]),
            updates=int(manifest["progress"]["updates"]),
            total_timesteps=config.total_timesteps,
        )
        plain, files = dict(manifest["state"]), dict(manifest["files"])
        tensors = {
            name.removesuffix(".safetensors"): _read_tensors(path, name, entry)
            for name, entry in files.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"checkpoint {path}: manifest.json is incomplete ({error!r}); use another checkpoint"
        ) from error
    state = {group: join_state(tensors.get(group, {}), content) for group, content in plain.items()}
    return Checkpoint(path, config, progress, state, manifest.get("evaluation"))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"checkpoint {path}: cannot read manifest.json ({error.strerror})") from error
    except ValueError as error:
        raise UserError(
            f"checkpoint {path}: manifest.json is damaged ({error}); use another checkpoint"
        ) from error
    if not isinstance(manifest, dict) or "format_version" not in manifest:
        raise UserError(f"checkpoint {path}: manifest.json is not a checkpoint manifest")
    if manifest["format_version"] != FORMAT_VERSION:
        raise UserError(
            f"checkpoint {path} has format {manifest['format_version']}, this version of rl_training "
            f"({__version__}) reads format {FORMAT_VERSION}; install a version that knows it"
        )
    return manifest


def _read_tensors(path: Path, name: str, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise UserError(f"checkpoint {path}: manifest.json names a file outside the checkpoint ({name!r})")
    file = path / name
    try:
        size = file.stat().st_size
        if size != entry["size"]:
            raise UserError(
                f"checkpoint {path}: {name} has {size} bytes instead of {entry['size']}; use another one"
            )
        blob = file.read_bytes()
    except OSError as error:
        raise UserError(f"checkpoint {path}: cannot read {name} ({error.strerror})") from error
    if hashlib.sha256(blob).hexdigest() != entry["sha256"]:
        raise UserError(f"checkpoint {path}: {name} is damaged (its hash differs); use another checkpoint")
    try:
        return load_tensors(blob)
    except SafetensorError as error:
        raise UserError(f"checkpoint {path}: {name} is not a safetensors file ({error})") from error


def split_state(state: State, prefix: str = "") -> tuple[dict[str, Tensor], State]:
    """Return (tensors under paths such as `a/b`, the same nesting without them)."""
    tensors: dict[str, Tensor] = {}
    plain: State = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            # a copy: parameters are views of one vector, and a file holds each tensor once
            tensors[f"{prefix}{key}"] = value.detach().to("cpu", copy=True).contiguous()
        elif isinstance(value, dict):
            inner, plain[key] = split_state(value, f"{prefix}{key}/")
            tensors |= inner
        else:
            plain[key] = value
    return tensors, plain


def join_state(tensors: Mapping[str, Tensor], plain: State) -> State:
    """Put the tensors of `split_state` back into their places."""
    state: State = {
        key: join_state({}, value) if isinstance(value, dict) else value for key, value in plain.items()
    }
    for path, tensor in tensors.items():
        *parents, name = path.split("/")
        place = state
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = tensor
    return state


def point(checkpoints: Path, pointer: str, folder: Path) -> None:
    """Make `last` or `best` name a checkpoint, by rename."""
    write_text(checkpoints / pointer, folder.name + "\n")


def prune(checkpoints: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and those that a pointer names."""
    named = {_pointed(checkpoints / pointer) for pointer in POINTERS}
    steps = sorted(checkpoints.glob("step_*"), key=lambda folder: _step(folder.name))
    for folder in steps[:-keep]:
        if folder.name not in named:
            shutil.rmtree(folder)


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the checkpoint folder that a user means by a run, a checkpoint, a saved agent, or `last`/`best` of one."""
    given = Path(path)
    if (given / "manifest.json").is_file():
        return given
    if given.name in POINTERS and not given.is_dir():
        checkpoints = given.parent if given.parent.name == "checkpoints" else given.parent / "checkpoints"
        return _follow(checkpoints / given.name, path)
    if (given / "checkpoints").is_dir():
        return _follow(given / "checkpoints" / "last", path)
    if (given / "last").is_file():
        return _follow(given / "last", path)
    if not given.exists():
        raise UserError(
            f"{path} does not exist; give a run folder, a checkpoint folder, or last/best of a run"
        )
    raise UserError(
        f"{path} holds no checkpoint; give a run folder, a checkpoint folder, or last/best of a run"
    )


def _follow(pointer: Path, given: object) -> Path:
    name = _pointed(pointer)
    if name is None:
        raise UserError(f"{given} has no checkpoint yet ({pointer} is missing)")
    folder = pointer.parent / name
    if Path(name).name != name or not name.startswith("step_"):
        raise UserError(f"{pointer} names '{name}', which is not a checkpoint of this run")
    return folder


def _pointed(pointer: Path) -> str | None:
    try:
        return pointer.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _step(name: str) -> int:
    number = name.removeprefix("step_")
    return int(number) if number.isdigit() else -1


def restore_model(module: torch.nn.Module, model: State, source: object) -> None:
    """Load weights and statistics into `module`; a different shape means another environment or network."""
    try:
        module.load_state_dict(model)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{source} does not fit the environment's spaces or the network's settings: {reason}"
        ) from error
