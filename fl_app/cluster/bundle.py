"""Files as bytes: what a folder holds, in one piece with a checksum of each file, and back on another disk."""

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from fl_app.core.errors import said
from fl_app.store.files import RunError, make_folder, write_atomic

Bytes = np.ndarray[Any, Any]
"""uint8 (n,): Ray hands arrays on without a copy."""


class Entry(NamedTuple):
    """One file: its name within the folder, its size and the SHA-256 of its content."""

    name: str
    size: int
    digest: str


class Bundle(NamedTuple):
    """Files, and their contents one after the other."""

    entries: tuple[Entry, ...]
    content: Bytes


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def digest(content: Bytes | bytes) -> str:
    """The SHA-256 of bytes."""
    return hashlib.sha256(content if isinstance(content, bytes) else content.data).hexdigest()


def files_in(folder: Path) -> list[str]:
    """The names of all files below a folder, without hidden ones: locks, and what is half written."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(name.as_posix() for name in found if not any(part.startswith(".") for part in name.parts))


def pack(folder: Path, names: Iterable[str]) -> Bundle:
    """Files of a folder."""
    entries, contents = [], []
    for name in names:
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise RunError(f"{folder / name} cannot be read: {said(error)}") from error
        entries.append(Entry(name, len(content), digest(content)))
        contents.append(content)
    return Bundle(tuple(entries), np.frombuffer(b"".join(contents), np.uint8))


def unpack(bundle: Bundle, folder: Path, *, keep: bool = False) -> None:
    """Write files into a folder, each whole or not at all, once all of them are what their checksums say; else RunError.

    `keep`: those that are there already stay as they are.
    """
    parts, start = [], 0
    for name, size, expected in bundle.entries:
        content = bundle.content[start : start + size]
        start += size
        if len(content) != size or digest(content) != expected:
            raise RunError(f"{name!r} did not arrive as it was sent: its checksum is wrong")
        parts.append((_inside(folder, name), content))
    if start != len(bundle.content):
        raise RunError("more bytes arrived than were announced")
    for path, content in parts:
        if keep and path.exists():
            continue
        make_folder(path.parent)
        write_atomic(path, content.tobytes())


def is_name(name: str) -> bool:
    """Whether a text from another machine is the plain name of a file within a folder."""
    pure = PurePosixPath(name)
    plain = bool(name) and name != "." and str(pure) == name and name.isprintable()
    return plain and not pure.is_absolute() and ".." not in pure.parts


def _inside(folder: Path, name: str) -> Path:
    """The place of a name within a folder; it must not lead out of it, nor do so by a link."""
    if not is_name(name) or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise RunError(f"{name!r} is no name of a file in {folder}")
    return folder / name
