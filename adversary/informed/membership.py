"""What a defense's noise and clipping are to somebody who tests single candidates."""

from typing import NamedTuple

import client_defenses


class OnSum(NamedTuple):
    """Standard deviation of the noise on the sum over a batch, and the norm to which each example is clipped (0: not)."""

    noise: float
    clip: float


def noise_of(defense: str, examples: int) -> OnSum | None:
    """The law for batches of so many examples; None if the defense adds no noise of a known size."""
    law = client_defenses.build(defense).noise_law()
    if law is None or not law.scale:
        return None
    deviation = law.scale * (2**0.5 if law.kind == "laplace" else 1.0)
    if law.summed:
        return OnSum(deviation, law.clip or 0.0)
    # A batch that is clipped as a whole clips an example by itself only if that is all of it.
    return OnSum(deviation * examples, (law.clip or 0.0) if examples == 1 else 0.0)
