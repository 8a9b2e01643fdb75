"""Train, validation and test parts: as published, or by shares of everything."""

from collections.abc import Sequence
from math import isfinite
from typing import Annotated, NamedTuple, TypeVar

import torch
from pydantic import Field

from fl_app.core.seeds import generator
from fl_app.data.base import DataError, Dataset, Examples

T = TypeVar("T")
PUBLIC = 2000
"""The most examples of the test part that count as public: attacks and defenses may learn from them."""
Share = Annotated[float, Field(gt=0, lt=1)]


class Splits(NamedTuple):
    """The three parts; validation may be empty."""

    train: Examples
    validation: Examples
    test: Examples


def shares_of(text: str) -> tuple[float, float, float] | None:
    """`"70/15/15"` -> its shares; "official" -> None."""
    if text == "official":
        return None
    try:
        train, validation, test = (float(part) for part in text.split("/"))
    except ValueError:
        raise DataError(f"split must be 'official' or train/validation/test such as '70/15/15', not '{text}'") from None
    total = train + validation + test
    if not isfinite(total) or min(train, test) <= 0 or validation < 0:
        raise DataError(f"the split '{text}' must leave something for training and for testing")
    return train / total, validation / total, test / total


def training_examples(dataset: Dataset, text: str) -> int:
    """How many examples the training part of a split has, without making it."""
    shares = shares_of(text)
    if shares is None:
        return len(dataset.train)
    return round(shares[0] * (len(dataset.train) + len(dataset.test) + len(dataset.validation or ())))


def split(dataset: Dataset, text: str, seed: int) -> Splits:
    """Split a data set; shares are drawn from all its examples pooled, by the seed."""
    parts = [dataset.train, dataset.test, *([dataset.validation] if dataset.validation else [])]
    shares = shares_of(text)
    if shares is None:
        empty = dataset.train.part(slice(0))
        return Splits(dataset.train, dataset.validation or empty, dataset.test)
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    beside = [part.a for part in parts if part.a is not None]
    everything = Examples(x, y, torch.cat(beside) if beside else None)
    order = torch.randperm(len(y), generator=generator(seed, "split"))
    cuts = [round(shares[0] * len(y)), round((shares[0] + shares[1]) * len(y))]
    return Splits(*(everything.part(chosen) for chosen in order.tensor_split(cuts)))


def hold_out(examples: Sequence[T], share: float) -> tuple[list[T], list[T]]:
    """Split off a share for testing, the same on every machine."""
    order = torch.randperm(len(examples), generator=generator(0, "hold-out")).tolist()
    cut = max(1, round(share * len(examples)))
    return [examples[i] for i in sorted(order[cut:])], [examples[i] for i in sorted(order[:cut])]
