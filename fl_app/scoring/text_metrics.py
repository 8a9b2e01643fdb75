"""The metrics of text, all of them in percent."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor

from fl_app.core.text import Tokens
from fl_app.scoring import text
from fl_app.scoring.base import Matched, Metric, Threshold, Unavailable
from fl_app.scoring.text import Rouge, Text

Place = Literal["tables", "curves", "files"]
TokenScore = Callable[[Tokens, Tensor, Tensor], Tensor]
"""(what ids stand for, reconstructions (n, length), truth (n, length)) -> (n,)."""
HALF = "ours: half of a sentence; blind answers stay below, docs/text.md"
NONE = "ours: not one sentence"


def _text(pairs: Matched) -> Text:
    if pairs.tools.text is None:
        raise Unavailable("these examples are no text")
    return pairs.tools.text


def _metric(
    title: str, values: Callable[[Matched], Tensor], threshold: Threshold | None = None, *, shown: Place = "tables"
) -> Metric:
    return Metric(
        title=title,
        unit="%",
        digits=1,
        higher_leaks=True,
        of="text",
        needs="text",
        threshold=threshold,
        shown=shown,
        values=values,
    )


def _of_tokens(values: TokenScore) -> Callable[[Matched], Tensor]:
    return lambda pairs: values(_text(pairs).tokens, pairs.x, pairs.true_x)


def _rouge(kind: Rouge, *, special: bool = False) -> Callable[[Matched], Tensor]:
    return _of_tokens(partial(text.rouge, kind=kind, special=special))


def _rare(pairs: Matched) -> Tensor:
    found = text.rare_recall(_text(pairs), pairs.x, pairs.true_x)
    if found is None:
        raise Unavailable("these texts have no rare words")
    return found


TEXT: dict[str, Metric] = {
    "rouge1": _metric("ROUGE-1", _rouge("rouge1"), Threshold(50.0, HALF)),
    "rouge2": _metric("ROUGE-2", _rouge("rouge2")),
    "rouge_l": _metric("ROUGE-L", _rouge("rougeL"), Threshold(50.0, HALF)),
    "token_f1": _metric("token F1", _of_tokens(text.f1), Threshold(50.0, HALF)),
    "exact": _metric("exact sentences", _of_tokens(text.exact), Threshold(0.0, NONE)),
    "rare_recall": _metric("rare words found", _rare, shown="curves"),
    "token_precision": _metric("token precision", _of_tokens(text.precision), shown="files"),
    "token_recall": _metric("token recall", _of_tokens(text.recall), shown="files"),
    "token_position": _metric("tokens at their place", _of_tokens(text.position), shown="files"),
    "rouge1_lamp": _metric("ROUGE-1 as LAMP", _rouge("rouge1", special=True), shown="files"),
    "rouge2_lamp": _metric("ROUGE-2 as LAMP", _rouge("rouge2", special=True), shown="files"),
    "rouge_l_lamp": _metric("ROUGE-L as LAMP", _rouge("rougeL", special=True), shown="files"),
}
