"""A lock that is a file: held by one process, and let go of by the kernel however that process ends."""

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fl_app.store.files import RunError, make_folder, unwritten

log = logging.getLogger("thorns")
LOCK = ".lock"
"""The name of the lock of a folder, in it."""


@contextmanager
def alone(path: Path, busy: str = "") -> Iterator[None]:
    """Hold a lock; wait for whoever has it, or raise that it is `busy`. Either way it is said who has it."""
    make_folder(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if busy:
            raise RunError(f"{busy} (held by {holder(path)})") from None
        log.info("waiting for %s, held by %s", path, holder(path))
        lock.acquire()
    except OSError as error:
        raise unwritten(path, error) from error
    try:
        # Into the file itself: opening it does not touch the lock, which is on the file and not on its content.
        path.write_text(f"process {os.getpid()}: {shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


def holder(path: Path) -> str:
    """Process and command of whoever holds a lock, in one line."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:300]
    except OSError:
        text = ""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip() or "another process"
