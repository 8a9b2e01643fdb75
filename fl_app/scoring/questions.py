"""What an attack can be asked that answers with scores of candidates: one entry each, from which its scores follow."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.core.observation import Candidates, Key
from fl_app.experiment.assets import Assets
from fl_app.scoring import attributes, membership
from fl_app.scoring.base import Measure
from fl_app.scoring.membership import Believed
from fl_app.scoring.target import Row
from fl_app.store.files import RunError, load_tensors, save_tensors

FILE = "judged.safetensors"
"""Beside scores.jsonl: all candidates that were judged, with the truth about them."""


class Question(NamedTuple):
    """One question: the truth about the candidates of a target, and what scores of all targets come to."""

    truth: Callable[[Assets, Key, Candidates, str], Tensor]
    """int8 (candidates,): 1 yes, 0 no, -1 neither; the text is what stands behind the question's colon."""
    rows: Callable[[Mapping[Key, Believed]], dict[Key, Row]]
    measures: Mapping[str, Measure]
    floor: Callable[[Mapping[Key, Believed]], Row]
    """What is reached by somebody who has seen nothing."""


QUESTIONS: dict[str, Question] = {
    "attribute": Question(attributes.attribute, attributes.attribute_rows, attributes.ATTRIBUTE, attributes.attribute_floor),
    "labels": Question(attributes.most_frequent, attributes.label_rows, attributes.LABELS, attributes.label_floor),
    "membership": Question(membership.membership, membership.rows_of, membership.MEASURES, lambda _: membership.floor()),
    "property": Question(attributes.having, attributes.property_rows, attributes.PROPERTY, attributes.property_floor),
}


def question_of(text: str) -> Question | None:
    """The question that an attack answered, "attribute:sex" say; None if it is none of these."""
    return QUESTIONS.get(text.partition(":")[0])


def save_judged(folder: Path, question: str, believed: Mapping[Key, Believed]) -> None:
    """Keep all scores with the truth, so that curves over several runs can be drawn from them."""
    numbers = torch.tensor([len(one.scores) for one in believed.values()])
    keys = torch.tensor(list(believed)).repeat_interleave(numbers, 0)
    tensors = {name: torch.cat([getattr(one, name) for one in believed.values()]) for name in Believed._fields}
    save_tensors(folder / FILE, {**tensors, "round": keys[:, 0], "client": keys[:, 1]}, {"question": question})


def load_judged(folder: Path) -> Believed:
    """The scores of all targets' candidates and what they are; RunError if the file is damaged."""
    tensors, _ = load_tensors(folder / FILE)
    found = [tensors.get(name) for name in Believed._fields]
    scores, truth = found
    if scores is None or truth is None or scores.ndim != 1 or truth.shape != scores.shape or truth.dtype != torch.int8:
        raise RunError(f"{folder / FILE} does not hold scores and what is true of them")
    return Believed(scores, truth)
