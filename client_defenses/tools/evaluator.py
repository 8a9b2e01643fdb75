"""The evaluation network D of Refiner (section 3.3, Appendix D): how large a share of an image is uniform noise."""

import hashlib
import json
import math
import re
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from fl_app.core.local import Tensors
from fl_app.core.places import cache_dir
from fl_app.core.spec import Checked, SpecError

ImageShape = tuple[int, int, int]
FORMAT = "thorns-evaluator-1"
NAME = re.compile(r"[0-9a-f]{32}")
"""What networks of the cache are called: a hash of what they were made of, the same on every machine."""
ADVICE = "make one with `thorns train-evaluator` and pass it as refiner(evaluator='...')"


class EvaluatorError(ValueError):
    """An evaluation network that cannot be had or used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class EvaluatorTraining(Checked):
    """How the network is made; the defaults are ours and take less than two minutes, `paper` gives those of the paper."""

    width: Annotated[int, Field(ge=1, le=1024)] = 32
    """Filters of the three convolutions: width, 2 width, 4 width."""
    steps: Annotated[int, Field(ge=1, le=10**8)] = 1500
    """Adam steps on one batch, each image with a share of noise of its own."""
    batch_size: Annotated[int, Field(ge=1, le=10**5)] = 128
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3e-3
    decay: bool = True
    """Let the rate rise and fall along one cycle, which a short training needs."""
    levels: Annotated[int, Field(ge=2, le=10**6)] = 11
    """The shares of noise are 0, 1 / (levels - 1), ..., 1."""
    stark: Annotated[float, Field(ge=0, le=1)] = 0.2
    """The share of images that are made almost black and white, as digits and drawings are and photos are not (ours)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


def paper(images: int) -> EvaluatorTraining:
    """The settings of Appendix D: 128/256/512 filters, 20 epochs in which each batch is mixed 11 times, Adam 1e-4."""
    return EvaluatorTraining(width=128, steps=20 * 11 * math.ceil(images / 128), lr=1e-4, decay=False, stark=0.0)


@dataclass(frozen=True, kw_only=True)
class EvaluatorFacts:
    """What a file says about its network."""

    shape: ImageShape
    """(channels, height, width) of the images that it takes."""
    training: EvaluatorTraining = field(default_factory=EvaluatorTraining)
    data: str = ""
    """The data set that it was trained on, as "name/part"."""
    images: str = ""
    """A checksum of those images."""


class Evaluator(NamedTuple):
    """A network, (n, *shape) in [0, 1] -> (n,) in [0, 1], with its facts."""

    network: nn.Module
    facts: EvaluatorFacts

    def __call__(self, x: Tensor) -> Tensor:
        """The share of noise in each image, float32 (n,); differentiable."""
        if tuple(x.shape[1:]) != self.facts.shape:
            raise EvaluatorError(
                f"this evaluation network takes images of shape {self.facts.shape}, not {tuple(x.shape[1:])}; {ADVICE}"
            )
        found: Tensor = self.network(x.float())
        return found.flatten()


def build_network(shape: ImageShape, width: int, seed: int = 0) -> nn.Module:
    """Three 3x3 convolutions of stride 2 with ReLU, one linear layer, sigmoid."""
    channels, height, wide = shape
    features = 4 * width * math.ceil(height / 8) * math.ceil(wide / 8)
    # torch's initialisers draw from the global generator: borrow it, and leave it as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, width, 3, stride=2, padding=1),
            act1=nn.ReLU(),
            conv2=nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            act2=nn.ReLU(),
            conv3=nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            act3=nn.ReLU(),
            flatten=nn.Flatten(),
            fc=nn.Linear(features, 1),
            share=nn.Sigmoid(),
        )
    return nn.Sequential(layers)


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
    network = build_network(facts.shape, training.width, training.seed)
    rng = torch.Generator().manual_seed(training.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=training.lr)
    cycle = OneCycleLR(optimizer, training.lr, total_steps=training.steps + 1) if training.decay else None
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(training.steps):
        if not len(order):
            order = torch.randperm(len(images), generator=rng)
        chosen, order = order[: training.batch_size], order[training.batch_size :]
        x = _stark(_unit(images[chosen]), training.stark, rng)
        share = torch.randint(training.levels, (len(x), 1, 1, 1), generator=rng) / (training.levels - 1)
        found = network(mix(x, share, torch.rand(x.shape, generator=rng)))
        loss = (found.flatten() - share.flatten()).square().mean()
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
    notes = {"format": FORMAT, "facts": json.dumps(asdict(evaluator.facts)), "digest": fingerprint_of(tensors)}
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
        channels, height, wide = (int(side) for side in told["shape"])
        if min(channels, height, wide) < 1 or channels * height * wide > 2**24:
            raise ValueError(f"no images have the shape {told['shape']}")
        training = EvaluatorTraining(**told["training"])
        return EvaluatorFacts(
            shape=(channels, height, wide), training=training, data=str(told["data"]), images=str(told["images"])
        )
    except (ValueError, KeyError, TypeError, SpecError) as error:
        raise EvaluatorError(f"{path} is damaged: what it says about itself cannot be read ({error})") from error
