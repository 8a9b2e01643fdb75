"""Sentences out of the words that fit each place: those whose later layers' inputs lie in the later layers' spans."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adversary.text.spans import Span
from fl_app.core.text import PAD
from fl_app.models.text import Transformer

AT_ONCE = 2048
"""Sentences in one pass: a block of width 128 then holds some 30 MB."""
SWEEPS = 8
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


class Judge(NamedTuple):
    """A network and the spans of its first blocks' inputs; what lies further than `tolerance` from the last is refused."""

    network: Transformer
    spans: tuple[Span, ...]
    tolerance: float

    def distances(self, ids: Tensor) -> Tensor:
        """How far each token of sentences (n, length) is from the spans, by block: (n, length, blocks)."""
        found = []
        for part in ids.split(AT_ONCE):
            entered = self.network.entering(self.network.lift(part), len(self.spans))
            pairs = zip(self.spans, entered, strict=True)
            far = torch.stack([span.distances(x) for span, x in pairs], dim=-1)
            found.append(far * (part != PAD)[..., None])
        return torch.cat(found)


class Found(NamedTuple):
    """A sentence and the mean distance of its tokens; `whole` if it reaches an end and nothing of it was refused."""

    ids: tuple[int, ...]
    distance: float
    whole: bool


def decoded(words: Words, judge: Judge, beam: int) -> list[Found]:
    """Sentences of a decoder, breadth first: a token's layers depend on those before it, so that each can be tested at once."""
    device = judge.network.table.device
    prefixes = torch.tensor([[words.first]], device=device)
    totals = torch.zeros(1, device=device)
    found: list[Found] = []
    for place in range(1, 1 + max(words.ends, default=0)):
        plain = words.at[place] if place < len(words.at) else []
        tried = [*plain, *([words.last] if place in words.ends else [])]
        if not tried or not len(prefixes):
            break
        following = torch.tensor(tried, device=device).repeat(len(prefixes))[:, None]
        longer = torch.cat([prefixes.repeat_interleave(len(tried), 0), following], dim=1)
        far = judge.distances(longer)[:, -1]
        passed = far[:, -1] < judge.tolerance
        if not bool(passed.any()):
            break
        sums = totals.repeat_interleave(len(tried)) + far.mean(-1)
        ended = longer[:, -1] == words.last
        for i in (passed & ended).nonzero()[:, 0].tolist():
            found.append(Found(tuple(longer[i].tolist()), sums[i].item() / (place + 1), True))
        going = (passed & ~ended).nonzero()[:, 0]
        kept = going[sums[going].argsort(stable=True)[:beam]]
        if not len(kept):
            break
        prefixes, totals = longer[kept], sums[kept]
    left = [Found(tuple(ids.tolist()), total, False) for ids, total in zip(prefixes, totals.tolist(), strict=True)]
    return [*sorted(found, key=_far), *sorted(left, key=_far)]


def encoded(words: Words, judge: Judge, restarts: int, stream: torch.Generator) -> list[Found]:
    """Sentences of an encoder, for each end: words see all others, so whole sentences are improved place by place (ours)."""
    found: dict[tuple[int, ...], Found] = {}
    for end in words.ends:
        choices = [[words.first], *words.at[1:end], [words.last]]
        if len(choices) != end + 1 or not all(choices):
            continue
        free = [place for place, one in enumerate(choices) if len(one) > 1]
        starts = torch.tensor([[one[0] for one in choices]]).repeat(restarts if free else 1, 1)
        for place in free:  # the first start has the nearest words of all
            draws = torch.randint(len(choices[place]), (len(starts) - 1,), generator=stream)
            starts[1:, place] = torch.tensor(choices[place])[draws]
        ids, far = _improved(starts.to(judge.network.table.device), choices, free, judge)
        for one, distance in zip(ids.tolist(), far.tolist(), strict=True):
            found[tuple(one)] = Found(tuple(one), distance, distance < judge.tolerance)
    return sorted(found.values(), key=_far)


def _improved(ids: Tensor, choices: list[list[int]], free: list[int], judge: Judge) -> tuple[Tensor, Tensor]:
    """Sentences (n, length) with each place at the best of its choices in turn, until none moves; and their distances."""
    best = _mean(judge.distances(ids))
    for _ in range(SWEEPS):
        before = ids.clone()
        for place in free:
            tried = torch.tensor(choices[place], device=ids.device)
            trial = ids[:, None].repeat(1, len(tried), 1)
            trial[..., place] = tried
            far = _mean(judge.distances(trial.flatten(0, 1))).view(trial.shape[:2])
            best, chosen = far.min(1)
            ids = trial[torch.arange(len(ids), device=ids.device), chosen]
        if torch.equal(before, ids):
            break
    return ids, best


def _mean(far: Tensor) -> Tensor:
    return far.mean((1, 2))


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
