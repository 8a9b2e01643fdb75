"""What all contract checks have in common: they raise AssertionError with a plain sentence."""

from collections.abc import Iterable
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fl_app.core.local import Tensors

DECORATOR = "use @dataclass(frozen=True, kw_only=True)"


def must(holds: bool, words: str) -> None:
    """Raise AssertionError(words) unless it holds; not `assert`, which `python -O` leaves out."""
    if not holds:
        raise AssertionError(words)


def same(one: Tensors, other: Tensors) -> bool:
    """Whether both hold the same names and values, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def copied(tensors: Tensors) -> Tensors:
    """The same values in other memory."""
    return {name: value.clone() for name, value in tensors.items()}


def tracked(tensors: Iterable[Tensor]) -> bool:
    """Whether autograd tracks what is done with one of them."""
    return any(value.requires_grad for value in tensors)


def settings(thing: Any) -> None:
    """Its settings are fields of a frozen dataclass (by name alone, or it could not be made), and say all that it is."""
    kind: Any = type(thing)
    must(is_dataclass(kind) and "__dataclass_params__" in vars(kind), f"{kind.__name__} is no dataclass: {DECORATOR}")
    must(kind.__dataclass_params__.frozen, f"{kind.__name__} can be changed after it was made: {DECORATOR}")
    must(replace(thing) == thing and hash(replace(thing)) == hash(thing), "two with the same settings are not equal")
