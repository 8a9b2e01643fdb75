"""How often to look for messages: Flower sleeps 3 s between two looks, on the server and in every SuperNode."""

import time
from collections.abc import Callable


class Backoff:
    """Pauses between looks: a share of the wait so far, or of the last wait if that was longer, within limits.

    So a look is late by about a tenth of a round, whatever a round takes, and costs about a dozen requests per round; an idle
    node looks every `longest` seconds.
    """

    def __init__(
        self,
        first: float = 0.005,
        longest: float = 2.0,
        share: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.first, self.longest, self.share, self._clock = first, longest, share, clock
        self._usual = 0.0
        self._since = clock()

    def begin(self) -> None:
        """The wait begins."""
        self._since = self._clock()

    def end(self) -> None:
        """What was waited for is there."""
        waited = self._clock() - self._since
        self._usual = min(waited, 2 * self._usual + self.first)  # one long wait must not make the next look late

    def pause(self) -> float:
        """Seconds until the next look."""
        return min(self.longest, max(self.first, self.share * max(self._clock() - self._since, self._usual)))
