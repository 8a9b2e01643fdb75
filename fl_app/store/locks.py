"""A lock that is a file: held by one process, and let go of by the kernel however that process ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fl_app.store.files import RunError


@contextmanager
def alone(path: Path, busy: str = "") -> Iterator[None]:
    """Hold a lock; wait for whoever has it, or say that it is `busy`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise RunError(busy) from None
        yield
