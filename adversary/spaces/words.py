"""Text as a search sees it: a vector for each word, which need not be one of the table's on the way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from adversary.base import AttackError, Public
from adversary.spaces.base import Free, Leap, Parametrisation, Variables
from adversary.text.language import Trigrams
from adversary.text.lengths import lengths_of
from adversary.text.moves import moved
from adversary.text.network import network_at, space_of
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.text import PAD

Number = Annotated[int, Field(ge=0, le=10**6)]
PHASES, FIRST = 27, 3
"""Parts of a search, and those behind which words are not moved about yet (LAMP: 2,000 / 75, from 200 on)."""


@dataclass(frozen=True, kw_only=True)
class Words(Parametrisation):
    """Word vectors between those of [CLS] and [SEP], as many as a sentence is long, and words moved about (LAMP, section 4).

    The answer has the nearest words by cosine. Lengths are those that were granted, or what the update says of them.
    """

    draws: Annotated[int, Field(ge=1, le=10**5)] = 1
    """Starts from N(0, 1) of which the best is taken, and then the best of so many orders of its words."""
    orders: Number = 0
    """Other orders of a sentence's words that are tried in each phase; 0: none."""
    language: Annotated[float, Field(ge=0)] = 0.0
    """What the surprise of a language model counts among orders; needs public text."""
    blend: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of random words that a defense blended in: so much of the mean word is taken out before the nearest is found."""
    iterations: Annotated[int, Field(ge=1)] = 2000
    """Those of the search, by which phases are timed."""

    def learn(self, public: Public, task: Task) -> Tensors:
        """The language model, by name."""
        return dict(Trigrams.counted(public.x, space_of(task).size)._asdict()) if self.language else {}

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """Not without the targets, whose lengths it needs."""
        raise AttackError("the space words needs to know what was seen")

    def over(
        self, targets: Sequence[tuple[Observation, ...]], task: Task, classes: Tensor | None, learned: Tensors
    ) -> Variables:
        """The vectors of some targets' sentences."""
        return _Words(self, [target[0] for target in targets], task, learned)


class _Words(Free):
    def __init__(self, settings: Words, seen: Sequence[Observation], task: Task, learned: Tensors) -> None:
        self.settings, self.space = settings, space_of(task)
        self.table = network_at(task, seen[0].params).table
        vocabulary, lengths = self.space.vocabulary, torch.stack([lengths_of(one, task) for one in seen])
        place = torch.arange(self.space.length)
        self.lengths = lengths.clamp(3, self.space.length)
        behind, last = place >= self.lengths[..., None], place == self.lengths[..., None] - 1
        # The ids of [CLS], [SEP] and [PAD] where they are, and -1 where a word is looked for: (targets, examples, length).
        fixed = torch.full(behind.shape, -1).masked_fill(behind, PAD).masked_fill(last, vocabulary.sep)
        fixed[..., 0] = vocabulary.cls
        self.fixed = fixed.to(self.table.device)
        self.given = torch.cat([self.table[self.fixed.clamp_min(0)], (self.fixed != PAD).to(self.table)[..., None]], dim=-1)
        self.size = self.table[vocabulary.words.to(self.table.device)].norm(dim=1).mean()
        self.plain = vocabulary.words.to(self.table.device)
        self.model = Trigrams.learned(learned) if settings.language else None

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        shape = (seeds, examples, self.space.length, self.table.shape[1])
        return {"x": self.size.cpu() * F.normalize(torch.randn(shape, generator=stream), dim=-1)}

    def inputs(self, z: Tensors) -> Tensor:
        x = F.pad(z["x"], (0, 1), value=1.0)
        return torch.where((self.fixed < 0)[:, None, ..., None], x, self.given[:, None])

    def answer(self, z: Tensors) -> Tensor:
        return self.nearest(z["x"])

    def nearest(self, x: Tensor) -> Tensor:
        """Ids of the words nearest to vectors (targets, seeds, examples, length, dim), special ones where they are."""
        words = F.normalize(self.table[self.plain], dim=1)
        if self.settings.blend:
            x = x - self.settings.blend * self.table[self.plain].mean(0)
        found = torch.stack([self.plain[(F.normalize(one, dim=-1) @ words.T).argmax(-1)] for one in x])
        return torch.where(self.fixed[:, None] < 0, found, self.fixed[:, None])

    def leaps(self, z: Tensors, iteration: int, streams: Sequence[torch.Generator]) -> Iterator[Leap]:
        settings, x = self.settings, z["x"]
        if iteration == 0 and settings.draws > 1:
            drawn = torch.stack([self.draw(settings.draws, x.shape[2], stream)["x"] for stream in streams]).to(x)
            yield Leap({"x": drawn}, x.new_zeros(drawn.shape[:2]))
            for example in range(x.shape[2]):
                yield Leap({"x": self._orders(x, example, settings.draws, streams, wild=True)}, x.new_zeros(drawn.shape[:2]))
        phase = settings.iterations // PHASES or 1
        if not settings.orders or iteration % phase or iteration < FIRST * phase:
            return
        for example in range(x.shape[2]):
            tried = self._orders(x, example, settings.orders, streams)
            cost = tried.new_zeros(tried.shape[:2])
            if self.model is not None:
                cost = settings.language * self.model.surprise(self.nearest(tried)[:, :, example]).to(cost)
            yield Leap({"x": tried}, cost)

    def _orders(
        self, x: Tensor, example: int, number: int, streams: Sequence[torch.Generator], *, wild: bool = False
    ) -> Tensor:
        """X (targets, 1, ...) with so many orders of one example's words, the first as it is: (targets, number, ...)."""
        pairs = zip(streams, self.lengths[:, example].tolist(), strict=True)
        orders = torch.stack([moved(number, length, self.space.length, stream, wild=wild) for stream, length in pairs])
        tried = x.repeat(1, number, *[1] * (x.ndim - 2))
        chosen = orders.to(x.device)[..., None].expand(-1, -1, -1, x.shape[-1])
        tried[:, :, example] = tried[:, :, example].gather(2, chosen)
        return tried
