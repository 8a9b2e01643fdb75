"""The secret that a client's own draws come from, so that a server that knows the run's seed can predict none of them."""

import errno
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fl_app.client.policy import OwnConfig, Refused
from fl_app.core.local import Tensors
from fl_app.core.seeds import secret_generator

log = logging.getLogger("thorns")
SECRET_BYTES = 32


def secret_draws(own: OwnConfig, settings: list[Mapping[str, Any]], tensors: list[Tensors]) -> torch.Generator:
    """A generator of the client's secret and of all that an update is made of: its request, settings, weights, examples.

    The same noise on two different updates would vanish in their difference; the same update again is the same bytes again,
    so that asking twice takes no noise away.
    """
    return secret_generator(secret_of(own), _bytes_of(settings, tensors))


def _bytes_of(settings: list[Mapping[str, Any]], tensors: list[Tensors]) -> Iterator[bytes]:
    for group in settings:
        yield repr(sorted(group.items())).encode()
    for part in tensors:
        for name, value in sorted(part.items()):
            yield f"{name} {value.dtype} {tuple(value.shape)}".encode()
            yield value.detach().cpu().numpy().tobytes()


def secret_of(own: OwnConfig) -> bytes:
    """What this client's draws come from: its secret file, made at first use for its owner's eyes only, or fresh bytes."""
    if not own.secret_seed_file:
        return secrets.token_bytes(SECRET_BYTES)
    path = Path(own.secret_seed_file).expanduser()
    try:
        if not path.exists():
            make_private(path, (secrets.token_hex(SECRET_BYTES) + "\n").encode())
        text = read_private(path, 2 * SECRET_BYTES + 2)
        secret = bytes.fromhex(text.decode())
    except OSError as error:
        log.error("the secret seed file %s cannot be used: %s", path, error.strerror)
        raise Refused("this client's secret seed file cannot be used; its log says why") from None
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        log.error("%s does not hold %d hexadecimal digits: delete it and a new one is made", path, 2 * SECRET_BYTES)
        raise Refused("this client's secret seed file cannot be used; its log says why")
    return secret


def read_private(path: Path, most: int) -> bytes:
    """The first bytes of a file that nobody but its owner may read; OSError, also if others may."""
    with path.open("rb") as stored:
        if os.fstat(stored.fileno()).st_mode & 0o077:
            raise PermissionError(errno.EPERM, "it can be read by others: chmod 600 it")
        return stored.read(most)


def make_private(path: Path, content: bytes) -> None:
    """Write a file for its owner's eyes only, unless it is there by now."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
    try:
        os.link(temporary, path)  # unlike a rename it never takes the place of one that another process just made
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
