"""What contracts are tried on: small networks, targets of one example each, and weights that fit them."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from adversary.base import LEAST_PUBLIC, Public
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Candidates, Knowledge, Observation, Task
from fl_app.core.space import Images, Space
from fl_app.core.table import Column, Rows
from fl_app.core.text import Tokens, Vocabulary
from fl_app.models.fronts import PIXEL, Imprint, Loki
from fl_app.models.text import bert
from fl_app.models.vit import vit

SIDE, CLASSES, TARGETS = 8, 4, 3
ASKED = 20
"""Candidates beside those that a target used."""
TABLE = Rows((Column("kind", ("a", "b", "c", "d")), *(Column(f"number {i}") for i in range(SIDE * SIDE - 4))))
TEXT = Tokens(Vocabulary.numbered(60), 8)
FITTED, FIT_RATE = 300, 1.0
"""Steps by which weights fit the targets, and their rate."""


class Case(NamedTuple):
    """Targets of one example each: what is seen of them, and what an attack is to find."""

    seen: list[Observation]
    task: Task
    x: Tensor
    """(targets, 1, *shape)."""
    public: Public


def pictures(y: Tensor, rng: torch.Generator) -> Tensor:
    """Smooth blobs in [0, 1] that look a little like others of their class, (number, 1, side, side)."""
    own = torch.rand(len(y), 1, 3, 3, generator=rng)
    coarse = (own + torch.rand(CLASSES, 1, 3, 3, generator=torch.Generator().manual_seed(13))[y]) / 2
    return nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=True)


def _convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 12, 5, padding=2, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(192, CLASSES))


def _linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.Sigmoid(), nn.Linear(32, CLASSES))


def _pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(108, CLASSES))


def _gated() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def _tabular() -> nn.Module:
    return nn.Sequential(nn.Linear(SIDE * SIDE, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def _transformer() -> nn.Module:
    return vit((1, SIDE, SIDE), CLASSES, patch=4, dim=8, depth=1, heads=2)


def _worded() -> nn.Module:
    return bert((TEXT.length, TEXT.size), CLASSES, dim=32, depth=2, heads=2, freeze=False)


def sentences(y: Tensor, rng: torch.Generator) -> Tensor:
    """Sentences of three to six words, those of a class with a word of its own, (number, length)."""
    x = TEXT.noise(len(y), rng)
    x[:, 1] = TEXT.vocabulary.words[y]
    for row, end in zip(x, torch.randint(4, TEXT.length, (len(y),), generator=rng).tolist(), strict=True):
        row[end], row[end + 1 :] = TEXT.vocabulary.sep, 0
    return x


def _fronted(front: nn.Module) -> nn.Module:
    """A network behind the block of a malicious server: bins of brightness, all with the same way out."""
    with torch.no_grad():
        rows, bias, out = (front.get_parameter(name) for name in ("bins.weight", "bins.bias", "out.weight"))
        slope = float(len(bias)) if isinstance(front, Loki) else 1.0
        rows.fill_(slope / (SIDE * SIDE * PIXEL))
        bias.copy_(-slope * torch.linspace(0, 1, len(bias) + 1)[:-1])
        out.fill_(0.01)
        if isinstance(front, Loki):
            front.conv.weight[0, 0, 1, 1] = PIXEL
    return nn.Sequential(OrderedDict(front=front, net=_linear()))


def _imprinted() -> nn.Module:
    return _fronted(Imprint((1, SIDE, SIDE), 32, sparse=False))


def _loki() -> nn.Module:
    return _fronted(Loki((1, SIDE, SIDE), 32, 2))


def _fished() -> nn.Module:
    """A network of whose last layer one class is left."""
    model = _convolutional()
    with torch.no_grad():
        last = model.get_submodule("3")
        last.get_parameter("weight")[1:] = 0
        last.get_parameter("bias").copy_(torch.tensor([0.0, 1000.0, 1000.0, 1000.0]))
    return model


# The second for attacks that need a network without convolutions, the third for those that need ReLU and max pooling,
# the fourth for those that need a linear layer with a ReLU, the fifth for those that need patches, the others for those
# of malicious servers, the last two for those that need columns and words.
NETWORKS = (_convolutional, _linear, _pooled, _gated, _transformer, _imprinted, _loki, _fished, _tabular, _worded)
SPACES: dict[Callable[[], nn.Module], Space] = {_tabular: TABLE, _worded: TEXT}
"""What the examples of a network are, where they are no images."""


def case_of(network: Callable[[], nn.Module], fitted: int = 0) -> Case:
    """Targets at random weights, or at weights that so many steps fitted to them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = network()
    draw, rule = torch.Generator().manual_seed(11), LocalRule(batch_size=1)
    y, known = torch.arange(TARGETS) % CLASSES, torch.arange(LEAST_PUBLIC) % CLASSES
    space = SPACES.get(network, Images((1, SIDE, SIDE)))

    def examples(y: Tensor) -> Tensor:
        return sentences(y, draw) if space is TEXT else space.clamp(pictures(y, draw).view(-1, *space.shape))

    x, y = examples(y)[:, None], y[:, None]
    params = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(fitted):
        slope = Step(params, model, x[:, 0], y[:, 0]).gradient()
        params = {name: value - FIT_RATE * slope[name] for name, value in params.items()}
    public = Public(examples(known), known)
    # What each target used is among the candidates of all, so that an attack which is asked can tell it from the others.
    asked = Candidates(torch.cat([x[:, 0].clone(), public.x[:ASKED]]), torch.cat([y[:, 0], known[:ASKED]]))
    seen = [
        Observation(
            params=params,
            update=local_update(model, params, *one, rule),
            rule=rule,
            num_examples=1,
            server_round=1,
            client=place,
            knowledge=Knowledge(candidates=asked),
        )
        for place, one in enumerate(zip(x, y, strict=True))
    ]
    return Case(seen, Task(model, space, CLASSES), x, public)
