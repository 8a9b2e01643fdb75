"""Which rounds and clients are captured, as text: "all", "none", "1", "1,3" or "1-5,9"."""

import re
import sys
from dataclasses import dataclass

PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True)
class Selection:
    """Whole numbers, as ranges; `number in selection` asks for one, and an empty selection is false."""

    ranges: tuple[range, ...]

    def __contains__(self, number: object) -> bool:
        return any(number in part for part in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def beyond(self, highest: int) -> list[int]:
        """Where it names something above `highest`; "all" never does."""
        return [max(part.start, highest + 1) for part in self.ranges if highest + 1 < part.stop < sys.maxsize]


def select(text: str, lowest: int, what: str) -> Selection:
    """Parse a selection of numbers from `lowest` on; `what` is what they number, for the error."""
    words = text.strip().lower()
    if words in ("all", "none"):
        return Selection((range(lowest, sys.maxsize),) if words == "all" else ())
    ranges = []
    for part in words.split(","):
        match = PART.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not lowest <= first <= last:
            raise ValueError(
                f"{text!r} does not select {what}: use 'all', 'none', or numbers from {lowest} on such as '{lowest},3' or '1-5'"
            )
        ranges.append(range(first, last + 1))
    return Selection(tuple(ranges))
