"""`closed_form`: sentences from the gradients of trained word and position tables, by least squares (ours)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adversary.base import Attack, AttackError, Guess
from adversary.labels import LabelRule, as_gradient, infer
from adversary.text.bag_of_words import bag, longest, rows_of
from adversary.text.network import PLACES, sentence, space_of
from fl_app.core.observation import Observation, Task
from fl_app.core.text import Tokens

EXACT = 1e-3
"""Relative distance that a sentence may leave of the word table's gradient and still be proved (ours)."""


@dataclass(frozen=True, kw_only=True)
class ClosedForm(Attack):
    """The word at each place: words and places are added before all else, so a word's row is the sum of its places' rows.

    Row_t = sum over j with x_j = t of dL/dP_j. With one sentence of at most as many places as the model is wide, the places
    of each word follow by least squares, exactly, and the loss proves it. Of a batch dL/dP_j is a sum over sentences: the
    words of each place follow where no word occurs twice, and which sentence they are from does not.
    """

    of_text: ClassVar[bool] = True
    proof: ClassVar[float | None] = EXACT
    labels: LabelRule = "count"

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Solve each target by itself."""
        space, answers = space_of(task), []
        for one, stream in zip(seen, streams, strict=True):
            gradient = as_gradient(one)
            rows = rows_of(gradient).double()
            if PLACES not in gradient:
                raise AttackError("the position table is frozen or not the model's: use bag_of_words")
            places = gradient[PLACES].double()[: longest(gradient, space)]
            words = bag(rows, "threshold", one.num_examples * space.length)
            y = infer(self.labels, one, task, stream).to(rows.device)
            if one.num_examples == 1:
                x, loss = alone(rows, places, words, space)
            else:
                x, loss = several(rows, places, words, one.num_examples, space), torch.ones(())
            answers.append((x.to(rows.device), y, loss.to(next(iter(one.params.values())))))
        return Guess.stacked(answers)


def alone(rows: Tensor, places: Tensor, words: Tensor, space: Tokens) -> tuple[Tensor, Tensor]:
    """(ids (1, length), relative distance) of one sentence; 1 where places cannot be told apart."""
    if not len(words):
        return sentence([], space)[None], torch.ones(())
    own = rows[words]
    shares = torch.linalg.lstsq(places.T, own.T, driver="gelsd").solution  # (places, words), ideally 0 and 1
    chosen = shares.argmax(1)
    sums = torch.zeros_like(own).index_add_(0, chosen, places)
    left = (sums - own).norm() / own.norm().clamp_min(1e-30)
    alike = int(torch.linalg.matrix_rank(places, rtol=1e-9)) < len(places)
    return sentence(words[chosen].tolist(), space)[None], torch.ones(()) if alike else left


def several(rows: Tensor, places: Tensor, words: Tensor, number: int, space: Tokens) -> Tensor:
    """Ids (examples, length): at each place the words whose rows explain it best, without knowing of which sentence."""
    found = torch.zeros(number, space.length, dtype=torch.int64)
    if len(words):
        shares = torch.linalg.lstsq(rows[words].T, places.T, driver="gelsd").solution  # (words, places)
        best = words[shares.topk(min(number, len(words)), dim=0).indices]
        found[: len(best), : len(places)] = best.cpu()
    return found
