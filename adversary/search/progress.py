"""How far a search is, for whoever wants to show it."""

import time
from collections.abc import Callable
from contextvars import ContextVar

report: ContextVar[Callable[[int, int], None] | None] = ContextVar("report", default=None)
"""Called about once a second with (iterations done, iterations in all) of the search that is under way."""
SECONDS = 1.0


class Pace:
    """Calls the reporter about once a second, so that an iteration pays nothing for it."""

    def __init__(self, iterations: int) -> None:
        self._report, self._iterations, self._next = report.get(), iterations, time.monotonic() + SECONDS

    def at(self, iteration: int) -> None:
        """Say that an iteration begins."""
        if self._report is not None and (now := time.monotonic()) >= self._next:
            self._next = now + SECONDS
            self._report(iteration, self._iterations)
