"""Writes scalars and histograms as TensorBoard event files, without TensorBoard.

An event file is a sequence of TFRecords (length, its checksum, payload, its checksum), each payload a small
protocol-buffer message, of which scalars and histograms need a few fields.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rl_training.core.types import Array

BINS = 64
"""Bins of a histogram."""


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def masked_crc32c(data: bytes) -> int:
    """Return the checksum TFRecords carry: CRC-32C, rotated and shifted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record(payload: bytes) -> bytes:
    """Return one TFRecord."""
    header = struct.pack("<Q", len(payload))
    checksums = struct.pack("<I", masked_crc32c(header)), struct.pack("<I", masked_crc32c(payload))
    return header + checksums[0] + payload + checksums[1]


class TensorBoardWriter:
    """Appends scalars and histograms to one event file."""

    def __init__(self, path: Path) -> None:
        new = not path.exists() or path.stat().st_size == 0
        self._file = path.open("ab")
        if new:
            self._write(_event(3, _bytes(b"brain.Event:2"), step=0))

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        values = b"".join(
            _field(1, _field(1, name.encode()) + _float(2, value)) for name, value in metrics.items()
        )
        self._write(_event(5, _bytes(values), step=timesteps))

    def log_histograms(self, numbers: Mapping[str, Array], timesteps: int) -> None:
        """Write a histogram of each array; numbers that are not finite are left out."""
        values = b""
        for name, array in numbers.items():
            finite = array[np.isfinite(array)].astype(np.float64)
            if len(finite):
                values += _field(1, _field(1, name.encode()) + _field(5, _histogram(finite)))
        self._write(_event(5, _bytes(values), step=timesteps))

    def close(self) -> None:
        self._file.close()

    def _write(self, payload: bytes) -> None:
        self._file.write(record(payload))
        self._file.flush()


def _event(number: int, content: bytes, step: int) -> bytes:
    wall_time = b"\x09" + struct.pack("<d", time.time())
    return wall_time + b"\x10" + _varint(step) + bytes([number << 3 | 2]) + content


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _bytes(content)


def _histogram(numbers: Array) -> bytes:
    """Return a HistogramProto: extremes, count, sum, sum of squares, right ends of the bins and their counts."""
    counts, edges = np.histogram(numbers, bins=BINS)
    facts = (numbers.min(), numbers.max(), len(numbers), numbers.sum(), np.square(numbers).sum())
    scalars = b"".join(
        bytes([field << 3 | 1]) + struct.pack("<d", fact) for field, fact in enumerate(facts, start=1)
    )
    heights = np.concatenate([[0.0], counts])  # nothing lies left of the first edge
    return scalars + _field(6, edges.astype("<f8").tobytes()) + _field(7, heights.astype("<f8").tobytes())


def _float(number: int, value: float) -> bytes:
    return bytes([number << 3 | 5]) + struct.pack("<f", value)


def _bytes(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
