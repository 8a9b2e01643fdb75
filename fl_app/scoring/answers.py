"""What an attack answered about one target, read from disk and held against the truth."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fl_app.core.observation import Key
from fl_app.scoring.base import Metric, Tools
from fl_app.scoring.score import score
from fl_app.scoring.target import TargetScore
from fl_app.store.reconstructions import CandidateScores, guess_path, load_answer


class ScoredAnswer(NamedTuple):
    """The score of a target, and its reconstructions x (n, *shape) in the order of the truth; None if there are none."""

    target: TargetScore
    x: Tensor | None = None


def score_answer(
    folder: Path,
    key: Key,
    truth: tuple[Tensor, Tensor],
    failures: Mapping[Key, str],
    metrics: Mapping[str, Metric],
    tools: Tools,
) -> ScoredAnswer:
    """Score what an attack's folder holds about a target; scores of candidates are an answer without image metrics."""
    path = guess_path(folder, key)
    if key in failures or not path.exists():
        return _failed(key, failures.get(key, "there is no reconstruction"))
    try:
        answer = load_answer(path)
        if isinstance(answer, CandidateScores):
            return ScoredAnswer(_done(key, answer.notes))
        scores = score(answer.x, answer.y, *truth, metrics, tools)
    except ValueError as error:
        return _failed(key, str(error))
    target = _done(key, answer.notes, loss=answer.loss, values=scores.row(), unavailable=scores.unavailable)
    return ScoredAnswer(target, answer.x[scores.order])


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
