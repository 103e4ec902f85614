"""Files: replaced in one step or not at all, and read without trust."""

import errno
import hashlib
import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from rl_training.core.errors import UserError
from rl_training.experiment import files
from rl_training.experiment.checkpoints.tensor_files import read_tensors
from rl_training.experiment.files import read_json, write_bytes, write_json, write_text

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(path: Path, blob: bytes | None = None) -> tuple[Path, int, str]:
    blob = save(TENSORS) if blob is None else blob
    path.write_bytes(blob)
    return path, len(blob), hashlib.sha256(blob).hexdigest()


def test_writing_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_bytes(path, b"old")
    write_bytes(path, b"new and longer")
    assert path.read_bytes() == b"new and longer"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_content_and_no_temporary_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_real_limit_in_the_middle_of_a_write_leaves_the_old_content(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "file"
    write_bytes(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_bytes(path, bytes(3 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_the_content_is_on_disk_before_the_name_is_and_the_name_before_the_return(tmp_path, monkeypatch):
    events = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor):
        events.append("fsync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    def replace(source, target):
        events.append("rename")
        assert Path(source).read_bytes() == b"content"
        real_replace(source, target)

    monkeypatch.setattr(files.os, "fsync", fsync)
    monkeypatch.setattr(files.os, "replace", replace)
    write_bytes(tmp_path / "file", b"content")
    assert events == ["fsync .file.tmp", "rename", f"fsync {tmp_path.name}"]


def test_what_a_killed_process_left_is_no_obstacle(tmp_path):
    (tmp_path / ".file.tmp").write_bytes(b"half of som")
    write_bytes(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("where", ["file", ".file.tmp"])
def test_a_link_is_replaced_and_what_it_points_to_left_alone(tmp_path, where):
    """A run folder from a stranger may hold links to the files of its victim, under either name."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / where).symlink_to(outside / "precious")
    write_bytes(folder / "file", b"new")
    assert (outside / "precious").read_bytes() == b"precious"
    assert (folder / "file").read_bytes() == b"new"
    assert not (folder / "file").is_symlink()
    assert names(outside) == ["precious"]


def test_text_and_json_come_back(tmp_path):
    write_text(tmp_path / "text", "grüße\n")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "grüße\n"
    data = {"a": [1, 2.5, None, "ü"], "big": 2**200, "tiny": 5e-324}
    size = write_json(tmp_path / "data.json", data)
    assert size == (tmp_path / "data.json").stat().st_size
    assert read_json(tmp_path / "data.json") == data


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "is damaged"),
        (b'{"a": 1', "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "is damaged"),
        (b"1" * 100_000, "is damaged"),
    ],
)
def test_json_that_is_none_is_one_sentence(tmp_path, content, fact):
    path = tmp_path / "data.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=fact) as caught:
        read_json(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500 + len(str(path))


def test_an_enormous_json_file_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "data.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse: takes no room

    def read(*arguments, **options):
        raise AssertionError("it was read")

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(UserError, match="is larger than 16,384 KiB"):
        read_json(path)


@pytest.mark.parametrize("make", ["missing", "folder"])
def test_json_that_cannot_be_read_is_named(tmp_path, make):
    path = tmp_path / "data.json"
    if make == "folder":
        path.mkdir()
    with pytest.raises(UserError, match=r"cannot read .*data\.json|data\.json is not a regular file"):
        read_json(path)


def test_tensors_come_back(tmp_path):
    found = read_tensors(*saved(tmp_path / "model.safetensors"))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_tensors_do_not_depend_on_the_file_any_more(tmp_path):
    """Memory mapped from a file that is deleted or changed later would be a trap."""
    path, size, digest = saved(tmp_path / "model.safetensors")
    found = read_tensors(path, size, digest)
    with path.open("r+b") as file:
        file.write(bytes(size))
    assert torch.equal(found["weight"], TENSORS["weight"])


def test_size_and_hash_are_checked(tmp_path):
    path, size, digest = saved(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=f"is damaged: it has {size} bytes instead of {size + 1}"):
        read_tensors(path, size + 1, digest)
    with pytest.raises(UserError, match="its hash differs"):
        read_tensors(path, size, digest[:-1] + ("0" if digest[-1] != "0" else "1"))


def header(content: object, data: bytes = b"") -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + data


FORGED = {
    "empty": b"",
    "seven bytes": b"1234567",
    "no header": bytes(8),
    "header of 2**60 bytes": struct.pack("<Q", 2**60) + b"{}",
    "header longer than the file": struct.pack("<Q", 100) + b"{}",
    "header above the limit": struct.pack("<Q", (16 << 20) + 1) + b" " * ((16 << 20) + 1),
    "header that is no JSON": header(b"not json"),
    "header that is a list": header([1, 2]),
    "deep header": header(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "shape larger than the data": header(
        {"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}, bytes(4)
    ),
    "shape of 2**62": header({"a": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 4]}}, bytes(4)),
    "product that overflows": header(
        {"a": {"dtype": "F32", "shape": [2**33, 2**33], "data_offsets": [0, 4]}}, bytes(4)
    ),
    "negative shape": header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4)),
    "offsets outside": header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(4)),
    "offsets backwards": header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, bytes(4)),
    "overlap": header(
        {
            "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
        bytes(4),
    ),
    "unknown dtype": header({"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "data nobody describes": header({}, bytes(64)),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_file_with_the_right_hash_is_one_sentence(tmp_path, case):
    with pytest.raises(UserError, match=r"model\.safetensors") as caught:
        read_tensors(*saved(tmp_path / "model.safetensors", FORGED[case]))
    assert len(str(caught.value).splitlines()) == 1


def test_a_link_is_no_checkpoint_file(tmp_path):
    path, size, digest = saved(tmp_path / "elsewhere")
    (tmp_path / "model.safetensors").symlink_to(path)
    with pytest.raises(UserError, match="is a symbolic link"):
        read_tensors(tmp_path / "model.safetensors", size, digest)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*nothing\.safetensors: No such file"):
        read_tensors(tmp_path / "nothing.safetensors", 1, "")
