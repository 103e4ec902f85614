"""Runs that crash at a known place, and what must be equal in two runs that are the same run."""

import csv
import json
from pathlib import Path

import pytest

from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.start import train
from support.callbacks import StopAtUpdate


class Crash(Exception):
    pass


def crashed(config, clock: int, callbacks=()) -> Path:
    before = set(Path(config.output_dir).glob("*"))
    with pytest.raises(Crash):
        train(config, callbacks=[*callbacks, StopAtUpdate(clock, Crash)])
    (run_dir,) = set(Path(config.output_dir).glob("*")) - before
    return run_dir


def tensors(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


def manifest(checkpoint: Path) -> dict:
    return json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))


def without_clock(table: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in WALL_CLOCK} for row in table]


def read_csv(path: Path) -> list[dict]:
    with path.open(encoding="utf-8", newline="") as file:
        return without_clock(list(csv.DictReader(file)))


def assert_same_run(ours: Path, theirs: Path, rows) -> None:
    """The last checkpoint, every file of metrics and both pointers are the same, but for what a clock says."""
    for pointer in ("last", "best"):
        names = [(run / "checkpoints" / pointer).read_text(encoding="utf-8") for run in (ours, theirs)]
        assert names[0] == names[1]
    name = (ours / "checkpoints" / "last").read_text(encoding="utf-8").strip()
    folders = ours / "checkpoints" / name, theirs / "checkpoints" / name
    assert tensors(folders[0]) == tensors(folders[1])
    manifests = [manifest(folder) for folder in folders]
    for each in manifests:
        episodes = each["state"]["trainer"]["episodes"]
        episodes["recent"] = [[reward, length] for reward, length, _, *_ in episodes["recent"]]
        del each["state"]["trainer"]["elapsed"], each["state"]["trainer"]["callbacks"]
        del each["facts"]["log_positions"], each["sha256"], each["signature"]  # digits of the clock
    assert manifests[0] == manifests[1]
    tables = [without_clock(rows(run / "metrics.jsonl")) for run in (ours, theirs)]
    assert tables[0] == tables[1]
    assert read_csv(ours / "metrics.csv") == read_csv(theirs / "metrics.csv")
    assert (ours / "evaluations.jsonl").read_bytes() == (theirs / "evaluations.jsonl").read_bytes()
    assert scalars(ours) == scalars(theirs)


def scalars(run_dir: Path) -> list[tuple[int, str, float]]:
    """What TensorBoard reads, in the order of the file."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (path,) = (run_dir / "tensorboard").iterdir()
    return [
        (event.step, value.tag, value.tensor.float_val[0])
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag not in WALL_CLOCK
    ]
