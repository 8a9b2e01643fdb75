"""Other orders of a sentence's words (LAMP, section 4.3): two swapped, one moved, a part moved, a beginning put to the end."""

import torch
from torch import Tensor


def moved(number: int, length: int, places: int, rng: torch.Generator, *, wild: bool = False) -> Tensor:
    """Orders (number, places) of the places between the first and the last of `length`; the first order is the one that is.

    By turns one of four moves; `wild`: any order.
    """
    orders = torch.arange(places).repeat(number, 1)
    inner = length - 2
    if inner < 2:
        return orders
    for i in range(1, number):
        own = list(range(1, inner + 1))
        if wild:
            own = [own[j] for j in torch.randperm(inner, generator=rng).tolist()]
        else:
            a, b, c = (int(j) for j in torch.randint(inner, (3,), generator=rng))
            own = _MOVES[i % 4](own, min(a, b), max(a, b), c)
        orders[i, 1 : inner + 1] = torch.tensor(own)
    return orders


def _swapped(own: list[int], a: int, b: int, _c: int) -> list[int]:
    own[a], own[b] = own[b], own[a]
    return own


def _one_moved(own: list[int], a: int, _b: int, c: int) -> list[int]:
    own.insert(c, own.pop(a))
    return own


def _part_moved(own: list[int], a: int, b: int, c: int) -> list[int]:
    part, rest = own[a : b + 1], own[:a] + own[b + 1 :]
    at = min(c, len(rest))
    return rest[:at] + part + rest[at:]


def _turned(own: list[int], a: int, _b: int, _c: int) -> list[int]:
    return own[a:] + own[:a]


_MOVES = (_swapped, _one_moved, _part_moved, _turned)
