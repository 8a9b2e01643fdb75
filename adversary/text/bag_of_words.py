"""`bag_of_words`: which words a batch holds, read off the gradient of a trained word table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from adversary.base import Attack, AttackError, Facts, Guess, Informed
from adversary.labels import LabelRule, as_gradient, infer
from adversary.text.network import PLACES, WORDS, sentence, space_of
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.text import PAD, Tokens

Select = Literal["threshold", "top"]
ROW = 1e-7
"""Size of a row beside the largest up to which it is rounding."""


@dataclass(frozen=True, kw_only=True)
class BagOfWords(Attack):
    """The words whose rows of the word table's gradient are not zero: all of a batch, but neither order nor sentence.

    Row t is the sum of dL/dz over all places with the word t, so that words which are not there have rows of zeros. They are
    dealt out over the sentences, those with the largest rows first. The loss is the share of rows that are not zero.
    """

    of_text: ClassVar[bool] = True
    select: Select = "threshold"
    """threshold: rows that are not zero; top: the largest ones before the widest gap, for updates full of noise."""
    labels: LabelRule = "count"

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The largest rows, as a defense fills those of words that are not there."""
        if defense == "none" or self.select == "top":
            return []
        return [Informed("ranked", replace(self, select="top"), "takes the largest rows, not those other than zero")]

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Read each target by itself."""
        space, answers = space_of(task), []
        for one, stream in zip(seen, streams, strict=True):
            rows = rows_of(as_gradient(one))
            words = bag(rows, self.select, one.num_examples * space.length)
            y = infer(self.labels, one, task, stream).to(rows.device)
            answers.append((dealt(words, one, space), y, (rows.norm(dim=1) > 0).float().mean()))
        return Guess.stacked(answers)


def rows_of(gradient: Tensors) -> Tensor:
    """The gradient of the word table, (vocabulary, dim); AttackError if it is frozen."""
    if WORDS not in gradient:
        raise AttackError("the word table is frozen or not the model's, so that its gradient tells no words: use dager")
    return gradient[WORDS]


def bag(rows: Tensor, select: Select, most: int) -> Tensor:
    """The words of a batch, the largest rows first, at most so many: int64 (words,)."""
    size = rows.double().norm(dim=1)
    size[PAD] = 0
    order: Tensor = size.argsort(descending=True, stable=True)[:most]
    if not bool(size.any()):
        return order[:0]
    if select == "threshold":
        return order[size[order] > ROW * size.max()]
    logs = size[order].clamp_min(1e-30).log()
    return order[: int((logs[:-1] - logs[1:]).argmax()) + 1]


def longest(gradient: Tensors, space: Tokens) -> int:
    """The number of places that any sentence of a batch reaches, by the gradient of the position table if there is one."""
    if PLACES not in gradient:
        return space.length
    size = gradient[PLACES].double().norm(dim=1)
    return int((size > ROW * size.max()).sum()) or space.length


def dealt(words: Tensor, seen: Observation, space: Tokens) -> Tensor:
    """Words as sentences between [CLS] and [SEP], one after the other in turn, (examples, length)."""
    vocabulary, number = space.vocabulary, seen.num_examples
    plain = [word for word in words.tolist() if word not in vocabulary.special]
    own = [plain[i::number] for i in range(number)]
    rows = [sentence([vocabulary.cls, *one[: space.length - 2], vocabulary.sep], space) for one in own]
    return torch.stack(rows).to(words.device)
