"""Files of generators: named by all that they were made of, checked when they are read, and never code."""

import json
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from adversary.base import AttackError
from adversary.learned.decoder_training import GeneratorTraining
from fl_app.core.places import cache_dir, there
from fl_app.core.spec import SpecError
from fl_app.models.generator import Design, Generator
from fl_app.store.files import RunError, checksum, load_tensors, save_tensors

FORMAT = "thorns-generator-1"
NAME = re.compile(r"[0-9a-f]{32}")
"""What generators of the cache are called: a hash of what they were made of, the same on every machine."""
ADVICE = "make one with `thorns train-generator DATASET` and name it: generator='...'"
CEILING = "ceiling"


@dataclass(frozen=True, kw_only=True)
class GeneratorFacts:
    """What a file says about its generator."""

    design: Design
    training: GeneratorTraining
    data: str
    """The public images that it learned from, such as "mnist/test"."""
    images: str
    """A checksum of those images."""
    clients: str
    """The clients' data set: none of its images that clients hold was among them."""

    @property
    def notes(self) -> str:
        """All of this as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def name(self) -> str:
        """What its file is called in the cache."""
        return checksum({}, self.notes)[:32]


class Kept(NamedTuple):
    """A generator, what it was made of, and its own ceiling: the PSNR (n,) of held-out images inverted in their pixels."""

    generator: Generator
    facts: GeneratorFacts
    ceiling: Tensor


def file_of(name: str) -> Path:
    """Where the cache keeps the generator of a name."""
    return cache_dir() / "generators" / f"{name}.safetensors"


def save(kept: Kept, path: Path) -> None:
    """Write a generator with its facts, in one atomic rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {**kept.generator.state_dict(), CEILING: kept.ceiling}
    save_tensors(path, tensors, {"format": FORMAT, "facts": kept.facts.notes, "checksum": checksum(tensors)})
    path.chmod(0o644)  # nothing in it is anybody's secret, and caches are shared


def load(name: str) -> Kept:
    """Read a generator, by its name in the cache or by the path of a file; what is not exactly one is refused by name."""
    path = file_of(name) if NAME.fullmatch(name) else Path(name)
    there(path)
    try:
        now = path.stat()
    except (OSError, ValueError):
        raise AttackError(f"there is no generator {path}; {ADVICE}") from None
    return _load(path.resolve(), now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=4)
def _load(path: Path, _changed: int, _size: int) -> Kept:
    try:
        tensors, notes = load_tensors(path)
    except RunError as error:
        raise AttackError(f"{error}; {ADVICE}") from None
    if notes.get("format") != FORMAT:
        raise AttackError(f"{path} is no generator: its format is {notes.get('format')!r}, not {FORMAT!r}; {ADVICE}")
    try:
        told = json.loads(notes["facts"])
        design = Design(**{**told["design"], "shape": tuple(told["design"]["shape"])})
        training = GeneratorTraining(**told["training"])
        facts = GeneratorFacts(
            design=design,
            training=training,
            **{key: str(told[key]) for key in ("data", "images", "clients")},
        )
    except (ValueError, KeyError, TypeError, SpecError) as error:
        raise AttackError(f"{path} is damaged: what it says about itself cannot be read ({error}); {ADVICE}") from None
    if notes.get("checksum") != checksum(tensors) or not all(bool(value.isfinite().all()) for value in tensors.values()):
        raise AttackError(f"{path} is damaged: it does not have the checksum that it names; delete it and make it again")
    found = tensors.pop(CEILING, torch.empty(0))
    return Kept(rebuilt(design, tensors, str(path)), facts, found)


def rebuilt(design: Design, tensors: dict[str, Tensor], what: str) -> Generator:
    """The generator of a design with such weights; AttackError if they are those of another."""
    with torch.device("meta"):  # a file's word for its size takes no memory
        generator = Generator(design)
    wanted = {name: (value.shape, value.dtype) for name, value in generator.state_dict().items()}
    if wanted != {name: (value.shape, value.dtype) for name, value in tensors.items()}:
        raise AttackError(f"{what} is damaged: its weights are not those of the design that it names; {ADVICE}")
    generator.load_state_dict(tensors, assign=True)
    return generator.eval().requires_grad_(False)
