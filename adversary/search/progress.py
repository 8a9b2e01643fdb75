"""How far a search is, for whoever wants to show it, and until when it may go on."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

report: ContextVar[Callable[[int, int], None] | None] = ContextVar("report", default=None)
"""Called about once a second with (iterations done, iterations in all) of the search that is under way."""
SECONDS = 1.0
_limit: ContextVar["Limit | None"] = ContextVar("_limit", default=None)


class Limit:
    """The time by which searches have to end with the best that they have, and whether it made one end early."""

    def __init__(self, until: float) -> None:
        self.until, self.cut = until, False


@contextmanager
def within(seconds: float) -> Iterator[Limit]:
    """End all searches inside after so many seconds; a limit around this one stays in force."""
    outer = _limit.get()
    until = time.monotonic() + seconds
    limit = Limit(until if outer is None else min(until, outer.until))
    token = _limit.set(limit)
    try:
        yield limit
    finally:
        _limit.reset(token)
        if outer is not None and time.monotonic() >= outer.until:
            outer.cut |= limit.cut


def out_of_time() -> bool:
    """Whether the search that asks has to end; it is remembered that it did."""
    limit = _limit.get()
    if limit is None or time.monotonic() < limit.until:
        return False
    limit.cut = True
    return True


class Pace:
    """Calls the reporter about once a second, so that an iteration pays nothing for it."""

    def __init__(self, iterations: int) -> None:
        self._report, self._iterations, self._next = report.get(), iterations, time.monotonic() + SECONDS

    def at(self, iteration: int) -> None:
        """Say that an iteration begins."""
        if self._report is not None and (now := time.monotonic()) >= self._next:
            self._next = now + SECONDS
            self._report(iteration, self._iterations)
