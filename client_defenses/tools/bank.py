"""Public images with an attribute, from which a client learns what its gradients give away of it (RecUP-FL)."""

import re
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from client_defenses.tools.evaluator import fingerprint_of
from fl_app.core.places import cache_dir, there
from fl_app.core.spec import SpecError

NAME = re.compile(r"[0-9a-f]{32}")
"""What banks of the cache are called: a checksum of what they hold."""


class Bank(NamedTuple):
    """Images x uint8 (n, channels, height, width), their classes y int64 (n,), and which value a int64 (n,) each has."""

    x: Tensor
    y: Tensor
    a: Tensor

    def alike(self, y: Tensor, number: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """For each value `number` images of each class in y (examples,): x (values, examples * number, *shape) in [0, 1], y.

        Where no image of a class has a value, those of other classes that have it stand in.
        """
        wanted, chosen = y.cpu().repeat_interleave(number), []
        for value in range(int(self.a.max()) + 1):
            has = (self.a == value).float()
            fits = has * (self.y == wanted[:, None]) + 1e-9 * has
            chosen.append(torch.multinomial(fits, 1, generator=rng)[:, 0])
        places = torch.stack(chosen)
        return self.x[places].float() / 255, self.y[places]


def file_of(name: str) -> Path:
    """Where the cache keeps the bank of a name."""
    return cache_dir() / "banks" / f"{name}.safetensors"


def save(bank: Bank) -> str:
    """Keep a bank in the cache, in one atomic rename; its name."""
    tensors = {key: value.contiguous() for key, value in bank._asdict().items()}
    path = file_of(name := fingerprint_of(tensors))
    if not there(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="bank-") as scratch:
            part = Path(scratch) / path.name
            save_file(tensors, part)
            part.replace(path)
    return name


@lru_cache(maxsize=4)
def load(name: str) -> Bank:
    """The bank of a name; SpecError if it is not there, or not what it was."""
    if not NAME.fullmatch(name):
        raise SpecError("recup has no public images to learn the attribute from: runs make a bank of them by themselves")
    try:
        tensors = load_file(file_of(name))
    except (SafetensorError, OSError) as error:
        raise SpecError(f"the public images {file_of(name)} cannot be read ({error})") from error
    if fingerprint_of(tensors) != name:
        raise SpecError(f"{file_of(name)} is damaged: delete it, and a run makes it again")
    return Bank(**tensors)
