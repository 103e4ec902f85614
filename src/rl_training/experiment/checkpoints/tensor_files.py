"""Tensors on disk in the safetensors format: written without a copy, and verified when they are read.

The layout: 8 bytes with the length of a JSON header, the header with dtype, shape and offsets of each tensor, and the
data of one tensor after the other.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from torch import Tensor

from rl_training.core.errors import UserError
from rl_training.experiment.files import open_regular, replacing

MAX_HEADER_BYTES = 1 << 20
"""Size of a header: enough for 5,000 tensors."""
MAX_TRUSTED_HEADER_BYTES = 16 << 20
"""Size of a header that the user signed or trusts: thousands of environments have their tensors too."""
NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Atomically replace the file at `path`, without copying contiguous CPU tensors; return its size and hash."""
    size, digest = 0, hashlib.sha256()
    with replacing(path) as file:
        for piece in _pieces(tensors):
            digest.update(piece)
            file.write(piece)
            size += len(piece)
    return size, digest.hexdigest()


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the parts of the file in order."""
    # largest element size first, so that every tensor is aligned
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, place = {}, 0
    for name in order:
        tensor = tensors[name]
        end = place + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, end],
        }
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in order:
        whole = tensors[name].detach().to("cpu").contiguous()
        # torch calls a single element contiguous whatever its stride, but refuses to view it as bytes
        flat = whole.as_strided((whole.numel(),), (1,))
        yield flat.view(torch.uint8).numpy().data


def _refuse_other_size(path: Path, header: bytes, num_bytes: int) -> None:
    """Raise if a header describes another number of bytes than there are; what it contains is checked later."""
    try:
        entries = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        described = max((int(entry["data_offsets"][1]) for entry in entries), default=0)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError, IndexError, OverflowError):
        return
    if described != num_bytes:
        raise UserError(
            f"{path} is not a safetensors file: its header describes {described} bytes, and there are {num_bytes}"
        )


def read_tensors(path: Path, size: int, sha256: str, *, trusted: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file whose size and hash are known.

    Size, header and hash are checked before any tensor is created, so memory is bounded by the size of the file. What
    the header describes must fill the file exactly, which is checked before the data is read. The header of a
    `trusted` file may be larger.
    """
    largest = MAX_TRUSTED_HEADER_BYTES if trusted else MAX_HEADER_BYTES
    try:
        if path.is_symlink():
            raise UserError(f"{path} is a symbolic link; a checkpoint contains only regular files")
        with open_regular(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise UserError(f"{path} is damaged: it has {found} bytes instead of {size}")
            begin = file.read(8)
            length = struct.unpack("<Q", begin)[0] if len(begin) == 8 else largest + 1
            if length > min(largest, found - 8):
                raise UserError(f"{path} is not a safetensors file: its header is too large")
            _refuse_other_size(path, file.read(length), found - 8 - length)
            file.seek(0)
            content = file.read(size)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise UserError(f"{path} is damaged: its hash differs from the manifest's")
        tensors = tensors_from(content)
        # sorted, so that `a` always comes before `a/b`
        return {name: tensors[name] for name in sorted(tensors)}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype that torch does not have
        raise UserError(f"{path} is not a safetensors file: {error}") from error
