"""Pipes between this process and its copies: buffers go out as they lie in memory, and come in where they stay."""

import contextlib
import fcntl
import os
from collections.abc import Sequence
from select import POLLIN, poll
from typing import Any

ROOM = 2**20
"""Bytes that a pipe takes before its writer has to wait, if the system allows it: a small model's update fits in."""
AT_ONCE = 512
"""Buffers per system call; systems allow 1024."""


class Ends:
    """One end of a pair of pipes."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing

    def send(self, parts: Sequence[Any]) -> None:
        """Send parts, each a buffer or a list of buffers that arrive as one."""
        buffers = [part if isinstance(part, list) else [part] for part in parts]
        sizes = [sum(memoryview(buffer).nbytes for buffer in part) for part in buffers]
        head = b"".join(size.to_bytes(8, "little") for size in (len(sizes), *sizes))
        waiting = [memoryview(head), *(memoryview(buffer).cast("B") for part in buffers for buffer in part if len(buffer))]
        while waiting:
            sent = os.writev(self.writing, waiting[:AT_ONCE])
            done = 0
            while done < len(waiting) and sent >= waiting[done].nbytes:
                sent -= waiting[done].nbytes
                done += 1
            waiting = waiting[done:]
            if sent:
                waiting[0] = waiting[0][sent:]

    def receive(self) -> list[bytearray]:
        """The parts of what was sent; raises EOFError if the other end is closed."""
        number = int.from_bytes(self._read(8), "little")
        sizes = self._read(8 * number)
        return [self._read(int.from_bytes(sizes[8 * i : 8 * i + 8], "little")) for i in range(number)]

    def _read(self, size: int) -> bytearray:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            got = os.readv(self.reading, [view])
            if not got:
                raise EOFError
            view = view[got:]
        return found

    def close(self) -> None:
        """Close both pipes; a second time does nothing."""
        for end in (self.reading, self.writing):
            if end >= 0:
                os.close(end)
        self.reading = self.writing = -1


def pipes() -> tuple[Ends, Ends]:
    """Two pipes, one for each direction, as the ends of either side."""
    to_us, from_them = os.pipe()
    to_them, from_us = os.pipe()
    for end in (from_them, from_us):
        with contextlib.suppress(OSError, AttributeError):  # a system that has less room, or no such call
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, ROOM)
    return Ends(to_us, from_us), Ends(to_them, from_them)


def select(reading: Sequence[int]) -> set[int]:
    """Those of the pipes that have something to read, or are closed; waits for the first."""
    waiting = poll()
    for end in reading:
        waiting.register(end, POLLIN)
    return {end for end, _ in waiting.poll()}
