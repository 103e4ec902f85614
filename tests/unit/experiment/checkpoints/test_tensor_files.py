"""Tensors are written from where they lie, and what is written is what the format's own library reads."""

import builtins
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from rl_training.experiment.checkpoints import tensor_files
from rl_training.experiment.checkpoints.tensor_files import NAMES, read_tensors, write_tensors

GENERATOR = torch.Generator().manual_seed(0)
VECTOR = torch.randn(24, generator=GENERATOR)
TENSORS = {
    **{str(dtype): (torch.randn(3, 5, generator=GENERATOR) * 50).to(dtype) for dtype in NAMES},
    "no dimension": torch.tensor(2.5, dtype=torch.float64),
    "no dimension, bool": torch.tensor(True),
    "empty": torch.zeros(0),
    "empty in the middle": torch.zeros(3, 0, 2, dtype=torch.int64),
    "a view of a vector": VECTOR[4:16].view(3, 4),
    "the vector": VECTOR,
    "transposed": torch.arange(6).reshape(2, 3).T,
    "every second": torch.arange(10.0)[::2],
    "one number, spread": torch.ones(1).expand(4),
    "one number of stride 0": torch.ones(1, dtype=torch.int64).expand(1),
    "a parameter": torch.nn.Parameter(torch.randn(4)),
    "nan and infinite": torch.tensor([float("nan"), float("-inf"), -0.0]),
    'a name / with "quotes" and ümlaut': torch.arange(3, dtype=torch.int8),
}


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    wanted = wanted.detach()
    whole = [tensor.reshape(-1).clone().view(torch.uint8) for tensor in (found, wanted)]
    return found.dtype == wanted.dtype and found.shape == wanted.shape and torch.equal(*whole)


def test_the_formats_own_library_reads_every_type_and_shape(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    size, digest = write_tensors(path, TENSORS)
    content = path.read_bytes()
    assert (size, digest) == (len(content), hashlib.sha256(content).hexdigest())
    for found in (load_file(path), read_tensors(path, size, digest)):
        assert set(found) == set(TENSORS)
        for name, tensor in TENSORS.items():
            assert same(found[name], tensor), name
    assert list(read_tensors(path, size, digest)) == sorted(TENSORS)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_nothing_at_all_is_a_file_too(tmp_path: Path) -> None:
    size, digest = write_tensors(tmp_path / "none.safetensors", {})
    assert read_tensors(tmp_path / "none.safetensors", size, digest) == {}
    with safe_open(tmp_path / "none.safetensors", framework="pt") as file:
        assert list(file.keys()) == []


def test_each_tensor_begins_at_a_multiple_of_its_size(tmp_path: Path) -> None:
    write_tensors(tmp_path / "all.safetensors", TENSORS)
    content = (tmp_path / "all.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert (8 + length) % 8 == 0


def test_what_lies_in_memory_in_one_piece_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is given the very memory of the tensors."""
    places: list[int] = []
    real = hashlib.sha256

    class Watching:
        def __init__(self) -> None:
            self.hash = real()

        def update(self, piece: bytes | memoryview) -> None:
            self.hash.update(piece)
            if isinstance(piece, memoryview) and len(piece):
                places.append(np.frombuffer(piece, np.uint8).__array_interface__["data"][0])

        def hexdigest(self) -> str:
            return self.hash.hexdigest()

    monkeypatch.setattr(tensor_files.hashlib, "sha256", Watching)
    views = {"a": VECTOR[:8].view(2, 4), "b": VECTOR[8:], "c": torch.zeros(3, dtype=torch.bool)}
    write_tensors(tmp_path / "views.safetensors", views)
    assert places == [tensor.data_ptr() for tensor in views.values()]


def test_a_file_is_opened_once_and_what_was_read_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    known = write_tensors(path, {"a": torch.arange(4.0)})
    opened: list[object] = []
    real = builtins.open

    def counting(file: Path, *arguments: object, **options: object) -> object:
        opened.append(file)
        return real(file, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "open", counting)
    monkeypatch.setattr(Path, "open", counting)
    found = read_tensors(path, *known)
    assert opened == [path]
    os.truncate(path, 0)
    found["a"] += 1
    assert found["a"].tolist() == [1.0, 2.0, 3.0, 4.0]
