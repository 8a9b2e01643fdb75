"""The law of a defense's noise, said once for those who attack it and those who bound what any attack can do."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Independent noise of mean 0 on every entry of `Defense.before_noise`; what follows, anybody can undo."""

    kind: Literal["normal", "laplace"] = "normal"
    scale: float = 0.0
    """Its standard deviation, or Laplace's scale."""
    relative: float = 0.0
    """The same in units of the root mean square of each tensor, where `scale` is 0."""
    clip: float | None = None
    """The norm that bounds what it is added to: all of it, or where it is `summed` one example's share."""
    summed: bool = False
    """Whether it is added to the sum over the examples, of which the mean is sent."""

    @property
    def strength(self) -> float:
        """The scale, in one unit or the other; 0: there is no noise."""
        return self.scale or self.relative
