"""`dager`: the words of each place by the span of the first attention's inputs, sentences by that of what it makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Attack, AttackError, Facts, Guess, Informed
from adversary.labels import LabelRule, as_gradient
from adversary.search.optimizers import Count
from adversary.text.assembly import Words, chosen, decoded, encoded
from adversary.text.bag_of_words import Select
from adversary.text.blending import Blend, unblended
from adversary.text.completion import filled, leaves_out
from adversary.text.explained import explained
from adversary.text.network import sentence, space_of, transformer_at
from adversary.text.spans import ATTENTION, BEHIND, First, Span, span_of
from fl_app.core.observation import Observation, Task
from fl_app.core.text import Tokens

EXACT = 1e-3
"""Relative distance of the update that proved sentences may leave (ours); rounding leaves 1e-5."""


@dataclass(frozen=True, kw_only=True)
class Dager(Attack):
    """DAGER (Petrov et al. 2024): no search over vectors, all words are tried against the span of a layer's gradient.

    Exact while a batch has fewer tokens than the model is wide. The loss is the relative distance of the sentences' update.
    """

    of_text: ClassVar[bool] = True
    proof: ClassVar[float | None] = EXACT
    select: Select = "threshold"
    """threshold: words whose distance is below it; top: the nearest ones, for updates that a defense has changed."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """Distance of a word from the first span; the paper's 1e-5 loses true words in float32."""
    second: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Mean distance of a sentence's words from both spans."""
    rank_rtol: Annotated[float, Field(gt=0, lt=1)] = 1e-7
    """Singular values up to this share of the largest are rounding (ours): true ones are above 1e-6, rounding below 3e-8."""
    candidates: Count = 8
    """Words that are tried at a place with select=top."""
    beam: Count = 1000
    """Sentences that are followed at once."""
    trials: Count = 20_000
    """Sentences that are tried before those of an encoder are what they are, at the least once for each end (ours)."""
    blend: Blend = 0.0
    """Share of random words that a defense blended in: words are looked for as the rest of themselves and a mean word."""
    complete: bool = False
    """Take entries that are exactly zero for left out, and fill them in (ours): against masks and light pruning."""
    labels: LabelRule = "count"

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """A ranking, as a defense moves spans, and true words are still nearer than others."""
        if defense == "none":
            return []
        ranked = Informed("ranked", replace(self, select="top"), "takes the nearest words in the place of those within a span")
        whole = Informed("completed", replace(self, complete=True), "fills in what the defense left out, by the few directions")
        return [
            *([] if self.complete or not leaves_out(defense) else [whole]),
            *([] if self.select == "top" else [ranked]),
            *unblended(replace(self, select="top"), defense),
        ]

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Read each target by itself."""
        pairs = zip(seen, streams, strict=True)
        return Guess.stacked([self._target(one, task, stream) for one, stream in pairs])

    def _target(self, seen: Observation, task: Task, stream: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        proving, number = self.select == "threshold", seen.num_examples
        space, network, gradient = space_of(task), transformer_at(task, seen.params), as_gradient(seen)
        if self.complete:
            gradient = filled(gradient, (ATTENTION, BEHIND))
        # Query, key and value at once: the first token of a decoder has no gradient at its query.
        near, behind = (span_of(gradient, layer, self.select, self.rank_rtol) for layer in (ATTENTION, BEHIND))
        if near is None:
            width = network.table.shape[1]
            raise AttackError(f"the update has as many directions as the model is wide ({width}): more tokens than it can tell")
        if behind is not None and behind.rank < near.rank:
            behind = None  # of a last block behind one pooled token: true words are not in it
        first = First(network, self.blend, space.vocabulary.words.to(network.table.device))
        spans, tolerance = (near, behind), self.second if proving and behind else 1.0
        words = self._words(first, near, space, seen)
        if network.post:
            found = encoded(words, first, spans, tolerance, number, self.trials, stream)
        else:
            found = decoded(words, first, spans, tolerance, self.beam)
        rows = [sentence(list(one.ids), space) for one in chosen(found, number, proved=proving)]
        rows += [sentence([], space)] * (number - len(rows))
        x = torch.stack(rows).to(near.outside.device)
        y, distance = explained(x, seen, task, self.labels, stream)
        return x, y.to(x.device), distance

    def _words(self, first: First, span: Span, space: Tokens, seen: Observation) -> Words:
        """The words that fit each place, until nothing does, and the places at which [SEP] fits."""
        vocabulary, number = space.vocabulary, seen.num_examples
        plain: list[list[int]] = []
        everything = torch.arange(space.size, device=span.outside.device)
        last = torch.full((space.length,), torch.inf)
        for place in range(space.length):
            far = span.distances(first.entering(first.stream(everything, torch.full_like(everything, place))))
            last[place] = far[vocabulary.sep]
            far[list(vocabulary.special)] = torch.inf
            most = self.beam if self.select == "threshold" else self.candidates * number
            near, order = far.topk(min(len(far), most), largest=False)
            fits = near < (self.threshold if self.select == "threshold" else torch.inf)
            plain.append(order[fits].tolist())
            if place and not plain[-1] and last[place] >= self.threshold:
                break
        if seen.knowledge.lengths is not None:
            ends = sorted({int(one) - 1 for one in seen.knowledge.lengths})
        elif self.select == "threshold":
            ends = (last < self.threshold).nonzero()[:, 0].tolist()
        else:
            ends = sorted(last[1:].topk(min(number, space.length - 1), largest=False).indices.add(1).tolist())
        return Words(plain, ends, vocabulary.cls, vocabulary.sep)
