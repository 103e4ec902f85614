"""Checkpoints as folders of safetensors and JSON: nothing in them can run code.

`step_<N>/` holds one `<group>.safetensors` per group of state (`model` is all that acting needs) and `manifest.json`
with the config, the progress, everything that is not a tensor, and the size and hash of each file. A folder appears
under its name only when it is complete and on disk; `last` and `best` are moved after that. It loses its name before
it is deleted, so a reader finds it whole or not at all, and looks again if what it looked for has changed meanwhile.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from rl_training.config import TrainConfig, config_from_dict
from rl_training.core.errors import RunFault, UserError
from rl_training.core.protocols import Policy
from rl_training.core.space_data import space_from_data
from rl_training.core.spaces import num_choices, num_features
from rl_training.core.types import EnvSpec, Progress, State
from rl_training.experiment.files import (
    read_json,
    read_tensors,
    refuse_strange_files,
    sync_folder,
    write_bytes,
    write_json,
    write_text,
)
from rl_training.experiment.trust import is_signed, module_is_imported, sign_text
from rl_training.version import __version__

FORMAT_VERSION = 2
"""Since 2, spaces are data; format 1, with their names only, is read for ever."""
POINTERS = ("last", "best")
SPACES = ("observation_space", "action_space")
FINITE_GROUPS = ("model", "optimizer", "critics", "target", "target_actor")
"""Parts of a state in which no number may be nan or infinite."""
TRIES, PAUSE = 20, 0.01
"""How often, and after how many seconds, a checkpoint that was replaced or pruned while it was read is looked for."""


@dataclass(frozen=True)
class Checkpoint:
    """What was read back: verified, and with the tensors in their places."""

    path: Path
    config: TrainConfig
    progress: Progress
    state: dict[str, State]
    facts: dict[str, Any]
    """What the run wrote besides: spaces, evaluation, log positions, the best checkpoint, versions."""
    spec: EnvSpec | None = None
    """The spaces it acts in; None in format 1, where an environment must be built to know them."""
    signed: bool = False
    """Written by this user, and unchanged since."""

    @property
    def env_factory(self) -> bool:
        """The environment was built by a function, of which nothing is known here."""
        return bool(self.facts["env_factory"])


def write_checkpoint(
    folder: Path,
    *,
    config: TrainConfig,
    progress: Progress,
    state: Mapping[str, State],
    facts: Mapping[str, Any],
    signed: bool = False,
) -> int:
    """Write a checkpoint folder, complete under its name or not there at all; return its size in bytes.

    `signed`: what is written was read from a checkpoint of this user's.
    """
    for group in FINITE_GROUPS:
        refuse_non_finite(state.get(group, {}), f"checkpoint {folder.name} was not written")
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        size = _write_content(temporary, config, progress, state, facts, signed)
        _replace_folder(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return size


def _write_content(
    folder: Path,
    config: TrainConfig,
    progress: Progress,
    state: Mapping[str, State],
    facts: Mapping[str, Any],
    signed: bool,
) -> int:
    files, plain, size = {}, {}, 0
    for group, content in state.items():
        tensors, plain[group] = split_state(content)
        if tensors:
            blob = save_tensors(tensors)
            write_bytes(folder / f"{group}.safetensors", blob)
            files[f"{group}.safetensors"] = {"size": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
            size += len(blob)
    manifest = {
        "format_version": FORMAT_VERSION,
        "rl_training_version": __version__,
        "config": config.to_dict(),
        "progress": {"timesteps": progress.timesteps, "updates": progress.updates},
        "facts": dict(facts),
        "files": files,
        "state": plain,
    }
    digest = manifest_hash(manifest)
    # what was only passed on, such as a stranger's agent in an environment of ours, is not vouched for
    signature = sign_text(digest) if signed or module_is_imported(config.env_id) else None
    seal = {"sha256": digest} | ({"signature": signature} if signature is not None else {})
    return size + write_json(folder / "manifest.json", manifest | seal)


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hash of a manifest's content, whatever its layout, without the hash itself and its signature."""
    content = {key: value for key, value in manifest.items() if key not in ("sha256", "signature")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _replace_folder(new: Path, folder: Path) -> None:
    """Rename, with a possible predecessor of the same name put aside first; it goes when its successor is there.

    If the process is killed between the two renames, `find_checkpoint` and `recover_aside` know where to look.
    """
    sync_folder(new)
    aside = _aside(folder)
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(folder, aside)
    os.replace(new, folder)
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.old"


def _present(folder: Path) -> Path:
    """Return `folder`, or where it was put aside for a successor that never came."""
    return _aside(folder) if not folder.exists() and _aside(folder).is_dir() else folder


def recover_aside(checkpoints: Path) -> None:
    """Give checkpoints that were put aside for a successor that never came their name back.

    Only for whoever holds the run's lock: a process that is at work puts folders aside as well.
    """
    for aside in checkpoints.glob(".step_*.old"):
        folder = aside.with_name(aside.name.removeprefix(".").removesuffix(".old"))
        if aside.is_dir() and not folder.exists():
            os.replace(aside, folder)


def _delete_folder(folder: Path) -> None:
    """Delete a checkpoint: first its name, so that nobody reads half of it."""
    nameless = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(nameless, ignore_errors=True)
    os.replace(folder, nameless)
    shutil.rmtree(nameless)


def read_given(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what a user means by a run (its newest whole checkpoint), a checkpoint, a saved agent, or `last`/`best`.

    The run may be in training: what was replaced or pruned in the middle of it is read anew.
    """
    given = Path(path)

    def attempt(remarks: list[str]) -> Checkpoint:
        if not (given / "checkpoints").is_dir():
            return read_checkpoint(find_checkpoint(path))
        refuse_strange_files(given / "checkpoints")
        return _read_newest(given, None, remarks)

    return _patiently(given, attempt)


def _patiently(given: Path, attempt: Callable[[list[str]], Checkpoint]) -> Checkpoint:
    """Return what `attempt` does; if it found fault and the folders have changed meanwhile, try again.

    The remarks that `attempt` leaves in its list become warnings, if it is the last.
    """
    for tries_left in reversed(range(TRIES)):
        before = _situation(given)
        checkpoint, fault, remarks = None, None, list[str]()
        try:
            checkpoint = attempt(remarks)
        except UserError as error:
            fault = error
        except OSError as error:
            fault = UserError(f"cannot read {error.filename or given}: {error.strerror or error}")
        if checkpoint is not None and not remarks:
            return checkpoint
        if tries_left == 0 or (_situation(given) == before and not _is_being_replaced(before)):
            break
        time.sleep(PAUSE)
    for remark in remarks:
        warnings.warn(remark, stacklevel=3)
    if checkpoint is None:
        assert fault is not None
        raise fault
    return checkpoint


def _situation(given: Path) -> dict[Path, object]:
    """Return what a reader of `given` depends on: pointers, and which folders bear the names of checkpoints now."""
    found: dict[Path, object] = {}
    for place in (given, given / "checkpoints", given.parent, given.parent / "checkpoints"):
        for pointer in POINTERS:
            found[place / pointer] = pointed(place, pointer)
        for folder in [given, _aside(given), *place.glob("step_*"), *place.glob(".step_*.old")]:
            with contextlib.suppress(OSError, ValueError):  # not there, or no name of a file at all
                status = folder.lstat()
                found[folder] = (status.st_ino, status.st_ctime_ns)
    return found


def _is_being_replaced(situation: Mapping[Path, object]) -> bool:
    """Tell whether a folder was put aside whose successor is not there yet."""
    asides = [path for path in situation if path.name.startswith(".") and path.name.endswith(".old")]
    return any(path.with_name(path.name[1:].removesuffix(".old")) not in situation for path in asides)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify the checkpoint folder at `path`; what is damaged is named."""
    refuse_strange_files(path)
    manifest = _read_manifest(path)
    with _fitting(f"checkpoint {path}: manifest.json"):
        config = config_from_dict(manifest["config"], str(path / "manifest.json"))
        counts = manifest["progress"]
        progress = Progress(int(counts["timesteps"]), int(counts["updates"]), config.total_timesteps)
        if progress.timesteps < 0 or progress.updates < 0:
            raise ValueError("progress is negative")
        tensors = {}
        for name, entry in dict(manifest["files"]).items():
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise UserError(f"checkpoint {path} names a file outside of it ({name!r})")
            tensors[name.removesuffix(".safetensors")] = read_tensors(
                path / name, entry["size"], entry["sha256"]
            )
        state = {
            group: join_state(tensors.get(group, {}), plain) for group, plain in manifest["state"].items()
        }
        if "model" not in state:
            raise ValueError("there is no model in it")
        facts = _checked_facts(manifest["facts"])
        spec = _saved_spec(path, facts["spaces"], config.num_envs)
        for group in FINITE_GROUPS:
            refuse_non_finite(state.get(group, {}), f"checkpoint {path} cannot be used", UserError)
        signed = is_signed(manifest["sha256"], manifest.get("signature"))
        checkpoint = Checkpoint(path, config, progress, state, facts, spec, signed)
        refuse_larger_network(checkpoint)
        return checkpoint


def _saved_spec(path: Path, saved: Mapping[str, Any], num_envs: int) -> EnvSpec | None:
    """Return the spaces that are data; None for the names of format 1."""
    if all(isinstance(entry, str) for entry in saved.values()):
        return None
    try:
        observation, action = (space_from_data(saved[name]) for name in SPACES)
    except UserError as error:
        raise UserError(f"checkpoint {path}: {error}") from error
    return EnvSpec(observation, action, num_envs)


def refuse_larger_network(checkpoint: Checkpoint) -> None:
    """Refuse a network that has more weights than are stored, before it is built: it may be larger than the memory."""
    if checkpoint.facts["algorithm"] is not None:  # nobody but its class knows what it builds
        return
    weights = list(leaf_tensors(checkpoint.state["model"]))
    widths = getattr(checkpoint.config.algorithm, "hidden_sizes", ())
    foreign = set(widths).difference(*(tensor.shape for tensor in weights))
    sizes = (*widths,)
    if checkpoint.spec is not None:
        spec = checkpoint.spec
        sizes = (num_features(spec.observation_space), *widths, num_choices(spec.action_space))
    needed, stored = sum(map(mul, sizes, sizes[1:])), sum(tensor.numel() for tensor in weights)
    if foreign:
        problem = f"hidden_sizes are {list(widths)}, and no stored weight has a side of {max(foreign)}"
    elif needed > stored:
        problem = f"hidden_sizes and spaces ask for {needed} weights or more, and {stored} are stored"
    else:
        return
    raise UserError(f"{checkpoint.path} does not fit the network's settings: {problem}")


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = read_json(path / "manifest.json")
    if not isinstance(manifest, dict) or "format_version" not in manifest:
        raise UserError(f"{path / 'manifest.json'} is not a checkpoint's manifest")
    version = manifest["format_version"]
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise UserError(
            f"checkpoint {path} has format {version!r}, this version of rl_training ({__version__}) reads formats 1 to "
            f"{FORMAT_VERSION}; install a version that knows it"
        )
    with _fitting(f"checkpoint {path}: manifest.json"):
        if manifest_hash(manifest) != manifest.get("sha256"):
            raise UserError(f"{path / 'manifest.json'} is damaged: its hash differs from its content")
    return manifest


def _checked_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with the types the rest of the code relies on; only `spaces` must be there."""
    positions = {str(name): int(size) for name, size in facts.get("log_positions", {}).items()}
    if min(positions.values(), default=0) < 0:
        raise ValueError("a log position is negative")
    best = facts.get("best_checkpoint")
    if best is not None and _step(best) < 0:
        raise ValueError(f"best_checkpoint is {best!r}")
    return {
        "spaces": {name: facts["spaces"][name] for name in SPACES},
        "env_factory": facts.get("env_factory") is True,
        "surroundings": dict(facts.get("surroundings", {})),
        "algorithm": None if facts.get("algorithm") is None else str(facts["algorithm"]),
        "best_checkpoint": best,
        "log_positions": positions,
        "evaluation": _checked_evaluation(facts.get("evaluation")),
        "replay": {str(kind): _checked_replay(entry) for kind, entry in facts.get("replay", {}).items()},
    }


def _checked_evaluation(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an evaluation whose summary can be told."""
    if entry is None:
        return None
    return dict(entry) | {
        name: float(entry[name]) for name in ("mean_reward", "std_reward", "mean_ep_length")
    }


def _checked_replay(entry: Mapping[str, Any]) -> dict[str, Any]:
    segments = [dict(segment) for segment in entry["segments"]]
    return {
        "total_rows": int(entry["total_rows"]),
        "kept_rows": int(entry["kept_rows"]),
        "segments": segments,
    }


@contextlib.contextmanager
def _fitting(what: str) -> Iterator[None]:
    """Turn whatever a forged or outdated file can cause into a sentence."""
    try:
        yield
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
        IndexError,
        OverflowError,
    ) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{what} does not fit: {type(error).__name__}: {reason}; use another checkpoint"
        ) from error


def restoring(source: object) -> contextlib.AbstractContextManager[None]:
    """Guard for putting a checkpoint's state into live objects; `source` is named if it does not fit."""
    return _fitting(f"checkpoint {source}")


def refuse_non_finite(model: State, consequence: str, error: type[Exception] = RunFault) -> None:
    """Raise if a weight or statistic is nan or infinite: nothing good can follow from it."""
    for name, tensor in split_state(model)[0].items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise error(f"{consequence}: '{name}' holds a number that is not finite")


def leaf_tensors(state: State) -> Iterator[Tensor]:
    """Iterate over the tensors of a state, however deep they lie."""
    for value in state.values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from leaf_tensors(value)


def split_state(state: State, prefix: str = "") -> tuple[dict[str, Tensor], State]:
    """Return (tensors under paths such as `a/b`, the same nesting without them)."""
    tensors: dict[str, Tensor] = {}
    plain: State = {}
    for key, value in state.items():
        if "/" in key:
            raise ValueError(f"state has a key '{key}', but '/' separates the parts of a path")
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
            if not isinstance(place, dict):
                raise ValueError(f"'{path}' lies inside of a value")
        place[name] = tensor
    return state


def point(checkpoints: Path, pointer: str, name: str) -> None:
    """Make `last` or `best` name a checkpoint, by rename."""
    write_text(checkpoints / pointer, name + "\n")


def pointed(checkpoints: Path, pointer: str) -> str | None:
    """Return the checkpoint that `last` or `best` names, if any."""
    try:
        if not (checkpoints / pointer).is_file():
            return None
        with (checkpoints / pointer).open(encoding="utf-8") as file:
            return file.read(64).strip()  # no name of ours is longer
    except (OSError, UnicodeDecodeError):
        return None


def prune(checkpoints: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and those that a pointer names."""
    named = {pointed(checkpoints, pointer) for pointer in POINTERS}
    for folder in _steps(checkpoints)[keep:]:
        if folder.name not in named:
            _delete_folder(folder)


def read_newest(run_dir: Path, *, verify: Callable[[Checkpoint], None] | None = None) -> Checkpoint:
    """Return the newest checkpoint of a run that is whole; damaged ones are named in a warning and passed over.

    `verify` may find fault with more than the checkpoint itself by raising UserError.
    """
    return _patiently(run_dir, lambda remarks: _read_newest(run_dir, verify, remarks))


def _read_newest(
    run_dir: Path, verify: Callable[[Checkpoint], None] | None, remarks: list[str]
) -> Checkpoint:
    checkpoints = run_dir / "checkpoints"
    folders = _steps(checkpoints)
    if not folders:
        raise UserError(f"{run_dir} has no checkpoint to go on from")
    last = pointed(checkpoints, "last")
    declared = [folder for folder in folders if last is not None and _step(folder.name) <= _step(last)]
    folders = declared or folders  # one that is newer than `last` was not declared yet
    if folders[0].name != last:
        problem = "is missing or unreadable" if last is None else f"names {last!r}, which is not there"
        remarks.append(f"{checkpoints / 'last'} {problem}; using {folders[0].name}")
    for index, folder in enumerate(folders):
        try:
            checkpoint = read_checkpoint(folder)
            if verify is not None:
                verify(checkpoint)
            return checkpoint
        except UserError as error:
            if index + 1 == len(folders):
                raise
            remarks.append(f"{error}; going back to {folders[index + 1].name}")
    raise AssertionError("unreachable: the loop returns or raises")


def forget_after(checkpoints: Path, name: str) -> None:
    """Delete what a killed process left half-done, and the checkpoints after `name`: they will be made again."""
    for leftover in [*checkpoints.glob(".*.tmp"), *checkpoints.glob(".*.old")]:
        shutil.rmtree(leftover, ignore_errors=True)
        leftover.unlink(missing_ok=True)
    best = pointed(checkpoints, "best")
    if best is not None and (_step(best) > _step(name) or not (checkpoints / best).is_dir()):
        (checkpoints / "best").unlink()  # first: it never names what is not there
    for folder in _steps(checkpoints):
        if _step(folder.name) > _step(name):
            _delete_folder(folder)


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the checkpoint folder that a user means by a run, a checkpoint, a saved agent, or `last`/`best` of one."""
    given = _present(Path(path))
    if (given / "manifest.json").is_file():
        return given
    if given.name in POINTERS and not given.is_dir():
        inside = given.absolute().parent.name == "checkpoints"
        checkpoints = given.parent if inside else given.parent / "checkpoints"
        return _follow(checkpoints, given.name, path)
    if (given / "checkpoints").is_dir():
        return _follow(given / "checkpoints", "last", path)
    if (given / "last").is_file():
        return _follow(given, "last", path)
    problem = "holds no checkpoint" if given.exists() else "does not exist"
    raise UserError(f"{path} {problem}; give a run folder, a checkpoint folder, or last/best of a run")


def _follow(checkpoints: Path, pointer: str, given: object) -> Path:
    name = pointed(checkpoints, pointer)
    if name is None:
        raise UserError(f"{given} has no checkpoint yet ({checkpoints / pointer} is missing)")
    if Path(name).name != name or _step(name) < 0:
        raise UserError(f"{checkpoints / pointer} names '{name}', which is not a checkpoint of this run")
    return _present(checkpoints / name)


def has_checkpoints(run_dir: Path) -> bool:
    """Tell whether a run has any checkpoint folder, whole or not."""
    return bool(_steps(run_dir / "checkpoints"))


def _steps(checkpoints: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    folders = [folder for folder in checkpoints.glob("step_*") if _step(folder.name) >= 0]
    return sorted(folders, key=lambda folder: _step(folder.name), reverse=True)


def _step(name: str) -> int:
    number = name.removeprefix("step_")
    sensible = name.startswith("step_") and number.isascii() and number.isdigit() and len(number) < 19
    return int(number) if sensible else -1


def restore_model(policy: Policy, model: State, source: object) -> None:
    """Load weights and statistics into a policy; a different shape means another environment or network."""
    assert isinstance(policy, torch.nn.Module)
    try:
        policy.load_state_dict(model)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{source} does not fit the environment's spaces or the network's settings: {reason}"
        ) from error
