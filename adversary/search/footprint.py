"""How much memory a search takes, by trying one step of it, and how many reconstructions therefore go at once."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adversary.base import AttackError
from fl_app.core import machine

SMALL = 2**22
"""Numbers, of parameters and examples, that some reconstructions may have together without a look at their memory (ours)."""
SHARE = 0.5
"""Of main memory that a search takes: of all of it, not of what is free, so that a search that goes on is grouped alike."""
MOST = 0.8
"""Of main memory beyond which a single reconstruction is refused (ours)."""
WASTE = 2.5
"""What an allocator takes for a byte, at the most as measured: docs/high-resolution.md."""


class Live(TorchDispatchMode):
    """Counts the bytes of all tensors that are made inside, as long as they are alive: `peak` is the most at any time."""

    def __init__(self, most: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak, self._most = 0, 0, most
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation, and count what it made; AttackError once that is too much."""
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor):
                self._count(one.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        weakref.finalize(storage, self._gone, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)
        if self.now > self._most:
            raise AttackError(
                f"one step of one reconstruction takes more than {machine.gigabytes(self.now)} of memory, and this machine has "
                f"{machine.gigabytes(machine.memory())}: attack fewer or smaller examples, a smaller model, or use fewer seeds"
            )

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def bytes_of(step: Callable[[], object]) -> int:
    """The most bytes that tensors made by a step take at any time; AttackError if this machine has not as many."""
    with Live(MOST * machine.memory()) as live:
        step()
    return int(live.peak)


def most_at_once(number: int, each: int) -> int:
    """How many of `number` targets are searched at once if each takes some bytes; at least one."""
    return max(1, min(number, int(SHARE * machine.memory() / (WASTE * max(1, each)))))
