"""From features of an update to an example: a linear map for each class, and a network that learns what lines miss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adversary.learned.linear import STRENGTHS, Line, Products
from fl_app.core.local import Tensors

COMPONENTS = 1024
"""Principal components in which examples are answered: 99.7 % of the variance of CIFAR-10, all of that of smaller images."""
LEAST = 16
"""From how many examples of a class on it has a map of its own (ours)."""
HELD_OUT = 0.1
PATIENCE = 2
"""Epochs without a gain on what was held out after which the network is left as it was (ours)."""
LINE, NET = "line/", "net/"


class Known(NamedTuple):
    """Features (n, size) of the updates of examples, which are x (n, pixels) with the classes y (n,)."""

    features: Tensor
    x: Tensor
    y: Tensor
    image: Tensor
    """Of which image each is a version, int64 (n,): what is learned of one says something of its mirror image."""

    def part(self, chosen: Tensor) -> "Known":
        """Some of the examples."""
        return Known(*(value[chosen] for value in self))


Drawn = Callable[[], Tensor]
"""Features of the same examples anew, with other draws of the defense."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the network is trained."""

    hidden: int
    epochs: int
    lr: float
    batch: int


def network(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """An MLP with two hidden layers (LTI, Section 4), whose answer is zero before it is trained."""
    last = nn.Linear(hidden, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), last)


def learned(known: Known, classes: int, training: Training, rng: torch.Generator, anew: Drawn | None = None) -> Tensors:
    """All that `decoded` needs.

    The network learns on top of lines that were fitted to the other half of the examples, as their answers to examples that
    they know are better than they will ever be; it stays as it was where it helps least on those that were held out.
    """
    mean = known.x.mean(0)
    basis = _principal(known.x - mean, min(COMPONENTS, known.x.shape[1]))
    known = known._replace(x=(known.x - mean) @ basis)
    order = torch.rand(int(known.image.max()) + 1, generator=rng).to(known.x.device)
    shown = order[known.image] >= HELD_OUT
    strengths = _chosen(known.part(shown), known.part(~shown), classes)
    found = {"mean": mean, "basis": basis, **_named(LINE, _lines(known, classes, strengths))}
    if training.epochs:
        half = order[known.image] >= (1 + HELD_OUT) / 2
        found |= _trained(known, classes, training, (shown, half, strengths), rng, anew)
    return found


def decoded(learned: Tensors, features: Tensor, y: Tensor) -> Tensor:
    """The examples (n, pixels) that features (n, size) of the classes y stand for, in [0, 1]."""
    found = _along(_below(LINE, learned), features, y)
    if any(name.startswith(NET) for name in learned):
        found = found + _corrected(learned, features, found, y)
    return (learned["mean"] + found @ learned["basis"].T).clamp(0, 1)


def _chosen(known: Known, held: Known, classes: int) -> tuple[float, float]:
    """The strengths, of the line for all classes and of those for each, that say most of examples that were held out."""
    middle, bias = known.features.mean(0), known.x.mean(0)
    products = Products(known.features - middle, known.x - bias)
    errors = [((held.features - middle) @ products.map(one) + bias - held.x).square().mean() for one in STRENGTHS]
    first = STRENGTHS[int(torch.stack(errors).argmin())]
    shared = _Shared(known, products.line(first), classes)
    errors = [(_along(shared.lines(one), held.features, held.y) - held.x).square().mean() for one in STRENGTHS]
    return first, STRENGTHS[int(torch.stack(errors).argmin())]


def _lines(known: Known, classes: int, strengths: tuple[float, float]) -> Tensors:
    """A line for all classes, and of what it misses one for each class."""
    features, wanted = known.features - known.features.mean(0), known.x - known.x.mean(0)
    return _Shared(known, Products(features, wanted).line(strengths[0]), classes).lines(strengths[1])


class _Shared:
    """What the lines of classes of all strengths have in common: the line for all classes, and products by class."""

    def __init__(self, known: Known, line: Line, classes: int) -> None:
        self.middle, self.bias, self.line = known.features.mean(0), known.x.mean(0), line
        self.own: list[tuple[Tensor, Tensor, Products] | None] = []
        missed = known.x - self.bias - line.left_out
        for label in range(classes):
            own = known.y == label
            if int(own.sum()) < LEAST:
                self.own.append(None)
                continue
            features, wanted = known.features[own] - self.middle, missed[own]
            at, off = features.mean(0), wanted.mean(0)
            self.own.append((at, off, Products(features - at, wanted - off)))

    def lines(self, strength: float) -> Tensors:
        """All of them, in half precision, in units of the largest entry."""
        maps, middles, biases = [], [], []
        for own in self.own:
            if own is None:
                maps.append(self.line.map)
                middles.append(self.middle)
                biases.append(self.bias)
                continue
            at, off, products = own
            maps.append(self.line.map + products.map(strength))
            middles.append(self.middle + at)
            biases.append(self.bias + at @ self.line.map + off)
        found = torch.stack(maps)
        unit = found.abs().amax().clamp_min(1e-30)
        return {"map": (found / unit).half(), "unit": unit, "middle": torch.stack(middles), "bias": torch.stack(biases)}


def _along(lines: Tensors, features: Tensor, y: Tensor) -> Tensor:
    """What the line of each one's class says, (n, components)."""
    found = features.new_zeros(len(features), lines["bias"].shape[1])
    for label in y.unique().tolist():
        own = y == label
        centred = features[own] - lines["middle"][label]
        found[own] = lines["bias"][label] + centred @ (lines["map"][label].to(features) * lines["unit"])
    return found


def _inputs(features: Tensor, base: Tensor, y: Tensor, size: Tensor, classes: int) -> Tensor:
    return torch.cat([features / size, base, nn.functional.one_hot(y, classes).to(features)], 1)


def _trained(
    known: Known,
    classes: int,
    training: Training,
    split: tuple[Tensor, Tensor, tuple[float, float]],
    rng: torch.Generator,
    anew: Drawn | None,
) -> Tensors:
    """The network's weights; nothing where none was better than the lines alone on what is not `shown`."""
    (shown, half, strengths), wanted = split, known.x
    first, second = (_lines(known.part(chosen), classes, strengths) for chosen in (half, ~half))

    def base(features: Tensor) -> Tensor:
        """What the lines that do not know an example say of it."""
        found = torch.empty_like(wanted)
        found[half] = _along(second, features[half], known.y[half])
        found[~half] = _along(first, features[~half], known.y[~half])
        return found

    size = known.features.square().mean().sqrt().clamp_min(1e-12)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        net = network(known.features.shape[1] + wanted.shape[1] + classes, training.hidden, wanted.shape[1]).to(known.x)
    features = known.features
    lines = base(features)
    told = _inputs(features[~shown], lines[~shown], known.y[~shown], size, classes)
    missed = (wanted - lines)[~shown]
    least, kept, waited = missed.square().mean(), Tensors(), 0
    optimizer = torch.optim.Adam(net.parameters(), lr=training.lr)
    for epoch in range(training.epochs):
        if epoch and anew is not None:
            features = anew()
            lines = base(features)
        order = shown.nonzero()[:, 0][torch.randperm(int(shown.sum()), generator=rng)]
        for chosen in order.split(training.batch):
            optimizer.zero_grad()
            answer = net(_inputs(features[chosen], lines[chosen], known.y[chosen], size, classes))
            (answer - (wanted - lines)[chosen]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            error = (net(told) - missed).square().mean()
        waited += 1
        if error < least:
            least, kept, waited = error, {name: value.detach().clone() for name, value in net.named_parameters()}, 0
        if waited == PATIENCE:
            break
    return {**_named(NET, kept), "size": size} if kept else {}


def _corrected(learned: Tensors, features: Tensor, base: Tensor, y: Tensor) -> Tensor:
    weights = _below(NET, learned)
    hidden, inputs = weights["0.weight"].shape
    with torch.random.fork_rng(devices=[]):
        net = network(inputs, hidden, base.shape[1]).to(features)
    told = _inputs(features, base, y, learned["size"], inputs - features.shape[1] - base.shape[1])
    with torch.no_grad():
        return torch.as_tensor(functional_call(net, weights, (told,)))


def _principal(x: Tensor, number: int) -> Tensor:
    """The leading principal components of centred examples, (pixels, number); all of them where there are no more."""
    if number == x.shape[1]:
        return torch.eye(number).to(x)
    return torch.as_tensor(torch.linalg.eigh(x.T @ x).eigenvectors[:, -number:].flip(1).contiguous())


def _named(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: value for name, value in tensors.items()}


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
