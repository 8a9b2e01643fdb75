"""The evaluation network D of Refiner (section 3.3, Appendix D): how large a share of an image is uniform noise.

Of text (Appendix F) it is the share of random words: `word_evaluator` trains it, and all else is the same.
"""

import hashlib
import json
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from client_defenses.tools.evaluator_networks import EvaluatorTraining, Shape, build_network
from fl_app.core.local import Tensors
from fl_app.core.places import cache_dir, there
from fl_app.core.spec import SpecError

FORMAT = "thorns-evaluator-1"
NAME = re.compile(r"[0-9a-f]{32}")
"""What networks of the cache are called: a hash of what they were made of, the same on every machine."""
ADVICE = "make one with `thorns train-evaluator` and pass it as refiner(evaluator='...')"


class EvaluatorError(ValueError):
    """An evaluation network that cannot be had or used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class WordTable:
    """The word table that a network for text knows."""

    digest: str
    """A checksum of its vectors, so that no other table passes for it."""
    special: tuple[int, ...] = ()
    """The ids that stand for no word: they are neither replaced nor drawn."""


@dataclass(frozen=True, kw_only=True)
class EvaluatorFacts:
    """What a file says about its network."""

    shape: Shape
    """(channels, height, width) of the images that it takes, or (length, dim + 1) of lifted words."""
    training: EvaluatorTraining = field(default_factory=EvaluatorTraining)
    data: str = ""
    """The data set that it was trained on, as "name/part"."""
    images: str = ""
    """A checksum of those images, or of the rows of text."""
    table: WordTable | None = None
    """Of text: whose word vectors it takes."""

    @property
    def what(self) -> str:
        """What it takes, for people."""
        return f"{'images' if self.table is None else 'word vectors'} of shape {self.shape}"

    @property
    def notes(self) -> str:
        """All of this as JSON; a network for images has no word about tables, so that its name is what it was."""
        found = asdict(self)
        if self.table is None:
            del found["table"]
        return json.dumps(found, sort_keys=True)


class Evaluator(NamedTuple):
    """A network, (n, *shape) -> (n,) in [0, 1], with its facts."""

    network: nn.Module
    facts: EvaluatorFacts

    def __call__(self, x: Tensor) -> Tensor:
        """The share of noise in each image, or of random words in each text, float32 (n,); differentiable."""
        if tuple(x.shape[1:]) != self.facts.shape:
            raise EvaluatorError(f"this evaluation network takes {self.facts.what}, not {tuple(x.shape[1:])}; {ADVICE}")
        found: Tensor = self.network(x.float())
        return found.flatten()


def mix(x: Tensor, share: Tensor | float, noise: Tensor) -> Tensor:
    """(1 - share) x + share noise."""
    return (1 - share) * x + share * noise


def train(
    images: Tensor, training: EvaluatorTraining, data: str = "", checksum: str = "", on_step: Callable[[], None] = lambda: None
) -> Evaluator:
    """Train on public images (n, channels, height, width), uint8 or floats in [0, 1]: regression to the share of noise."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not len(images):
        raise EvaluatorError(f"an evaluation network learns from images (n, 1 or 3, height, width), not {tuple(images.shape)}")
    channels, height, wide = images.shape[1:]
    facts = EvaluatorFacts(shape=(channels, height, wide), training=training, data=data, images=checksum)

    def drawn(chosen: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        x = _stark(_unit(images[chosen]), training.stark, rng)
        share = torch.randint(training.levels, (len(x), 1, 1, 1), generator=rng) / (training.levels - 1)
        return mix(x, share, torch.rand(x.shape, generator=rng)), share.flatten()

    return fitted(facts, len(images), drawn, on_step)


Draw = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""(which examples, a generator) -> (x (n, *shape) with noise, the share of it in each (n,))."""


def fitted(facts: EvaluatorFacts, number: int, drawn: Draw, on_step: Callable[[], None]) -> Evaluator:
    """A network that has learned the shares of noise in what is drawn from so many examples, by their squared error."""
    training = facts.training
    network = build_network(facts.shape, training.width, training.seed)
    rng = torch.Generator().manual_seed(training.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=training.lr)
    cycle = OneCycleLR(optimizer, training.lr, total_steps=training.steps + 1) if training.decay else None
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(training.steps):
        if not len(order):
            order = torch.randperm(number, generator=rng)
        chosen, order = order[: training.batch_size], order[training.batch_size :]
        x, share = drawn(chosen, rng)
        loss = (network(x).flatten() - share).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if cycle is not None:
            cycle.step()
        on_step()
    return Evaluator(network.eval().requires_grad_(False), facts)


def _stark(x: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """A share of images (n, *shape) with hard edges between black and white, at a brightness drawn for each."""
    if not share:
        return x
    chosen = torch.rand(len(x), 1, 1, 1, generator=rng) < share
    middle = torch.rand(len(x), 1, 1, 1, generator=rng)
    return torch.where(chosen, ((x - middle) * 20 + 0.5).clamp(0, 1), x)


def noise_error(evaluator: Evaluator, x: Tensor) -> float:
    """Mean absolute error of the share of noise, over the shares 0, 0.1, ..., 1 of it mixed into images (n, *shape)."""
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    shares = [tenth / 10 for tenth in range(11)]
    return sum((evaluator(mix(x, share, noise)) - share).abs().mean().item() for share in shares) / len(shares)


def _unit(x: Tensor) -> Tensor:
    return x.float().div(255) if x.dtype == torch.uint8 else x.float()


def fingerprint_of(tensors: Tensors) -> str:
    """A checksum of names, shapes and values."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def file_of(name: str) -> Path:
    """Where the cache keeps the network of a name."""
    return cache_dir() / "evaluators" / f"{name}.safetensors"


def save(evaluator: Evaluator, path: Path) -> None:
    """Write a network with its facts, in one atomic rename."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in evaluator.network.state_dict().items()}
    notes = {"format": FORMAT, "facts": evaluator.facts.notes, "digest": fingerprint_of(tensors)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="evaluator-") as scratch:
        part = Path(scratch) / path.name
        save_file(tensors, part, metadata=notes)
        part.chmod(0o644)  # nothing in it is anybody's secret, and caches are shared
        part.replace(path)


def load(path: str | Path, device: str | torch.device = "cpu") -> Evaluator:
    """Read a network, by its name in the cache or by the path of a file; what is not exactly one is refused by name."""
    if not str(path):
        raise EvaluatorError(f"there is no evaluation network; {ADVICE}")
    found = file_of(str(path)) if NAME.fullmatch(str(path)) else Path(path)
    there(found)
    try:
        found.open("rb").close()  # safetensors calls a file that may not be read missing
        now = found.stat()
    except OSError as error:
        raise EvaluatorError(f"the evaluation network {found} cannot be read ({error.strerror}); {ADVICE}") from error
    return _load(found.resolve(), now.st_mtime_ns, now.st_size, str(device))


@lru_cache(maxsize=4)
def _load(path: Path, _changed: int, _size: int, device: str) -> Evaluator:
    try:
        with safe_open(path, "pt") as stored:
            notes = dict(stored.metadata() or {})
            tensors: Tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise EvaluatorError(f"{path} is damaged ({error}); delete it and train it again") from error
    facts = _facts(path, notes)
    with torch.device("meta"):  # a file's word for its size takes no memory
        wanted = build_network(facts.shape, facts.training.width).state_dict()
    if tensors.keys() != wanted.keys():
        odd = sorted(tensors.keys() ^ wanted.keys())
        raise EvaluatorError(f"{path} is no evaluation network: {', '.join(odd)} missing or unknown")
    for name, value in tensors.items():
        if (value.shape, value.dtype) != (wanted[name].shape, wanted[name].dtype):
            raise EvaluatorError(
                f"{path}: {name} is {tuple(value.shape)} {value.dtype}, not {tuple(wanted[name].shape)} float32"
            )
    if notes.get("digest") != fingerprint_of(tensors) or not all(bool(value.isfinite().all()) for value in tensors.values()):
        raise EvaluatorError(f"{path} is damaged: its weights do not have the checksum that it names; train it again")
    network = build_network(facts.shape, facts.training.width)
    network.load_state_dict(tensors)
    return Evaluator(network.to(device).eval().requires_grad_(False), facts)


def _facts(path: Path, notes: dict[str, str]) -> EvaluatorFacts:
    if notes.get("format") != FORMAT:
        raise EvaluatorError(f"{path} is no evaluation network: its format is {notes.get('format')!r}, not {FORMAT!r}")
    try:
        told = json.loads(notes["facts"])
        table, shape = told.get("table"), tuple(int(side) for side in told["shape"])
        if len(shape) != (3 if table is None else 2) or min(shape) < 1 or math.prod(shape) > 2**24:
            raise ValueError(f"nothing has the shape {told['shape']}")
        known = table and WordTable(digest=str(table["digest"]), special=tuple(int(one) for one in table["special"]))
        training = EvaluatorTraining(**told["training"])
        return EvaluatorFacts(
            shape=shape, training=training, data=str(told["data"]), images=str(told["images"]), table=known or None
        )
    except (ValueError, KeyError, TypeError, SpecError) as error:
        raise EvaluatorError(f"{path} is damaged: what it says about itself cannot be read ({error})") from error
