"""Sentences out of the words that fit each place: those that the first attention turns into the span of the layer behind it.

DAGER tests the inputs of the second block. The layer right behind the first attention has seen the other words, too, costs a
third, and has the gradient of every token even where a single one is pooled (ours).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adversary.search.progress import out_of_time
from adversary.text.spans import First, Span

AT_ONCE = 1024
"""Sentences in one pass."""
SWEEPS, STARTS = 8, 8
"""Times that all places of a sentence are improved at most, and sentences that are improved at once."""
ALIKE = 0.7
"""Share of equal places from which on two sentences count as one, where they are ranked and not proved (the paper's)."""


class Words(NamedTuple):
    """What fits: ids by place, the nearest first, and the places at which sentences may end."""

    at: list[list[int]]
    ends: list[int]
    first: int
    """[CLS], at place 0."""
    last: int
    """[SEP], at an end."""

    def choices(self, place: int, end: int) -> list[int]:
        """What a sentence with this end may have at a place."""
        if place == 0:
            return [self.first]
        return [self.last] if place == end else self.at[place] if place < len(self.at) else []


class Found(NamedTuple):
    """A sentence and the mean distance of its tokens; `whole` if it reaches an end and nothing of it was refused."""

    ids: tuple[int, ...]
    distance: float
    whole: bool


class Judge:
    """How far sentences, as the places of their words among choices, are from the spans: what words give is computed once."""

    def __init__(self, first: First, spans: tuple[Span, Span | None], tolerance: float, choices: list[list[int]]) -> None:
        self.first, self.span, self.tolerance, self.number = first, spans[1], tolerance, len(choices)
        device = first.network.table.device
        most = max(map(len, choices))
        self.ids = torch.tensor([one + [0] * (most - len(one)) for one in choices], device=device)  # (places, choices)
        self.stream = first.stream(self.ids, torch.arange(len(choices), device=device)[:, None])
        entering = first.entering(self.stream)
        self.near = spans[0].distances(entering)
        self.three = first.block.attention.qkv(entering)

    def distances(self, chosen: Tensor) -> Tensor:
        """Of sentences (n, places) the distance of each token, the mean over both spans: (n, places)."""
        return torch.cat([self._distances(part) for part in chosen.split(AT_ONCE)])

    def _distances(self, chosen: Tensor) -> Tensor:
        places = torch.arange(chosen.shape[1], device=chosen.device)
        near = self.near[places, chosen]
        if self.span is None:
            return near
        behind = self.first.behind(self.stream[places, chosen], self.three[places, chosen])
        return (near + self.span.distances(behind)) / 2

    def sentence(self, chosen: Tensor) -> tuple[int, ...]:
        """The ids of one sentence (places,)."""
        return tuple(self.ids[torch.arange(len(chosen), device=chosen.device), chosen].tolist())


def decoded(words: Words, first: First, spans: tuple[Span, Span | None], tolerance: float, beam: int) -> list[Found]:
    """Sentences of a decoder, breadth first: words see those before them, so that each can be tested as it comes."""
    furthest = max(words.ends, default=0)
    # The end is one more choice of each place, its first one.
    choices = [[words.first], *([words.last, *words.choices(place, -1)] for place in range(1, furthest + 1))]
    judge = Judge(first, spans, tolerance, choices)
    device = judge.ids.device
    prefixes, totals = torch.zeros(1, 1, dtype=torch.int64, device=device), torch.zeros(1, device=device)
    found: list[Found] = []
    for place in range(1, furthest + 1):
        tried = torch.arange(0 if place in words.ends else 1, len(choices[place]), device=device)
        if not len(tried):
            break
        following = tried.repeat(len(prefixes))[:, None]
        longer = torch.cat([prefixes.repeat_interleave(len(tried), 0), following], dim=1)
        far = judge.distances(longer)[:, -1]
        sums, passed, ended = totals.repeat_interleave(len(tried)) + far, far < tolerance, following[:, 0] == 0
        for i in (passed & ended).nonzero()[:, 0].tolist():
            found.append(Found(judge.sentence(longer[i]), sums[i].item() / place, True))
        going = (passed & ~ended).nonzero()[:, 0]
        kept = going[sums[going].argsort(stable=True)[:beam]]
        if not len(kept):
            break
        prefixes, totals = longer[kept], sums[kept]
    left = [Found(judge.sentence(one), total, False) for one, total in zip(prefixes, totals.tolist(), strict=True)]
    return [*sorted(found, key=_far), *sorted(left, key=_far)]


def encoded(
    words: Words,
    first: First,
    spans: tuple[Span, Span | None],
    tolerance: float,
    number: int,
    trials: int,
    stream: torch.Generator,
) -> list[Found]:
    """Sentences of an encoder, for each end: words see all others, so whole sentences are improved place by place (ours).

    A few starts at a time, until so many sentences are whole, or so many trials were made.
    """
    found: dict[tuple[int, ...], Found] = {}
    by_end = {end: [words.choices(place, end) for place in range(end + 1)] for end in words.ends if end}
    judges = {end: Judge(first, spans, tolerance, choices) for end, choices in by_end.items() if all(choices)}
    made = 0
    while judges and made < trials:
        for end, judge in judges.items():
            ids, far = _improved(_starts(by_end[end], stream).to(judge.ids.device), by_end[end], judge)
            for one, distance in zip(ids, far.tolist(), strict=True):
                text = judge.sentence(one)
                found[text] = Found(text, distance, distance < tolerance)
            made += STARTS * sum(map(len, by_end[end]))
            if made >= trials or out_of_time():
                break
        if out_of_time() or sum(one.whole for one in found.values()) >= number or tolerance >= 1:
            break
    return sorted(found.values(), key=_far)


def _starts(choices: list[list[int]], stream: torch.Generator) -> Tensor:
    """Random choices (starts, places), but for the first, which has the nearest words; one start if there is no choice."""
    several = any(len(one) > 1 for one in choices)
    starts = torch.stack([torch.randint(len(one), (STARTS if several else 1,), generator=stream) for one in choices], dim=1)
    starts[0] = 0
    return starts


def _improved(ids: Tensor, choices: list[list[int]], judge: Judge) -> tuple[Tensor, Tensor]:
    """Sentences (n, places) with each place at the best of its choices in turn, until none moves; and their distances."""
    best = judge.distances(ids).mean(1)
    for _ in range(SWEEPS):
        before = ids
        for place, options in enumerate(choices):
            if len(options) == 1:
                continue
            trial = ids[:, None].repeat(1, len(options), 1)
            trial[..., place] = torch.arange(len(options), device=ids.device)
            far = judge.distances(trial.flatten(0, 1)).mean(1).view(trial.shape[:2])
            best, chosen = far.min(1)
            ids = trial[torch.arange(len(ids), device=ids.device), chosen]
        if torch.equal(before, ids):
            break
        ids, places = ids.unique(dim=0, return_inverse=True)  # several starts come to the same
        best = best.new_zeros(len(ids)).index_copy_(0, places, best)
    return ids, best


def _far(found: Found) -> tuple[bool, float]:
    return not found.whole, found.distance


def chosen(found: Sequence[Found], number: int, *, proved: bool) -> list[Found]:
    """So many sentences, the nearest first; where they are not proved, those last that are nearly one of the others."""
    picked: list[Found] = []
    for one in found:
        if len(picked) == number:
            break
        if (proved and one.whole) or all(_alike(one.ids, other.ids) < ALIKE for other in picked):
            picked.append(one)
    rest = [one for one in found if one not in picked]
    return [*picked, *rest][:number]


def _alike(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    return sum(a == b for a, b in zip(one, other, strict=False)) / max(len(one), len(other))
