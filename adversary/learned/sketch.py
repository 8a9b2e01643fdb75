"""An update as a few numbers whose products are, on average, those of the update (feature hashing, Weinberger et al. 2009)."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from fl_app.core.local import Tensors

TINY = 1e-12


class Sketch(NamedTuple):
    """Each entry of an update, in units of its tensor's size, goes with a random sign to a random bucket.

    LTI (Wu et al. 2023, Section 4) sums without signs; with them the sketch is unbiased (ours). Where there are as many
    buckets as entries, each has its own.
    """

    bucket: Tensor
    """int64 (entries,)."""
    factor: Tensor
    """(entries,): the sign over the size of the tensor."""

    @classmethod
    def drawn(cls, updates: Tensors, buckets: int, rng: torch.Generator) -> Self:
        """A sketch for updates such as these, (n, *parameter shape)."""
        sizes = [value.square().mean().sqrt().clamp_min(TINY).expand(value[0].numel()) for value in updates.values()]
        size = torch.cat(sizes)
        bucket = torch.randint(buckets, size.shape, generator=rng)
        sign = torch.randint(2, size.shape, generator=rng) * 2.0 - 1
        if buckets >= len(size):
            bucket, sign = torch.arange(len(size)), torch.ones(len(size))
        return cls(bucket.to(size.device), sign.to(size) / size)

    def of(self, updates: Tensors) -> Tensor:
        """The sketches of updates (n, *parameter shape): (n, buckets)."""
        rows = torch.cat([value.flatten(1) for value in updates.values()], 1) * self.factor
        if len(self.bucket) == int(self.bucket.max()) + 1 and bool(
            (self.bucket == torch.arange(len(self.bucket)).to(self.bucket)).all()
        ):
            return rows
        return rows.new_zeros(len(rows), int(self.bucket.max()) + 1).index_add_(1, self.bucket, rows)
