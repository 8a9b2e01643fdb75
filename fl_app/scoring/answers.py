"""What an attack answered about one target, read from disk and held against the truth."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.core.observation import Key
from fl_app.scoring.base import Metric, Tools
from fl_app.scoring.score import score
from fl_app.scoring.target import ByTruth, Row, TargetScore
from fl_app.store.reconstructions import CandidateScores, guess_path, load_answer

ANSWER = "the answer"
"""What an answer is called that is none of its members' own."""


class ScoredAnswer(NamedTuple):
    """The score of a target, and its reconstructions x (n, *shape) in the order of the truth; None if there are none."""

    target: TargetScore
    x: Tensor | None = None
    believed: CandidateScores | None = None
    """What it believes of candidates, if it answered with that."""


def score_answer(
    folder: Path,
    key: Key,
    truth: tuple[Tensor, Tensor],
    failures: Mapping[Key, str],
    metrics: Mapping[str, Metric],
    tools: Tools,
) -> ScoredAnswer:
    """Score what an attack's folder holds about a target; scores of candidates are handed on, to be judged together."""
    path = guess_path(folder, key)
    if key in failures or not path.exists():
        return _failed(key, failures.get(key, "there is no reconstruction"))
    try:
        answer = load_answer(path)
        if isinstance(answer, CandidateScores):
            return ScoredAnswer(_done(key, answer.notes), believed=answer)
        scores = score(answer.x, answer.y, *truth, metrics, tools)
        row = scores.row()
        control = {} if answer.control is None else score(answer.control, answer.y, *truth, metrics, tools).row()
        members = {
            name: row if torch.equal(x, answer.x) and torch.equal(y, answer.y) else score(x, y, *truth, metrics, tools).row()
            for name, (x, y) in answer.others.items()
            if bool(x.isfinite().all())  # one that diverged costs no more than itself
        }
    except ValueError as error:
        return _failed(key, str(error))
    target = _done(key, answer.notes, loss=answer.loss, values=row, unavailable=scores.unavailable)
    target = replace(target, by_truth=_worst(row, members, metrics), control=control)
    return ScoredAnswer(target, answer.x[scores.order])


def _worst(answered: Row, members: Mapping[str, Row], metrics: Mapping[str, Metric]) -> dict[str, ByTruth]:
    """Metric -> the member that leaks most by it; the answer is one of them, if it was made of several."""
    found = {}
    for name, metric in metrics.items() if members else ():
        reached = [(row.get(name), member) for member, row in (*members.items(), (ANSWER, answered))]
        known = [ByTruth(value, member) for value, member in reached if value is not None and math.isfinite(value)]
        if known:
            found[name] = max(known, key=lambda one: metric.leak(one.value))
    return found


def _done(
    key: Key,
    notes: Mapping[str, str],
    *,
    loss: float | None = None,
    values: Mapping[str, float | None] | None = None,
    unavailable: Mapping[str, str] | None = None,
) -> TargetScore:
    return TargetScore(
        round=key[0],
        client=key[1],
        status="done",
        values=values or {},
        unavailable=unavailable or {},
        loss=loss,
        attack=notes.get("attack", ""),
        ledger=notes.get("ledger", ""),
        visibility=notes.get("visibility", ""),
        seconds=float(notes["seconds"]) if "seconds" in notes else None,
    )


def _failed(key: Key, reason: str) -> ScoredAnswer:
    return ScoredAnswer(TargetScore(round=key[0], client=key[1], status="failed", reason=reason))
