"""A safetensors file with a checksum over all of it: written whole or not at all, and read without trust."""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl_app.core.errors import said
from fl_app.core.local import Tensors, finite

DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "BOOL": torch.bool,
    "I8": torch.int8,
    "U8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Bytes are read as whole numbers of the same width: numpy knows no bfloat16.
CARRIERS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
START = b'{"__metadata__":{"checksum":"'
BLANK = b"0" * 64
HEADER_BYTES = 16 * 2**20
Buffer = bytes | memoryview


class CaptureError(ValueError):
    """A capture that cannot be written or read; the message names the file, `reason` says why."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason


class Sealed(NamedTuple):
    """The content of a file, and its checksum."""

    tensors: Tensors
    notes: dict[str, str]
    checksum: str


@lru_cache(maxsize=16)
def _layout(shapes: tuple[tuple[str, torch.Size, torch.dtype], ...]) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """(the tensors' part of the header, their names by dtype); cached, because all updates of a model have the same."""
    # Wide types first, so that every tensor lies at a multiple of its width; the header keeps the caller's order.
    order = sorted(shapes, key=lambda item: (-item[2].itemsize, str(item[2])))
    places, position = {}, 0
    for name, shape, dtype in order:
        if name == "__metadata__" or dtype not in NAMES:
            raise CaptureError(f"{name[:80]!r}, a tensor of {dtype}, has no place in a safetensors file")
        places[name] = [position, position + shape.numel() * dtype.itemsize]
        position = places[name][1]
    entries = {name: {"dtype": NAMES[dtype], "shape": [*shape], "data_offsets": places[name]} for name, shape, dtype in shapes}
    groups = tuple(tuple(name for name, _, _ in group) for _, group in groupby(order, lambda item: item[2]))
    return json.dumps(entries, separators=(",", ":"))[1:-1], groups


def seal(tensors: Tensors, notes: dict[str, str]) -> tuple[list[Buffer], str]:
    """(the parts of a file, its checksum); refuses values that are not finite."""
    entries, groups = _layout(tuple((name, value.shape, value.dtype) for name, value in tensors.items()))
    start = json.dumps({"__metadata__": {"checksum": BLANK.decode(), **notes}}, separators=(",", ":"))
    text = (start[:-1] + ("," if entries else "") + entries + "}").encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES:
        raise CaptureError(f"a header of {len(text)} bytes is longer than the {HEADER_BYTES} that would be read again")
    parts = [_bytes_of([tensors[name] for name in group]) for group in groups]
    checksum = _checksum(text, parts)
    text = START + checksum.encode() + text[len(START) + len(BLANK) :]
    return [len(text).to_bytes(8, "little") + text, *parts], checksum


def _bytes_of(values: list[Tensor]) -> memoryview:
    """Tensors of one dtype, one after the other."""
    flat = torch.cat([value.detach().reshape(-1) for value in values]).cpu()
    if not finite(flat):
        raise CaptureError("it has values that are not finite")
    return flat.view(torch.uint8).numpy().data


def _checksum(header: bytes, parts: Sequence[Buffer]) -> str:
    """Of the header with a blank checksum, and the data; it tells damage and careless edits, not a forger."""
    digest = hashlib.sha256(header[: len(START)] + BLANK + header[len(START) + len(BLANK) :])
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def write_atomic(path: Path, parts: Sequence[Buffer]) -> None:
    """Write a file so that a reader sees a whole one or none; what fails leaves nothing behind."""
    temporary = f"{path.parent}{os.sep}.{path.name}.part"
    try:
        # No fsync: it would cost more than the round, and a file that a power cut spoils fails its checksum.
        out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for part in parts:
                left = memoryview(part)
                while left:
                    left = left[os.write(out, left) :]
        finally:
            os.close(out)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def read(path: Path, most: int) -> Sealed:
    """Read a file of at most `most` bytes; nothing is allocated on its word alone."""
    try:
        if not path.is_file():
            raise CaptureError("it is not a file")
        with path.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            if size > most:
                raise CaptureError(f"it has {size} bytes, more than the {most} that it may have")
            length = int.from_bytes(source.read(8), "little")
            if size < 8 or length > min(HEADER_BYTES, size - 8):
                raise CaptureError(f"it is cut off or no safetensors file: it has {size} bytes")
            header = source.read(length)
            notes, entries = _parse(header, size - 8 - length)
            data = source.read(size - 8 - length)
    except OSError as error:
        raise CaptureError(f"it cannot be read: {said(error)}") from error
    checksum = notes["checksum"]
    if _checksum(header, [data]) != checksum:
        raise CaptureError("its checksum is wrong: it was damaged or edited")
    return Sealed({name: entry.tensor(data) for name, entry in entries.items()}, notes, checksum)


class _Entry(NamedTuple):
    dtype: torch.dtype
    shape: list[int]
    start: int

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def tensor(self, data: bytes) -> Tensor:
        if not self.size:
            return torch.empty(self.shape, dtype=self.dtype)
        values = np.frombuffer(data, CARRIERS[self.dtype.itemsize], prod(self.shape), self.start)
        return torch.from_numpy(values.copy()).view(self.dtype).reshape(self.shape)


def _parse(header: bytes, available: int) -> tuple[dict[str, str], dict[str, _Entry]]:
    """(notes, entries) of a header; each entry lies within the `available` bytes of data."""
    if not header.startswith(START):
        raise CaptureError("it is not a capture: its header has no checksum")
    try:
        head = json.loads(header)
        notes = head.pop("__metadata__")
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"its header is not JSON: {str(error)[:80]}") from None
    # A second "__metadata__" would replace the one that the header starts with.
    if not isinstance(notes, dict) or "checksum" not in notes or not all(isinstance(value, str) for value in notes.values()):
        raise CaptureError("its header has notes that are not text")
    entries = {name: _entry(name, item) for name, item in head.items()}
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.size)):
        if entry.start != end:
            raise CaptureError("its tensors overlap or leave gaps")
        end += entry.size
    if end != available:
        raise CaptureError(f"it is cut off or has a tail: it holds {available} bytes of data, its header says {end}")
    return notes, entries


def _entry(name: str, item: object) -> _Entry:
    shown = repr(name[:80])
    if not isinstance(item, dict) or item.keys() != {"dtype", "shape", "data_offsets"}:
        raise CaptureError(f"its header does not describe the tensor {shown}")
    dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CaptureError(f"the tensor {shown} has the unknown type {str(dtype)[:40]!r}")
    for numbers, most in ((shape, 16), (offsets, 2)):
        # `type`, not isinstance: true is a whole number to Python.
        whole = isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**48 for number in numbers)
        if not whole or len(numbers) > most:
            raise CaptureError(f"the tensor {shown} has an impossible shape or place")
    entry = _Entry(DTYPES[dtype], shape, offsets[0] if offsets else -1)
    if offsets != [entry.start, entry.start + entry.size]:
        raise CaptureError(f"the tensor {shown} says the shape {shape}, but takes the bytes {offsets}")
    return entry
