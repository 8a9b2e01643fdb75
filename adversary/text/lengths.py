"""How long sentences are, where nobody says so."""

import torch
from torch import Tensor

from adversary.base import AttackError
from adversary.labels import as_gradient
from adversary.text.bag_of_words import longest
from adversary.text.network import PLACES, space_of, transformer_at
from adversary.text.spans import ATTENTION, First, span_of
from fl_app.core.observation import Observation, Task


def lengths_of(seen: Observation, task: Task) -> Tensor:
    """Tokens of each sentence, int64 (examples,): as granted, by the position table's gradient, or by where [SEP] fits best."""
    if seen.knowledge.lengths is not None:
        return seen.knowledge.lengths.cpu()
    space, gradient, number = space_of(task), as_gradient(seen), seen.num_examples
    if PLACES in gradient and number == 1:
        return torch.tensor([longest(gradient, space)])
    first = First(transformer_at(task, seen.params))
    span = span_of(gradient, ATTENTION, "top", 0.0)
    if span is None:
        raise AttackError("the lengths of the sentences do not follow from this update: add --grant lengths")
    places = torch.arange(space.length, device=span.outside.device)
    far = span.distances(first.entering(first.stream(torch.full_like(places, space.vocabulary.sep), places)))
    far[0] = torch.inf
    return (far.topk(min(number, space.length - 1), largest=False).indices + 1).cpu().repeat(number)[:number]
