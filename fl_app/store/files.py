"""Files that are written whole or not at all, and an error that names the one at fault."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fl_app.core.errors import said
from fl_app.core.local import Tensors

PUBLIC = 0o644
"""The mode of what a cache may show to everybody; safetensors writes for its owner alone."""


class RunError(ValueError):
    """A file or run directory that cannot be used; the message says why and what to do."""


class RunFailed(RuntimeError):
    """A run that came to nothing although its settings were good; the message says why."""

    exit_code = 1
    """Of the command: 2 would say that something is wrong with what was asked for."""


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A name to write a file under before it takes its place; whatever goes wrong is a RunError and leaves the old file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
        raise unwritten(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def unwritten(path: Path, error: Exception) -> RunError:
    """The error of a file that could not be written."""
    return RunError(f"{path} cannot be written: {said(error)}")


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless it is there; RunError if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise RunError(f"{path} is not a folder: choose another") from None
    except OSError as error:
        raise RunError(f"the folder {path} cannot be made ({said(error)}): choose another") from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never a part; RunError if it cannot be written."""
    with _writing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def save_tensors(path: Path, tensors: Tensors, notes: dict[str, str], *, durable: bool = False) -> None:
    """Write tensors atomically; they may share memory. RunError if they cannot be written.

    A durable file is on the disk when this returns, so that it outlives a power cut.
    """
    whole = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    with _writing(path) as temporary:
        save_file(whole, temporary, metadata=notes)
        if durable:
            _flush(temporary)
    if durable:
        _flush(path.parent)  # its name, too


def _flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def load_tensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Read tensors and their notes; a file that is damaged or may not be read is an error that names it."""
    try:
        path.open("rb").close()  # safetensors calls a file that may not be read missing
        with safe_open(path, "pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}, dict(stored.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise RunError(f"{path} cannot be read: it is damaged ({error})") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {said(error)}") from error


def checksum(tensors: Tensors, text: str = "") -> str:
    """A hash of a text and of tensors with their names, types and shapes, in order of the names."""
    digest = hashlib.sha256(text.encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
