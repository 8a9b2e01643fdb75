"""Banks of public images for RecUP-FL: examples of the test split, which no client holds, with one attribute."""

import torch

from client_defenses.tools import bank
from fl_app import data
from fl_app.core.space import attribute_of
from fl_app.core.spec import SpecError
from fl_app.data.splits import PUBLIC

MOST = 500
"""Images of a bank: a round uses a few of each class and value."""


def ensure(clients: str, column: str, split: str) -> str:
    """The name of the bank for an attribute of a data set's images, made of those that are public."""
    if split != "official":
        raise SpecError("recup with an attribute of images needs split='official': its public images must be nobody's")
    dataset = data.load(clients)
    public = dataset.test.part(slice(0, PUBLIC))
    try:
        a = attribute_of(dataset.space, column, public.x, public.a)
    except ValueError as error:
        raise SpecError(f"recup: {error}") from None
    chosen = torch.randperm(len(a), generator=torch.Generator().manual_seed(0))[:MOST]
    return bank.save(bank.Bank(public.x[chosen], public.y[chosen], a[chosen]))
