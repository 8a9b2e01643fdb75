"""`dager`: the words of each place by the span of the first attention's inputs, sentences by that of the second."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Attack, AttackError, Guess
from adversary.labels import LabelRule, as_gradient
from adversary.search.optimizers import Count
from adversary.text.assembly import Judge, Words, chosen, decoded, encoded
from adversary.text.bag_of_words import Select
from adversary.text.explained import explained
from adversary.text.network import sentence, space_of, transformer_at
from adversary.text.spans import Span, span_of, words_at
from fl_app.core.observation import Observation, Task
from fl_app.core.text import Tokens
from fl_app.models.text import Transformer

EXACT = 1e-3
"""Relative distance of the update that proved sentences may leave (ours); rounding leaves 1e-5."""


@dataclass(frozen=True, kw_only=True)
class Dager(Attack):
    """DAGER (Petrov et al. 2024): no search over vectors, all words are tried against the span of a layer's gradient.

    Exact while a batch has fewer tokens than the model is wide. Where the second block's gradient tells nothing (the last one
    with a single pooled token), batches stay unsorted. The loss is the relative distance of the update that the sentences have.
    """

    of_text: ClassVar[bool] = True
    proof: ClassVar[float | None] = EXACT
    select: Select = "threshold"
    """threshold: words whose distance is below it; top: the nearest ones, for updates that a defense has changed."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """Distance of a word from the first span; the paper's 1e-5 loses true words in float32."""
    second: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Distance of a sentence's words from the second span."""
    rank_rtol: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    """Singular values up to this share of the largest are rounding."""
    candidates: Count = 8
    """Words that are tried at a place with select=top."""
    beam: Count = 1000
    """Sentences that are followed at once."""
    restarts: Count = 32
    """Random sentences from which those of an encoder are put together."""
    labels: LabelRule = "count"

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Read each target by itself."""
        pairs = zip(seen, streams, strict=True)
        return Guess.stacked([self._target(one, task, stream) for one, stream in pairs])

    def _target(self, seen: Observation, task: Task, stream: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        proving = self.select == "threshold"
        space, network, gradient = space_of(task), transformer_at(task, seen.params), as_gradient(seen)
        first = span_of(gradient, 0, self.select, self.rank_rtol)
        if first is None:
            width = network.table.shape[1]
            raise AttackError(f"the update has as many directions as the model is wide ({width}): more tokens than it can tell")
        second = span_of(gradient, 1, self.select, self.rank_rtol) if len(network.blocks) > 1 else None
        if second is not None and second.rank < first.rank:
            second = None  # of the last block behind one pooled token: true words are not in it
        judge = Judge(network, (first, second) if second else (first,), self.second if proving and second else 1.0)
        words = self._words(network, first, space, seen)
        found = encoded(words, judge, self.restarts, stream) if network.post else decoded(words, judge, self.beam)
        rows = [sentence(list(one.ids), space) for one in chosen(found, seen.num_examples, proved=proving)]
        rows += [sentence([], space)] * (seen.num_examples - len(rows))
        x = torch.stack(rows).to(first.outside.device)
        y, distance = explained(x, seen, task, self.labels, stream)
        return x, y.to(x.device), distance

    def _words(self, network: Transformer, span: Span, space: Tokens, seen: Observation) -> Words:
        """The words that fit each place, until nothing does, and the places at which [SEP] fits."""
        vocabulary, number = space.vocabulary, seen.num_examples
        plain: list[list[int]] = []
        last = torch.full((space.length,), torch.inf)
        for place in range(space.length):
            far = span.distances(words_at(network, place))
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
