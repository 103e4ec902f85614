"""The checkpoint format: folders of safetensors and JSON files, which cannot run code.

`step_<N>/` holds one `<group>.safetensors` per group of state (`model` is enough to act) and `manifest.json` with the
config, the progress, all state that is not a tensor, and the size and hash of each file. A folder gets its name only
when it is complete and on disk.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.config import TrainConfig, config_from_dict
from rl_training.core.errors import UserError
from rl_training.core.games import game_from_data
from rl_training.core.spaces.as_data import space_from_data
from rl_training.core.state import join_state, split_state
from rl_training.core.types import EnvSpec, Progress, State
from rl_training.experiment.checkpoints.stored_network import refuse_larger_network
from rl_training.experiment.checkpoints.tensor_files import read_tensors, write_tensors
from rl_training.experiment.checkpoints.trust import NO_TRUST, Trust, imports_nothing, is_signed, sign_text
from rl_training.experiment.files import (
    MAX_JSON_BYTES,
    MAX_TRUSTED_JSON_BYTES,
    open_regular,
    read_json,
    refuse_special_files,
    replace_folder,
    write_json,
)
from rl_training.version import __version__

FORMAT_VERSION = 2
"""Increase it when the layout changes: checkpoints of any other version are refused."""
SPACES = ("observation_space", "action_space")
CRITIC_SPACE = "critic_space"
"""Only of agents whose critic reads more than their actor."""
MAX_COUNT = 2**62
"""Largest number of steps, updates, rows or bytes in a manifest."""
MAX_UNSIGNED_BYTES = 256 << 20
"""Size of all tensors of a checkpoint, or of its replay data, that are read without a signature or trust."""
MAX_NAME = 200
"""Length of the name of a loss."""
SEAL = re.compile(rb'"sha256": "([0-9a-f]{64})",\s*"signature": "([0-9a-f]{64})"\s*}\s*$')
"""The end of a signed manifest."""
FORGERIES = (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, OverflowError)
"""Errors that a forged or damaged file can cause."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read from disk: verified, with its tensors in place."""

    path: Path
    config: TrainConfig
    progress: Progress
    state: dict[str, State]
    facts: dict[str, Any]
    """Everything else in the manifest: spaces, evaluation, log positions, the best checkpoint, versions."""
    spec: EnvSpec
    """The spaces that the agent acts in."""
    algorithm: type[Algorithm]
    """The class of its algorithm."""
    signed: bool = False
    """Written by this user and unchanged since."""
    sha256: str = ""
    """The hash of its manifest."""
    modules_trusted: bool = False
    """The caller trusts it, whoever wrote it."""

    @property
    def trusted(self) -> bool:
        """It is signed by this user, or the caller trusts it."""
        return self.signed or self.modules_trusted

    @property
    def losses(self) -> dict[str, str]:
        """Names of the replaced losses that it was trained with."""
        found: dict[str, str] = self.facts["losses"]
        return found

    @property
    def env_factory(self) -> bool:
        """The environment was built by a function, which the checkpoint does not contain."""
        return bool(self.facts["env_factory"])


def write_checkpoint(
    folder: Path,
    *,
    config: TrainConfig,
    progress: Progress,
    state: Mapping[str, State],
    facts: Mapping[str, Any],
    signed: bool = False,
    vouched: bool = True,
) -> int:
    """Write a checkpoint folder atomically; return its size in bytes.

    The checkpoint is signed if its content was read from a `signed` one, or if it is `vouched` for and imports no new
    module. It is not vouched for if it names code that comes from an untrusted checkpoint.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    files, plain, size = {}, {}, 0
    try:
        temporary.mkdir(parents=True)
        for group, content in state.items():
            tensors, plain[group] = split_state(content)
            if tensors:
                length, digest = write_tensors(temporary / f"{group}.safetensors", tensors)
                files[f"{group}.safetensors"] = {"size": length, "sha256": digest}
                size += length
        counts = {"timesteps": progress.timesteps, "updates": progress.updates}
        if progress.total_updates is not None:  # a budget that is not in the config
            counts["total_updates"] = progress.total_updates
        manifest = {
            "format_version": FORMAT_VERSION,
            "rl_training_version": __version__,
            "config": config.to_dict(),
            "progress": counts,
            "facts": dict(facts),
            "files": files,
            "state": plain,
        }
        seal = _seal(manifest, signs=signed or (vouched and imports_nothing(config)))
        size += write_json(temporary / "manifest.json", manifest | seal)
        replace_folder(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return size


def _seal(manifest: Mapping[str, Any], *, signs: bool) -> dict[str, str]:
    """Return the hash of a manifest, and its signature."""
    digest = manifest_hash(manifest)
    signature = sign_text(digest) if signs else None
    return {"sha256": digest} | ({} if signature is None else {"signature": signature})


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hash of a manifest's content, without the entries `sha256` and `signature`."""
    content = {key: value for key, value in manifest.items() if key not in ("sha256", "signature")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_checkpoint(path: Path, trust: Trust = NO_TRUST) -> Checkpoint:
    """Read and verify the checkpoint folder at `path`; an error names the damaged file.

    Raises an error if its algorithm is a class that is neither given nor trusted. A large checkpoint must be signed by
    this user, or trusted.
    """
    refuse_special_files(path)
    manifest = _read_manifest(path, trusted=trust.modules)
    with _fitting(f"checkpoint {path}: manifest.json"):
        signed = is_signed(manifest["sha256"], manifest.get("signature"))
        facts = _checked_facts(manifest["facts"])
        settings = dict(manifest["config"])
        settings["algo"] = algo = facts["algorithm"] or str(settings["algo"])
        algorithm = trust.algorithm_of(f"checkpoint {path}", algo, signed=signed)
        config = config_from_dict(settings, str(path / "manifest.json"), algorithm.config_class)
        counts = manifest["progress"]
        budget = {"total_updates": _count(counts["total_updates"])} if "total_updates" in counts else {}
        progress = Progress(
            _count(counts["timesteps"]), _count(counts["updates"]), config.total_timesteps, **budget
        )
        sizes = [_count(entry["size"]) for entry in manifest["files"].values()]
        trusted = signed or trust.modules
        refuse_large(f"checkpoint {path}", sum(sizes), trusted=trusted)
        tensors = {}
        for name, entry in dict(manifest["files"]).items():
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise UserError(f"checkpoint {path} refers to a file outside its folder ({name!r})")
            tensors[name.removesuffix(".safetensors")] = read_tensors(
                path / name, entry["size"], entry["sha256"], trusted=trusted
            )
        state = {
            group: join_state(tensors.get(group, {}), plain) for group, plain in manifest["state"].items()
        }
        if "model" not in state:
            raise ValueError("it contains no model")
        spec = _saved_spec(path, facts, config)
        if ":" not in algo:  # the size of a custom algorithm's network is unknown
            refuse_larger_network(path, config, state, spec)
        digest = manifest["sha256"]
        return Checkpoint(
            path, config, progress, state, facts, spec, algorithm, signed, digest, trust.modules
        )


def refuse_large(source: str, size: int, *, trusted: bool) -> None:
    """Raise if an untrusted checkpoint would make us read more than `MAX_UNSIGNED_BYTES`."""
    if size > MAX_UNSIGNED_BYTES and not trusted:
        raise UserError(
            f"{source} is not signed by you, and its tensors have {size:,} bytes, more than "
            f"{MAX_UNSIGNED_BYTES >> 20} MiB; if you trust it, give --trust-modules (in Python: trust_modules=True)"
        )


def refuse_large_replay(checkpoint: Checkpoint) -> None:
    """Raise if an untrusted checkpoint lists more replay data than we read without trust."""
    listed = [segment for entry in checkpoint.facts["replay"].values() for segment in entry["segments"]]
    size = sum(segment["size"] for segment in listed)
    refuse_large(f"the replay data of {checkpoint.path}", size, trusted=checkpoint.trusted)


def _count(value: Any) -> int:
    """Return a count of a manifest, or raise ValueError."""
    number = int(value)
    if not 0 <= number <= MAX_COUNT:
        raise ValueError(f"a count is not from 0 to {MAX_COUNT:,}")
    return number


def _saved_spec(path: Path, facts: Mapping[str, Any], config: TrainConfig) -> EnvSpec:
    try:
        if facts["game"] is not None:
            return game_from_data(facts["game"]).spec(config.num_envs)
        saved = facts["spaces"]
        observation, action = (space_from_data(saved[name]) for name in SPACES)
        critic = space_from_data(saved[CRITIC_SPACE]) if CRITIC_SPACE in saved else None
    except UserError as error:
        raise UserError(f"checkpoint {path}: {error}") from error
    masked = config.use_action_masks == "on"
    return EnvSpec(observation, action, config.num_envs, masked, critic_space=critic)


def _read_manifest(path: Path, *, trusted: bool) -> dict[str, Any]:
    large = trusted or _ends_signed(path / "manifest.json")
    manifest = read_json(path / "manifest.json", MAX_TRUSTED_JSON_BYTES if large else MAX_JSON_BYTES)
    if not isinstance(manifest, dict) or "format_version" not in manifest:
        raise UserError(f"{path / 'manifest.json'} is not a checkpoint's manifest")
    version = manifest["format_version"]
    if version != FORMAT_VERSION:
        raise UserError(
            f"checkpoint {path} has format {version!r}, but rl_training {__version__} reads format {FORMAT_VERSION}; "
            "use the version of rl_training that wrote it"
        )
    with _fitting(f"checkpoint {path}: manifest.json"):
        if manifest_hash(manifest) != manifest.get("sha256"):
            raise UserError(f"{path / 'manifest.json'} is damaged: its hash differs from its content")
    return manifest


def _ends_signed(path: Path) -> bool:
    """Return whether a manifest ends with a hash that this user signed; it is not known yet if its content fits."""
    try:
        with open_regular(path) as file:
            file.seek(-min(file.seek(0, os.SEEK_END), 400), os.SEEK_END)
            seal = SEAL.search(file.read(400))
    except OSError:
        return False  # reading it says why
    return seal is not None and is_signed(seal[1].decode(), seal[2].decode())


def _checked_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with checked types; only `spaces` is required."""
    positions = {str(name): _count(size) for name, size in facts.get("log_positions", {}).items()}
    best = facts.get("best_checkpoint")
    if best is not None and step_of(best) < 0:
        raise ValueError(f"best_checkpoint is {best!r}")
    return {
        "spaces": {
            name: facts["spaces"][name]
            for name in (*SPACES, CRITIC_SPACE)
            if name in SPACES or name in facts["spaces"]
        },
        "game": facts.get("game"),
        "env_factory": facts.get("env_factory") is True,
        "surroundings": dict(facts.get("surroundings", {})),
        "algorithm": _checked_algorithm(facts.get("algorithm")),
        "losses": _checked_losses(facts.get("losses", {})),
        "best_checkpoint": best,
        "log_positions": positions,
        "evaluation": _checked_evaluation(facts.get("evaluation")),
        "replay": {str(kind): _checked_replay(entry) for kind, entry in facts.get("replay", {}).items()},
    }


def _checked_algorithm(name: object) -> str | None:
    """Return `module:Class` of a custom algorithm; None for a built-in one, which only the config names."""
    if name is not None and (not isinstance(name, str) or ":" not in name):
        raise ValueError(f"the fact 'algorithm' is {str(name)[:100]!r}, not module:Class")
    return name


def _checked_losses(losses: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of replaced losses, which messages quote."""
    found = {str(name): str(function) for name, function in losses.items()}
    if any(len(text) > MAX_NAME or not text.isprintable() for item in found.items() for text in item):
        raise ValueError(f"the name of a loss is not a text of at most {MAX_NAME} printable characters")
    return found


def _checked_evaluation(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    return dict(entry) | {
        name: float(entry[name]) for name in ("mean_reward", "std_reward", "mean_ep_length")
    }


def _checked_replay(entry: Mapping[str, Any]) -> dict[str, Any]:
    segments = [dict(segment) | {"size": _count(segment["size"])} for segment in entry["segments"]]
    return {
        "total_rows": _count(entry["total_rows"]),
        "kept_rows": _count(entry["kept_rows"]),
        "segments": segments,
    }


@contextlib.contextmanager
def _fitting(what: str) -> Iterator[None]:
    """Turn the errors that a forged or damaged file causes into one that names the file."""
    try:
        yield
    except FORGERIES as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{what} is invalid: {type(error).__name__}: {reason}; use another checkpoint"
        ) from error


def restoring(source: object) -> contextlib.AbstractContextManager[None]:
    """Return a context for loading a checkpoint's state into objects; errors name `source`."""
    return _fitting(f"checkpoint {source}")


@contextlib.contextmanager
def fitting_weights(source: object) -> Iterator[None]:
    """Report a shape mismatch of weights or statistics as another environment or network."""
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{source} does not fit the environment's spaces or the network's settings: {reason}"
        ) from error


def step_of(name: str) -> int:
    """Return N for a folder name `step_<N>`, and -1 for any other name."""
    number = name.removeprefix("step_")
    sensible = name.startswith("step_") and number.isascii() and number.isdigit() and len(number) < 19
    return int(number) if sensible else -1
