"""Checkpoints, runs and configs made by somebody who means harm: no code runs, nothing outside the run is touched,
memory and time stay bounded, and a person reads one sentence.

Hashes in manifests are made to fit, so that it is never the hash check alone that saves us.
"""

import contextlib
import copy
import hashlib
import io
import json
import os
import pickle
import resource
import shutil
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import rl_training
from rl_training.cli import load_config
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.format import manifest_hash, read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.video import record_video
from rl_training.runtime.trainer import Trainer
from support.configs import tiny_config
from support.runs import paused_run

# the command prints warnings; here they are no errors
pytestmark = [pytest.mark.fault, pytest.mark.filterwarnings("always::UserWarning")]
STEP = "step_64"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """A real run that paused at 64 of 96 steps, with one checkpoint: damage cannot be passed over."""
    config = tiny_config(
        "ppo", tmp_path_factory.mktemp("pristine"), env_id="tiny_envs:Lottery-v0", total_timesteps=96,
        num_eval_episodes=1, keep_checkpoints=1, update_epochs=1,
    )  # fmt: skip
    run_dir = paused_run(config, 64)
    (run_dir / "checkpoints" / "best").write_text(f"{STEP}\n", encoding="utf-8")
    return run_dir


@pytest.fixture
def run_dir(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "run"))


@pytest.fixture
def canary(tmp_path, monkeypatch) -> Iterator[Path]:
    """The file that a bomb would create."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "code from a file was executed"


class Slow(Exception):
    pass


@contextlib.contextmanager
def bounded(seconds: float = 5) -> Iterator[None]:
    """Interrupt what takes too long, such as reading a pipe that nobody writes to."""

    def late(*arguments: Any) -> None:
        raise Slow(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def little_memory(headroom: int = 1 << 30) -> Iterator[None]:
    """Let allocations beyond `headroom` fail instead of bringing the machine down."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + headroom, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def explained(outcome: Any, *, codes: tuple[int, ...] = (0, 2)) -> str:
    """Assert that every line of the error stream is a warning or the one error; return the error."""
    code, text, excerpt = outcome.code, outcome.err, outcome.err[:1500]  # pytest would print a whole bomb
    if code not in codes or "Traceback" in text or "--debug" in text:
        pytest.fail(f"exit code {code}: {excerpt}")
    if longest := max((len(line) for line in text.splitlines() if len(line) > 2500), default=0):
        pytest.fail(f"a line of {longest} characters: {excerpt}")
    lines = text.strip().split("\n") if text.strip() else []
    if not all(line.isprintable() for line in lines):
        pytest.fail(f"a terminal would obey this: {excerpt!r}")
    errors = [line for line in lines if not line.startswith("warning: ")]
    if errors and errors[0].endswith(":") and all(line.startswith("  - ") for line in errors[1:]):
        errors = [" ".join(errors)]  # a config's problems, one per line
    if len(errors) != (1 if code else 0):
        pytest.fail(f"not one sentence: {excerpt}")
    return errors[0] if errors else ""


@pytest.fixture
def attempt(cli, canary, pristine, tmp_path) -> Callable[..., dict[str, str]]:
    """Copy the run, do harm to it, and go through a door: all must be refused, or all must survive."""

    def through(harm: Callable[[Path], Any], door: str, *, codes: tuple[int, ...]) -> str:
        run_dir = Path(shutil.copytree(pristine, tmp_path / "run", symlinks=True))
        harm(run_dir)
        with bounded():
            if door == "load":
                error = ""
                try:
                    rl_training.load(run_dir / "checkpoints" / STEP).evaluate(1)
                except UserError as caught:
                    error = str(caught)
                assert (2 if error else 0) in codes, error
                assert error.count("\n") == 0 or "\n  - " in error
                assert len(error) < 2500
                return error
            arguments = ["--quiet"] if door == "resume" else ["--num-episodes", 1]
            return explained(cli(door, run_dir, *arguments), codes=codes)

    return through


DOORS = ["load", "eval", "resume"]
READERS = ["load", "resume"]  # eval reads as load does


def checkpoint(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / STEP


def read_manifest(run_dir: Path) -> dict[str, Any]:
    return json.loads((checkpoint(run_dir) / "manifest.json").read_text(encoding="utf-8"))


def seal(run_dir: Path, manifest: Any) -> None:
    """Write a manifest such that nothing in the checkpoint tells that it was forged."""
    if isinstance(manifest, dict):
        manifest = manifest | {"sha256": manifest_hash(manifest)}
    (checkpoint(run_dir) / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def harm(run_dir: Path) -> None:
        manifest = read_manifest(run_dir)
        change(manifest)
        seal(run_dir, manifest)

    return harm


def plant(run_dir: Path, name: str, blob: bytes) -> None:
    """Replace a tensor file and its entry in the manifest."""
    (checkpoint(run_dir) / name).write_bytes(blob)
    manifest = read_manifest(run_dir)
    manifest["files"][name] = {"size": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    seal(run_dir, manifest)


# ------------------------------------------------------------------------------------------------------- bombs


class Bomb:
    """Unpickling it creates the canary."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.open, (str(self.path), os.O_CREAT | os.O_WRONLY)


def bombs(path: Path) -> dict[str, bytes]:
    archive = io.BytesIO()
    torch.save({"weight": Bomb(path)}, archive)
    return {
        "text pickle": pickle.dumps(Bomb(path), protocol=0),
        "pickle": pickle.dumps(Bomb(path)),
        "torch": archive.getvalue(),
        "yaml": f"!!python/object/apply:builtins.open [{path}, w]\n".encode(),
    }


def test_the_bombs_are_live(tmp_path):
    for kind in ("text pickle", "pickle"):
        os.close(pickle.loads(bombs(tmp_path / kind)[kind]))
        assert (tmp_path / kind).exists()
    assert set(bombs(tmp_path / "x")) == set(BOMBS)


BOMBS = ["text pickle", "pickle", "torch", "yaml"]
FILES = [
    "checkpoints/step_64/model.safetensors", "checkpoints/step_64/optimizer.safetensors",
    "checkpoints/step_64/manifest.json", "checkpoints/last", "checkpoints/best", "config.yaml", "metadata.json",
    "metrics.jsonl", "metrics.csv", "evaluations.jsonl", ".lock",
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_in_any_file_does_not_go_off(attempt, canary, name, bomb, door):
    blob = bombs(canary)[bomb]

    def harm(run_dir: Path) -> None:
        if name.endswith(".safetensors"):
            plant(run_dir, Path(name).name, blob)
        else:
            (run_dir / name).write_bytes(blob)

    decisive = name.startswith("checkpoints/step_64/")
    attempt(harm, door, codes=(2,) if decisive else (0, 2))


def zip_bomb() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model/data.pkl", bytes(64 << 20))
    return archive.getvalue()


@pytest.mark.parametrize("door", READERS)
@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_an_archive_is_never_unpacked(attempt, name, door):
    blob = zip_bomb()
    assert len(blob) < 1 << 20

    def harm(run_dir: Path) -> None:
        if name.endswith(".safetensors"):
            plant(run_dir, name, blob)
        else:
            (checkpoint(run_dir) / name).write_bytes(blob)

    attempt(harm, door, codes=(2,))


def test_a_module_in_the_run_is_not_imported(attempt, canary):
    """`module:Id` imports from the Python path; what a stranger packed beside the weights is not on it."""

    def harm(run_dir: Path) -> None:
        for folder in (run_dir, checkpoint(run_dir)):
            (folder / "trap.py").write_text(f"open({str(canary)!r}, 'w')\n", encoding="utf-8")
        edit(lambda manifest: manifest["config"].update(env_id="trap:Env-v0"))(run_dir)

    for door in DOORS:
        assert "'trap'" in attempt(harm, door, codes=(2,))
        shutil.rmtree(canary.parent / "run")


# --------------------------------------------------------------------------------------------- tensors that lie


def header(content: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + data


def changed(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[bytes], bytes]:
    def forge(blob: bytes) -> bytes:
        tensors = load_tensors(blob)
        change(tensors)
        return save_tensors(tensors)

    return forge


def first(tensors: dict[str, torch.Tensor]) -> str:
    return min(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.ndim > 0)


def swap(**how: Any) -> Callable[[bytes], bytes]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = first(tensors)
        tensor = tensors[name]
        if "value" in how:
            tensor.view(-1)[0] = how["value"]
        if "dtype" in how:
            tensors[name] = tensor.to(how["dtype"])
        if "shape" in how:
            tensors[name] = torch.zeros(how["shape"])

    return changed(change)


TENSORS: dict[str, Callable[[bytes], bytes]] = {
    "header of 2**60 bytes": lambda blob: struct.pack("<Q", 2**60) + blob[8:],
    "header of 2**64-1 bytes": lambda blob: b"\xff" * 8 + blob[8:],
    "shape larger than the data": lambda blob: header(
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, bytes(4)
    ),
    "no tensors": lambda blob: header({}),
    "empty file": lambda blob: b"",
    "more tensors": changed(lambda tensors: tensors.update(extra=torch.zeros(3))),
    "one tensor less": changed(lambda tensors: tensors.pop(first(tensors))),
    "other names": changed(
        lambda t: (t.update({f"x/{n}": v.clone() for n, v in t.items()}), t.pop(first(t)))
    ),
    "a tensor where a group is": changed(lambda t: t.update({f"{first(t)}/inside": torch.zeros(1)})),
    "names of thousands of levels": changed(
        lambda tensors: tensors.update({"/".join("a" * 5000): torch.zeros(1)})
    ),
    "scalar": swap(shape=()),
    "wide": swap(shape=(1000, 7)),
    "empty tensor": swap(shape=(0, 3)),
}
FINITE: dict[str, Callable[[bytes], bytes]] = {
    "nan": swap(value=float("nan")),
    "inf": swap(value=float("inf")),
    "-inf": swap(value=float("-inf")),
}


@pytest.mark.parametrize("door", READERS)
@pytest.mark.parametrize("case", [*TENSORS, *FINITE])
def test_weights_that_do_not_fit_are_refused(attempt, case, door):
    forge = (TENSORS | FINITE)[case]

    def harm(run_dir: Path) -> None:
        plant(run_dir, "model.safetensors", forge((checkpoint(run_dir) / "model.safetensors").read_bytes()))

    message = attempt(harm, door, codes=(2,))
    assert STEP in message
    assert "not finite" in message or case not in FINITE


OPTIMIZER = {
    **TENSORS,
    **FINITE,
    "half the digits": swap(dtype=torch.float16),
    "a whole number": swap(dtype=torch.int64),
}
HARMLESS = {
    "more tensors",
    "names of thousands of levels",
    "other names",
    "half the digits",
    "a whole number",
}


@pytest.mark.parametrize("case", OPTIMIZER)
def test_moments_that_do_not_fit_are_refused(attempt, case):
    def harm(run_dir: Path) -> None:
        path = checkpoint(run_dir) / "optimizer.safetensors"
        plant(run_dir, "optimizer.safetensors", OPTIMIZER[case](path.read_bytes()))

    attempt(harm, "resume", codes=(0, 2) if case in HARMLESS else (2,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("door", READERS)
def test_weights_of_another_type_are_refused_or_converted(attempt, door, dtype):
    def harm(run_dir: Path) -> None:
        path = checkpoint(run_dir) / "model.safetensors"
        plant(run_dir, "model.safetensors", swap(dtype=dtype)(path.read_bytes()))

    attempt(harm, door, codes=(0, 2))


@pytest.mark.parametrize("group", ["sampler", "generators", "source", "trainer", "learner"])
@pytest.mark.parametrize("case", ["no tensors", "scalar", "wide", "empty tensor"])
def test_the_rest_of_the_state_that_does_not_fit(attempt, group, case):
    def harm(run_dir: Path) -> None:
        path = checkpoint(run_dir) / f"{group}.safetensors"
        names = list(load_tensors(path.read_bytes())) if path.exists() else ["x"]
        shape = {"scalar": (), "wide": (1000, 7), "empty tensor": (0, 3)}.get(case, (1,))
        forged = {} if case == "no tensors" else {name: torch.zeros(shape) for name in names}
        plant(run_dir, f"{group}.safetensors", save_tensors(forged))

    assert "no checkpoint was written" not in attempt(harm, "resume", codes=(0, 1, 2))


# --------------------------------------------------------------------------------------------- manifests that lie


def set_at(*path: str) -> Callable[[Any], Callable[[Path], None]]:
    def to(value: Any) -> Callable[[Path], None]:
        def change(manifest: dict[str, Any]) -> None:
            place: Any = manifest
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value

        return edit(change)

    return to


def drop(*path: str) -> Callable[[Path], None]:
    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return edit(change)


def raw(content: bytes) -> Callable[[Path], None]:
    return lambda run_dir: (checkpoint(run_dir) / "manifest.json").write_bytes(content)


def twice(run_dir: Path) -> None:
    text = (checkpoint(run_dir) / "manifest.json").read_text(encoding="utf-8")
    forged = text.rstrip().removesuffix("}") + ', "files": {}}'
    (checkpoint(run_dir) / "manifest.json").write_text(forged, encoding="utf-8")


def sparse(run_dir: Path) -> None:
    with (checkpoint(run_dir) / "manifest.json").open("r+b") as file:
        file.truncate(1 << 30)


ENTRY = {"size": 1, "sha256": ""}
DISCRETE = {"type": "Discrete", "shape": [], "dtype": "int64", "n": 2, "start": 0}
BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": -1.0, "high": 1.0}
REFUSED: dict[str, Callable[[Path], Any]] = {
    "100 000 lists": raw(b"[" * 100_000 + b"]" * 100_000),
    "100 000 maps": raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "700 maps in the state": set_at("state", "model")(json.loads('{"a":' * 700 + "1" + "}" * 700)),
    "700 maps in the config": set_at("config", "env_kwargs")(json.loads('{"a":' * 700 + "1" + "}" * 700)),
    "not UTF-8": raw(b'{"format_version": 1, "config": "\xff\xfe"}'),
    "UTF-16": raw('{"format_version": 1}'.encode("utf-16")),
    "empty": raw(b""),
    "null": raw(b"null"),
    "a gigabyte": sparse,
    "a key twice": twice,
    "digits without end": raw(b'{"format_version": ' + b"9" * 10_000 + b"}"),
    "newer format": set_at("format_version")(3),
    "format that is no number": set_at("format_version")("2"),
    "format of text": set_at("format_version")("1\n\x1b[31mRED"),
    "format that is a map": set_at("format_version")({"a": "\n" * 5000}),
    "no config": drop("config"),
    "config of text": set_at("config")("ppo"),
    "config of pairs": set_at("config")([["algo", "ppo"], ["env_id", "CartPole-v1"]]),
    "unknown algorithm": set_at("config", "algo")("__import__"),
    "algorithm of nothing": set_at("config", "algo")(None),
    "settings of a list": set_at("config", "algorithm")([1]),
    "unknown environment": set_at("config", "env_id")("Nothing-v0"),
    "environment of control characters": set_at("config", "env_id")("\x1b[2J\x07\r\nerror: all is well"),
    "environment that is a path": set_at("config", "env_id")("../../../etc/passwd"),
    "environment of a module with dots": set_at("config", "env_id")("..:X"),
    "environment without a name": set_at("config", "env_id")(":"),
    "environment of nothing but a module": set_at("config", "env_id")("json:"),
    "long environment": set_at("config", "env_id")("x" * 100_000),
    "argument the environment does not take": set_at("config", "env_kwargs")({"evil": 1}),
    "enormous argument": set_at("config", "env_kwargs")({"evil": "x" * 1_000_000}),
    "device": set_at("config", "device")("cuda:77"),
    "device of another world": set_at("config", "device")("meta\n"),
    "no progress": drop("progress"),
    "progress of a list": set_at("progress")([1, 2]),
    "progress of words": set_at("progress", "timesteps")("many"),
    "infinite progress": set_at("progress", "timesteps")(float("inf")),
    "progress that is no number": set_at("progress", "updates")(float("nan")),
    "negative progress": set_at("progress", "timesteps")(-5),
    "no files": drop("files"),
    "files of a list": set_at("files")([1]),
    "file entry of text": set_at("files", "model.safetensors")("x"),
    "size of text": set_at("files", "model.safetensors", "size")("12"),
    "negative size": set_at("files", "model.safetensors", "size")(-1),
    "hash of nothing": set_at("files", "model.safetensors", "sha256")(None),
    "above": edit(lambda m: m["files"].update({"../step_64/model.safetensors": m["files"]["model.safetensors"]})),
    "absolute": edit(lambda m: m["files"].update({"/etc/passwd": ENTRY})),
    "absolute tensors": edit(lambda m: m["files"].update({"/tmp/x.safetensors": ENTRY})),
    "dots": edit(lambda m: m["files"].update({"..": ENTRY})),
    "no name": edit(lambda m: m["files"].update({"": ENTRY})),
    "null byte": edit(lambda m: m["files"].update({"x\0.safetensors": ENTRY})),
    "name of 5000 characters": edit(lambda m: m["files"].update({"x" * 5000 + ".safetensors": ENTRY})),
    "name of control characters": edit(lambda m: m["files"].update({"\x1b[31m\n.safetensors": ENTRY})),
    "python file": edit(lambda m: m["files"].update({"code.py": ENTRY})),
    "no state": drop("state"),
    "state of a list": set_at("state")([1]),
    "state without a model": edit(lambda m: (m["state"].pop("model"), m["files"].pop("model.safetensors"))),
    "model of a list": set_at("state", "model")([1, 2]),
    "model of nothing": set_at("state", "model")(None),
    "words among the weights": edit(lambda m: m["state"]["model"].update(extra="text")),
    "no facts": drop("facts"),
    "facts of text": set_at("facts")("x"),
    "no spaces": drop("facts", "spaces"),
    "spaces of a list": set_at("facts", "spaces")([]),
    "other spaces": set_at("facts", "spaces", "action_space")(DISCRETE | {"n": 3}),
    "more actions than weights": set_at("facts", "spaces", "action_space")(DISCRETE | {"n": 2**62}),
    "more features than weights": set_at("facts", "spaces", "observation_space")(DISCRETE | {"n": 2**62}),
    "many features": set_at("facts", "spaces", "observation_space")(BOX | {"shape": [2**22]}),
    "larger than memory": set_at("facts", "spaces", "observation_space")(BOX | {"shape": [2**62]}),
    "actions that nobody takes": set_at("facts", "spaces", "action_space")({"type": "Tuple", "spaces": []}),
    "observations of nothing": set_at("facts", "spaces", "observation_space")({"type": "Dict", "spaces": []}),
    "bounds that are code": set_at("facts", "spaces", "observation_space")(BOX | {"low": "__import__('os')"}),
    "names for data": set_at("facts", "spaces", "action_space")("Discrete(2)"),
    "spaces of control characters": set_at("facts", "spaces", "action_space")("\x1b[31m\r\nRED"),
    "endless spaces": set_at("facts", "spaces", "action_space")("x" * 1_000_000),
}  # fmt: skip


@pytest.mark.parametrize("door", READERS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_forged_manifest_is_refused(attempt, case, door):
    attempt(REFUSED[case], door, codes=(2,))


STATE = {
    "no trainer": drop("state", "trainer"),
    "trainer of a list": set_at("state", "trainer")([]),
    "fired of text": set_at("state", "trainer", "log_fired")("x"),
    "best of text": set_at("state", "trainer", "best_reward")("x"),
    "elapsed of nothing": set_at("state", "trainer", "elapsed")(None),
    "callbacks of numbers": set_at("state", "trainer", "callbacks")([1, 2]),
    "episodes of text": set_at("state", "trainer", "episodes")("x"),
    "no generators": drop("state", "generators"),
    "generator of another kind": set_at("state", "generators", "numpy")(["os.system", [1], 0, 0, 0.0]),
    "generator of text": set_at("state", "generators", "python")("x"),
    "generator of huge words": set_at("state", "generators", "python")([3, [2**200] * 625, None]),
    "generator of nothing": set_at("state", "learner", "minibatch_rng")({}),
    "another bit generator": set_at("state", "learner", "minibatch_rng", "bit_generator")("MT19937"),
    "huge random state": set_at("state", "learner", "minibatch_rng", "state")({"state": 2**300, "inc": -1}),
    "no sampler": drop("state", "sampler"),
    "no explorer": drop("state", "sampler", "explorer"),
    "no environments": drop("state", "sampler", "envs"),
    "episodes that are no numbers": set_at("state", "sampler", "envs", "episodes")(["a", "b"]),
    "negative episodes": set_at("state", "sampler", "envs", "episodes")([-7, -7]),
    "huge episodes": set_at("state", "sampler", "envs", "episodes")([2**80, 2**80]),
    "lengths that are not there": set_at("state", "sampler", "envs", "lengths")([10**9, 10**9]),
    "negative lengths": set_at("state", "sampler", "envs", "lengths")([-3, -3]),
    "no log positions": drop("facts", "log_positions"),
    "log positions of a list": set_at("facts", "log_positions")([1]),
    "negative log position": set_at("facts", "log_positions", "metrics.jsonl")(-1),
    "log position of text": set_at("facts", "log_positions", "metrics.jsonl")("x"),
    "log position in the middle of a row": set_at("facts", "log_positions", "metrics.jsonl")(7),
    "huge log position": set_at("facts", "log_positions", "metrics.jsonl")(2**80),
    "best elsewhere": set_at("facts", "best_checkpoint")("../../elsewhere"),
    "best of a map": set_at("facts", "best_checkpoint")({}),
    "no best": drop("facts", "best_checkpoint"),
    "surroundings of a list": set_at("facts", "surroundings")([1]),
    "surroundings of control characters": set_at("facts", "surroundings", "torch")("\x1b[31m\r\nerror: x"),
    "endless surroundings": set_at("facts", "surroundings", "torch")("x" * 1_000_000),
    "negative updates": set_at("progress", "updates")(-(10**30)),
    "threads": set_at("config", "num_threads")(2**40),
}


@pytest.mark.parametrize("case", STATE)
def test_a_forged_state_is_refused_or_harmless_when_resumed(attempt, case):
    assert "no checkpoint was written" not in attempt(STATE[case], "resume", codes=(0, 1, 2))


SIZES = {
    "hidden_sizes": [10**12],
    "many layers": [2**20] * 3,
    "num_steps": 10**12,
    "num_envs": 10**12,
    "num_envs beyond int64": 10**30,
}


@pytest.mark.parametrize("door", ["load", "resume"])
@pytest.mark.parametrize("case", SIZES)
def test_a_config_that_asks_for_all_memory_is_refused(attempt, case, door):
    """The weights in the file are small; a network or buffer that needs terabytes cannot be theirs."""

    def change(manifest: dict[str, Any]) -> None:
        config = manifest["config"]
        if case in ("hidden_sizes", "many layers"):
            config["algorithm"]["hidden_sizes"] = SIZES[case]
        elif case == "num_steps":
            config["algorithm"]["num_steps"] = SIZES[case]
        else:
            config["num_envs"] = SIZES[case]

    with little_memory():
        attempt(edit(change), door, codes=(0, 2) if door == "load" and "num_" in case else (2,))


@pytest.mark.parametrize("widths", [[2**14] * 64, [2**14], [8] * 64])
def test_a_network_larger_than_its_weights_is_never_built(run_dir, widths):
    """Up to 64 GB, of widths that are each allowed: refused by reading alone."""
    edit(lambda manifest: manifest["config"]["algorithm"].update(hidden_sizes=widths))(run_dir)
    with pytest.raises(UserError, match="hidden_sizes a"):
        read_checkpoint(checkpoint(run_dir))


# ------------------------------------------------------------------------------------------- pointers and links

POINTERS = {
    "above": b"../../../etc", "absolute": b"/etc", "inside": b"step_64/../../..", "dot": b".", "dots": b"..",
    "empty": b"", "blank": b" \n", "null byte": b"step_64\0", "not UTF-8": b"\xff\xfe",
    "control": b"\x1b[31mstep_64\x07",
    "other digits": "step_٦٤".encode(), "negative": b"step_-1", "digits without end": b"step_" + b"9" * 10_000,
    "a megabyte": b"x" * (1 << 20), "lines": b"step_64\nerror: x\n",
}  # fmt: skip


@pytest.mark.parametrize("command", ["eval", "eval best", "resume"])
@pytest.mark.parametrize("case", POINTERS)
def test_a_pointer_to_anywhere_else(cli, canary, run_dir, case, command):
    """Asked for a run, the newest whole checkpoint is used, with a warning; asked for `best`, it is refused."""
    name = "best" if command == "eval best" else "last"
    (run_dir / "checkpoints" / name).write_bytes(POINTERS[case])
    flags = ["--quiet"] if command == "resume" else ["--num-episodes", 1]
    outcome = cli(command.split()[0], run_dir / "best" if name == "best" else run_dir, *flags)
    explained(outcome, codes=(2,) if name == "best" else (0,))


def test_an_endless_pointer_is_not_read(cli, run_dir):
    with (run_dir / "checkpoints" / "last").open("wb") as file:
        file.truncate(8 << 30)
    with bounded(), little_memory(1 << 30):
        explained(cli("eval", run_dir, "--num-episodes", 1))


WRITTEN = [
    ".lock", "config.yaml", ".config.yaml.tmp", "metadata.json", ".metadata.json.tmp", "metrics.jsonl", "metrics.csv",
    ".metrics.csv.tmp", "evaluations.jsonl", "tensorboard/events.out.tfevents.scalars", "learning_curve.png",
    "checkpoints/last", "checkpoints/.last.tmp", "checkpoints/best", "checkpoints/.best.tmp",
    "checkpoints/step_64/manifest.json", "checkpoints/step_64/model.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_a_link_never_leads_a_write_out_of_the_run(cli, canary, run_dir, tmp_path, name):
    """Resuming a stranger's run must not change the file that a link in it points to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    path = run_dir / name
    content = path.read_bytes() if path.exists() else b"precious\n"
    (outside / "precious").write_bytes(content)
    path.unlink(missing_ok=True)
    path.symlink_to(outside / "precious")
    outcome = cli("resume", run_dir, "--quiet")
    assert (outside / "precious").read_bytes() == content
    assert os.listdir(outside) == ["precious"]
    explained(outcome)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_hard_link_never_leads_a_write_out_of_the_run(cli, canary, run_dir, tmp_path, name):
    """Nothing tells a hard link from a file but its count; a copy by `cp -al` is full of them."""
    precious, path = tmp_path / "precious", run_dir / name
    content = path.read_bytes() if path.exists() else b"precious\n"
    precious.write_bytes(content)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.link(precious, path)
    outcome = cli("resume", run_dir, "--quiet")
    assert precious.read_bytes() == content
    assert precious.stat().st_nlink == 1 or name.startswith("checkpoints/step_64/")
    explained(outcome, codes=(0,))


def test_a_resumed_snapshot_of_hard_links_leaves_the_run_alone(cli, canary, run_dir, tmp_path):
    def link_tree(source: Path, copy: Path) -> None:
        shutil.copytree(source, copy, copy_function=os.link)

    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    link_tree(run_dir, tmp_path / "snapshot")
    explained(cli("resume", tmp_path / "snapshot", "--quiet"), codes=(0,))
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("harm", ["a link", "a link on the way", "settings"])
def test_the_trackers_folder_leads_nowhere(cli, run_dir, tmp_path, harm):
    (tmp_path / "outside").mkdir()
    if harm == "settings":
        (run_dir / "wandb").mkdir()
        (run_dir / "wandb" / "settings").write_text(
            "[default]\nbase_url = http://localhost:1\n", encoding="utf-8"
        )
    else:
        (run_dir / {"a link": "wandb", "a link on the way": "tensorboard/x"}[harm]).symlink_to(
            tmp_path / "outside"
        )
    outcome = cli("resume", run_dir, "--quiet")
    assert "wandb" in explained(outcome, codes=(2,)) or harm == "a link on the way"
    assert os.listdir(tmp_path / "outside") == []


@pytest.fixture
def player(run_dir) -> Any:
    """An agent out of the run, in an environment that has pictures."""
    from gymnasium.envs.classic_control import CartPoleEnv
    from gymnasium.wrappers import TimeLimit, TransformObservation

    spec = rl_training.load(run_dir).agent.spec

    def build(render_mode: str | None = None) -> Any:
        env = TimeLimit(CartPoleEnv(render_mode=render_mode), 2)
        blind = TransformObservation(env, lambda obs: spec.observation_space.sample(), spec.observation_space)
        blind.action_space = spec.action_space
        return blind

    return rl_training.load(run_dir, env=build).agent


@pytest.mark.parametrize("folder", ["videos", "videos/deeper", "checkpoints/../videos"])
def test_a_video_is_not_recorded_through_a_link_in_the_run(player, run_dir, tmp_path, monkeypatch, folder):
    pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "outside").mkdir()
    (run_dir / "videos").symlink_to(tmp_path / "outside")
    monkeypatch.chdir(run_dir)
    for target in (run_dir / folder, Path(folder)):
        with pytest.raises(UserError, match="is a link inside"):
            record_video(player, target)
    assert os.listdir(tmp_path / "outside") == []


def test_a_video_replaces_a_link_of_its_name(player, run_dir, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    (video,) = record_video(player, tmp_path / "first")
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "my videos").mkdir()
    (run_dir / "videos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "my videos")  # the user's own, not in the run
    (run_dir / "videos" / video.name).symlink_to(tmp_path / "precious")
    os.link(tmp_path / "precious", tmp_path / "my videos" / video.name)
    for folder in (run_dir / "videos", tmp_path / "link"):
        (again,) = record_video(player, folder)
        assert b"ftyp" in again.read_bytes()[:12]
        assert not again.is_symlink()
        assert os.listdir(folder) == [video.name]
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["step_32", ".step_96.tmp", ".step_32.old"])
def test_a_link_to_a_folder_is_not_followed_when_cleaning_up(cli, run_dir, tmp_path, name):
    outside = tmp_path / "outside"
    shutil.copytree(checkpoint(run_dir), outside)
    (run_dir / "checkpoints" / name).symlink_to(outside)
    before = sorted(os.listdir(outside))
    outcome = cli("resume", run_dir, "--quiet")
    assert sorted(os.listdir(outside)) == before
    explained(outcome)  # refused or cleaned up: both are safe


@pytest.mark.parametrize("command", ["eval", "resume"])
@pytest.mark.parametrize(
    "name",
    ["checkpoints/step_64/manifest.json", "checkpoints/last", "metadata.json", "metrics.jsonl", ".lock"],
)
def test_a_pipe_in_place_of_a_file_blocks_nobody(cli, run_dir, name, command):
    (run_dir / name).unlink(missing_ok=True)
    os.mkfifo(run_dir / name)
    flags = ["--quiet"] if command == "resume" else ["--num-episodes", 1]
    with bounded(1):
        explained(cli(command, run_dir, *flags))


@pytest.mark.parametrize("command", ["eval", "resume"])
@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file(cli, run_dir, name, command):
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).mkdir()
    (run_dir / name / "inside").write_text("x", encoding="utf-8")
    flags = ["--quiet"] if command == "resume" else ["--num-episodes", 1]
    explained(cli(command, run_dir, *flags), codes=(0, 1, 2))


RECORDS = {
    "metadata.json": [
        b"[]", b"5", b'{"resumes": 5}', b'{"resumes": {"a": 1}}', b'{"resumes": null}', b'{"status": ["x"]}',
        b'{"status": "stopped", "stop_reason": {"a": "\\u001b[31m\\n"}}', b"[" * 100_000,
    ],
    "metrics.jsonl": [
        b"5\n", b'"text"\n', b"[1]\n", b"{}\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"a": {"b": 1}}\n',
        b"9" * 10_000 + b"\n", bytes(100),
    ],
    "evaluations.jsonl": [b"5\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"],
    "config.yaml": [b"\xff", b"a: &a [*a]", b"[" * 10_000],
}  # fmt: skip


@pytest.mark.usefixtures("real_curves")
@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, contents in RECORDS.items() for number in range(len(contents))],
)
def test_records_of_nonsense(attempt, name, number):
    def harm(run_dir: Path) -> None:
        content = RECORDS[name][number]
        (run_dir / name).write_bytes(content)
        if name in ("metrics.jsonl", "evaluations.jsonl"):  # as long as the manifest says, so that it is read
            set_at("facts", "log_positions", name)(len(content))(run_dir)

    attempt(harm, "resume", codes=(0, 2))


# ----------------------------------------------------------------------------------------------------- configs

GOOD = "algo: ppo\nenv_id: CartPole-v1\nseed: 1\n"
LAUGHS = "a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n"
    for before, name in zip("abcd", "bcdg", strict=True)
)
CONFIGS = {
    "python object": GOOD + "x: !!python/object/apply:os.system ['touch canary']\n",
    "python name": GOOD + "x: !!python/name:os.system\n",
    "python module": GOOD + "x: !!python/module:antigravity\n",
    "python new": GOOD + "env_kwargs: !!python/object/new:os.open [canary, 65]\n",
    "python tuple": GOOD + "x: !!python/tuple [1]\n",
    "laughs at the top": LAUGHS + GOOD,
    "laughs as a setting": LAUGHS.replace("g: &g", "num_envs: &g") + GOOD,
    "laughs as settings": LAUGHS.replace("g: &g", "algorithm: &g") + GOOD,
    "laughs as a list of sizes": LAUGHS + GOOD + "algorithm: {hidden_sizes: *g}\n",
    "laughs as the algorithm": LAUGHS + GOOD.replace("algo: ppo", "algo: *g"),
    "itself": "&a\nalgo: ppo\nenv_id: CartPole-v1\nenv_kwargs: *a\n",
    "itself as a list": GOOD + "env_kwargs: &a {x: [*a]}\n",
    "itself as a number": GOOD + "num_envs: &a [*a]\n",
    "10 000 lists": GOOD + "x: " + "[" * 10_000,
    "2 000 maps": GOOD + "x: " + "{a: " * 2000 + "1" + "}" * 2000,
    "500 lists": GOOD + "x: " + "[" * 500 + "]" * 500 + "\n",
    "a date that is none": GOOD + "num_envs: 2026-13-45\n",
    "a date": GOOD + "num_envs: 2026-01-01\n",
    "number of words": GOOD + "num_envs: !!int many\n",
    "digits without end": GOOD + "num_envs: " + "9" * 10_000 + "\n",
    "many digits": GOOD + "num_envs: " + "9" * 4000 + "\n",
    "float of words": GOOD + "env_timeout: !!float many\n",
    "bool of words": GOOD + "normalize_obs: !!bool many\n",
    "date of words": GOOD + "num_envs: !!timestamp many\n",
    "binary": GOOD + "num_envs: !!binary '####'\n",
    "set": GOOD + "num_envs: !!set {a, b}\n",
    "pairs": GOOD + "num_envs: !!omap [a: 1]\n",
    "map as a key": "? {a: 1}\n: 2\n" + GOOD,
    "list as a key": "? [a, b]\n: 2\n" + GOOD,
    "itself as a key": "? &a [*a]\n: 2\n" + GOOD,
    "merge": "<<: {algo: sac}\n" + GOOD,
    "merge of a number": "<<: 5\n" + GOOD,
    "a key twice": GOOD + "seed: 2\n",
    "infinity": GOOD + "num_envs: .inf\n",
    "no number": GOOD + "env_timeout: .nan\n",
    "two documents": GOOD + "---\n" + GOOD,
    "nothing": "",
    "text": "ppo",
    "tabs": "algo:\tppo\n\tenv_id: x\n",
    "control characters": GOOD + "x: \x07\n",
    "escapes in a key": GOOD + '"\\e[31m\\n": 1\n',
    "escapes in a value": GOOD + 'device: "\\e[31m\\r\\nerror: x"\n',
    "long value": GOOD + "num_envs: " + "x" * 100_000 + "\n",
    "long key": GOOD + "x" * 5000 + ": 1\n",
    "template": GOOD + "device: ${HOME} {{ 7 * 7 }} $(touch canary) `touch canary`\n",
    "include": GOOD + "x: !include /etc/passwd\n",
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_config_is_refused(cli, canary, tmp_path, case):
    path = tmp_path / "settings.yaml"
    path.write_bytes(CONFIGS[case].encode())
    with bounded(), little_memory():
        outcome = cli("train", "--config", path, "--output-dir", tmp_path / "runs", "--total-timesteps", 1)
    explained(outcome, codes=(2,))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x80abc", pickle.dumps({"algo": "ppo"}), bytes(1000)])
def test_a_config_that_is_no_text(cli, tmp_path, content):
    path = tmp_path / "settings.yaml"
    path.write_bytes(content)
    explained(cli("train", "--config", path), codes=(2,))


def test_an_endless_config_is_not_read(cli, tmp_path):
    path = tmp_path / "settings.yaml"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    with bounded(), little_memory(1 << 30):
        explained(cli("train", "--config", path), codes=(2,))


# ----------------------------------------------------------------------------------------------------- fuzzing

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
NUMBERS = st.one_of(st.integers(-3, 3), st.just(2**70), st.just(-(2**70)), st.floats())
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths into a tree of maps and short lists."""
    if isinstance(value, dict):
        inner = [places(item, (*path, key)) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [places(item, (*path, index)) for index, item in enumerate(value[:3])]
    else:
        inner = []
    return [path] * bool(path) + [found for group in inner for found in group]


def replaced(manifest: Any, path: tuple[Any, ...], value: Any, *, delete: bool) -> Any:
    forged = copy.deepcopy(manifest)
    place = forged
    for key in path[:-1]:
        place = place[key]
    if delete:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return forged


@pytest.fixture
def no_training(monkeypatch):
    """Restore everything and stop there: a forged budget must not keep the test busy."""
    monkeypatch.setattr(Trainer, "fit", lambda self, progress: progress)


@QUICK
@given(data=st.data())
def test_any_forged_manifest_loads_or_is_refused(pristine, tmp_path, no_training, data):
    run_dir = tmp_path / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(pristine, run_dir)
    manifest = read_manifest(run_dir)
    for _ in range(data.draw(st.integers(1, 2), label="number of changes")):
        path = data.draw(st.sampled_from(places(manifest)), label="place")
        value, delete = data.draw(ANYTHING, label="value"), data.draw(st.booleans(), label="delete")
        if path[-1] in ("num_envs", "num_threads", "hidden_sizes", "num_steps"):
            value, delete = data.draw(st.none() | st.integers(-2, 5) | st.text(max_size=3)), False
        manifest = replaced(manifest, path, value, delete=delete)
    seal(run_dir, manifest)
    with bounded():
        with contextlib.suppress(UserError):
            rl_training.load(run_dir)
        with contextlib.suppress(UserError):
            resume(run_dir)


@QUICK
@given(content=st.binary(max_size=80))
def test_any_bytes_as_a_manifest_are_refused(pristine, tmp_path, content):
    run_dir = tmp_path / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(pristine, run_dir)
    (checkpoint(run_dir) / "manifest.json").write_bytes(content)
    with pytest.raises(UserError):
        rl_training.load(run_dir)


@QUICK
@given(data=st.data())
def test_any_damage_to_a_tensor_file_is_refused(pristine, tmp_path, data):
    """The hash is made to fit, so the reader itself must hold."""
    run_dir = tmp_path / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(pristine, run_dir)
    blob = bytearray((checkpoint(run_dir) / "model.safetensors").read_bytes())
    header_end = 8 + struct.unpack("<Q", blob[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    plant(run_dir, "model.safetensors", bytes(blob))
    with bounded(), contextlib.suppress(UserError):
        rl_training.load(run_dir)


@QUICK
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_as_a_config_load_or_are_refused(tmp_path, content):
    path = tmp_path / "settings.yaml"
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        load_config(path)


@QUICK
@given(data=st.data())
def test_any_damage_to_a_config_loads_or_is_refused(pristine, tmp_path, data):
    blob = bytearray((pristine / "config.yaml").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(blob) - 1))
        blob[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    (tmp_path / "settings.yaml").write_bytes(bytes(blob))
    with contextlib.suppress(UserError):
        load_config(tmp_path / "settings.yaml")


@QUICK
@given(data=st.data())
def test_any_values_in_a_config_load_or_are_refused(pristine, tmp_path, data):
    values = yaml.safe_load((pristine / "config.yaml").read_text(encoding="utf-8"))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(values)))
        values = replaced(values, path, data.draw(ANYTHING), delete=False)
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    with contextlib.suppress(UserError):
        load_config(tmp_path / "settings.yaml")
