"""What an attack that learned says of what it cost: how many public examples, how many seconds."""

import time

import torch

from adversary.base import LEAST_PUBLIC, AttackError, Public
from fl_app.core.local import Tensors


def enough(name: str, public: Public, most: int) -> Public:
    """The first public examples, at most so many; AttackError if they are too few to learn from."""
    if len(public.x) < LEAST_PUBLIC:
        raise AttackError(f"{name} learns from at least {LEAST_PUBLIC} public examples, and there are {len(public.x)}")
    return Public(public.x[:most], public.y[:most])


def spent(public: Public, began: float) -> Tensors:
    """What is kept beside what was learned."""
    return {"spent/examples": torch.tensor(len(public.x)), "spent/seconds": torch.tensor(time.monotonic() - began)}


def remark(learned: Tensors) -> str:
    """What the ledger says of it."""
    examples, seconds = int(learned["spent/examples"]), float(learned["spent/seconds"])
    return f"learned from {examples:,} public examples in {seconds:.0f} s"
