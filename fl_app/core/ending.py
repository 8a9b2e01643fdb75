"""SIGTERM, with which a system asks a process to end, as what Ctrl-C is in Python."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end what is inside as Ctrl-C would."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(end: KeyboardInterrupt) -> int:
    """What a command that was interrupted ends with: 128 and the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(end, Terminated) else signal.SIGINT)
