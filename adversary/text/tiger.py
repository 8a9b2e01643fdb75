"""`tiger`: the sentences whose layer inputs explain most of two layers' gradients, for updates that a defense has changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from adversary.base import Attack, AttackError, Facts, Guess, Informed
from adversary.labels import LabelRule, as_gradient
from adversary.search.optimizers import Count
from adversary.search.progress import out_of_time
from adversary.text.blending import Blend, unblended
from adversary.text.dager import EXACT
from adversary.text.explained import explained
from adversary.text.network import sentence, space_of, transformer_at
from adversary.text.spans import ATTENTION, BEHIND, First, noise_factor
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.text import Tokens

APART = 1e-3
"""Squared part of a direction outside of the others' span below which what it adds is rounding."""


@dataclass(frozen=True, kw_only=True)
class Tiger(Attack):
    """After TIGER (2026), of which only a summary was at hand: whole sentences by the spans of two layers, no labels needed.

    The paper's: the distance of vectors to the spans of the first attention's gradient and of what comes behind it, a term
    that the span be covered, no second derivative. Ours: words of the table in the place of vectors under Adam with a
    Gaussian prior; each in turn becomes the one that leaves least of the gradients unexplained, given all others. Under
    Gaussian noise that is the likelihood, with the slopes of the tokens left open. The loss is that of `dager`.
    """

    of_text: ClassVar[bool] = True
    proof: ClassVar[float | None] = EXACT
    sweeps: Count = 5
    """Times that each word is chosen anew, at most."""
    blend: Blend = 0.0
    """Share of random words that a defense blended in: words are looked for as the rest of themselves and a mean word."""
    labels: LabelRule = "count"

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """Words as refiner blends them; it takes every other defense for noise."""
        return unblended(self, defense)

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Read each target by itself."""
        answers = []
        for one, stream in zip(seen, streams, strict=True):
            x = self._target(one, task)
            y, distance = explained(x, one, task, self.labels, stream)
            answers.append((x, y.to(x.device), distance))
        return Guess.stacked(answers)

    def _target(self, seen: Observation, task: Task) -> Tensor:
        space, network, gradient = space_of(task), transformer_at(task, seen.params), as_gradient(seen)
        first = First(network, self.blend, space.vocabulary.words.to(network.table.device))
        layers = [layer for layer in (_Layer.of(gradient, name) for name in (ATTENTION, BEHIND)) if layer is not None]
        if not layers:
            raise AttackError("the gradients of the first block are zero and tell nothing")
        words = _Sentences(first, layers, space, seen)
        for _ in range(self.sweeps):
            if out_of_time() or not words.improved():
                break
        rows = [sentence(one.tolist(), space) for one in words.ids]
        return torch.stack(rows).to(network.table.device)


class _Layer(NamedTuple):
    """A linear layer's gradient, in units of its noise; the last input of it is 1, and goes with the bias.

    It is not longer than that, as noise on it would be (against `Span`).
    """

    energy: Tensor
    """(dim + 1, dim + 1): what inputs have to explain."""
    span: Tensor
    """The same with directions of at most length 1, by how far they stand out of the noise."""
    first: bool
    """Whether words enter it alone."""

    @classmethod
    def of(cls, gradient: Tensors, name: str) -> "_Layer | None":
        """The layer of a name; None if nothing is seen of it."""
        weight = gradient[f"{name}.weight"]
        both = torch.cat([weight, gradient[f"{name}.bias"][:, None]], dim=1).double()
        if not bool(both.any()):
            return None
        _, sizes, vectors = torch.linalg.svd(both, full_matrices=False)
        noise = sizes.median().clamp_min(1e-7 * sizes[0])
        edge = noise_factor(both.shape) * noise
        left = torch.where(sizes > edge, (sizes.square() - noise.square()).clamp_min(0).sqrt(), 0)
        energy, span = ((one[:, None] * vectors).to(weight) for one in (len(both) ** 0.5 * left / noise, left / sizes))
        return cls(energy, span, name == ATTENTION)

    def near(self, tried: Tensor) -> Tensor:
        """How much of the directions of inputs (..., dim) lies in the span, in [0, 1]: (...)."""
        return (F.normalize(_one(tried), dim=-1) @ self.span.T).square().sum(-1)

    def gains(self, tried: Tensor, others: Tensor) -> Tensor:
        """How much more inputs (n, dim) explain, each by itself, beside others (m, dim): (n,)."""
        basis = torch.linalg.qr(_one(others).T).Q
        left = self.energy - (self.energy @ basis) @ basis.T
        new = F.normalize(_one(tried), dim=1)
        apart = 1 - (new @ basis).square().sum(1)
        gained: Tensor = (new @ left.T).square().sum(1) / apart.clamp_min(APART)
        return gained

    def explained(self, inputs: Tensor) -> Tensor:
        """How much inputs (n, m, dim) explain together: (n,)."""
        basis = torch.linalg.qr(_one(inputs).transpose(1, 2)).Q
        total: Tensor = (self.energy @ basis).square().sum((1, 2))
        return total


def _one(vectors: Tensor) -> Tensor:
    return F.pad(vectors, (0, 1), value=1.0)


class _Sentences:
    """What stands at each place of some sentences, and what enters the layers then."""

    def __init__(self, first: First, layers: list[_Layer], space: Tokens, seen: Observation) -> None:
        self.first, self.layers, vocabulary = first, layers, space.vocabulary
        device = first.network.table.device
        self.plain, self.places = vocabulary.words.to(device), torch.arange(space.length, device=device)
        mean = first.mean(self.places)
        around = self._mixed(mean)
        if seen.knowledge.lengths is not None:
            self.ends = [int(one) - 1 for one in seen.knowledge.lengths]
        else:  # where [SEP] fits best
            fits = self._near(first.stream(torch.full_like(self.places, vocabulary.sep), self.places), around)
            best = fits[2:].topk(min(seen.num_examples, space.length - 2)).indices.add(2).tolist()
            self.ends = (best * seen.num_examples)[: seen.num_examples]
        self.streams = first.stream(self.plain, self.places[: max(self.ends), None])  # (places, words, dim)
        self.ids = [torch.zeros(end + 1, dtype=torch.int64, device=device) for end in self.ends]
        for ids in self.ids:
            ids[0], ids[-1] = vocabulary.cls, vocabulary.sep
        for place in range(1, max(self.ends)):
            inside = [ids for ids, end in zip(self.ids, self.ends, strict=True) if place < end]
            nearest = self._near(self.streams[place], around[place]).topk(len(inside)).indices
            for ids, word in zip(inside, self.plain[nearest], strict=True):
                ids[place] = word

    def _mixed(self, stream: Tensor) -> Tensor:
        """What attention adds to the words of one sentence (places, dim)."""
        attention = self.first.block.attention
        return attention.mixed(attention.qkv(self.first.entering(stream))[None])[0]

    def _enters(self, layer: _Layer, stream: Tensor, mixed: Tensor) -> Tensor:
        return self.first.entering(stream) if layer.first else self.first.after(stream + mixed)

    def _near(self, stream: Tensor, mixed: Tensor) -> Tensor:
        return torch.stack([layer.near(self._enters(layer, stream, mixed)) for layer in self.layers]).sum(0)

    def improved(self) -> bool:
        """Choose each word anew, then swap words, the attention of the others as it was; whether any changed."""
        before = [ids.clone() for ids in self.ids]
        for i, ids in enumerate(self.ids):
            streams = [self.first.stream(one, self.places[: len(one)]) for one in self.ids]
            mixed = [self._mixed(one) for one in streams]
            inputs = [[self._enters(layer, *both) for both in zip(streams, mixed, strict=True)] for layer in self.layers]
            for place in range(1, len(ids) - 1):
                gains, tried = torch.zeros(len(self.plain), device=ids.device), self.streams[place]
                for layer, own in zip(self.layers, inputs, strict=True):
                    rest = torch.cat([*own[:i], own[i][:place], own[i][place + 1 :], *own[i + 1 :]])
                    gains += layer.gains(self._enters(layer, tried, mixed[i][place]), rest)
                best = int(gains.argmax())
                ids[place] = self.plain[best]
                for layer, own in zip(self.layers, inputs, strict=True):
                    own[i][place] = self._enters(layer, tried[best], mixed[i][place])
            self._swapped(i, mixed[i], inputs)
        return not all(torch.equal(one, other) for one, other in zip(before, self.ids, strict=True))

    def _swapped(self, i: int, mixed: Tensor, inputs: list[list[Tensor]]) -> None:
        """Two words of a sentence in each other's place, wherever that explains more."""
        length = len(self.ids[i])
        for place in range(1, length - 2):
            later = torch.arange(place, length - 1, device=mixed.device)
            tried = self.ids[i].repeat(len(later), 1)
            tried[:, place] = self.ids[i][later]
            tried[torch.arange(len(later)), later] = self.ids[i][place]
            streams, total = self.first.stream(tried, self.places[:length]), torch.zeros(len(later), device=mixed.device)
            for layer, own in zip(self.layers, inputs, strict=True):
                rest = torch.cat([*own[:i], *own[i + 1 :], own[i][:0]]).expand(len(later), -1, -1)
                total += layer.explained(torch.cat([self._enters(layer, streams, mixed), rest], dim=1))
            self.ids[i] = tried[int(total.argmax())]
