"""What a metric is: how its values are shown and judged, what it needs, and the function that computes them."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from torch import Tensor, nn

from fl_app.core.local import Tensors
from fl_app.core.table import Rows
from fl_app.scoring.text import Text

Need = Literal["judge", "evaluator", "lpips", "rows", "text"]
Judge = tuple[nn.Module, Tensors]
"""A classifier that was trained without a defense, and its weights."""
PLACES = ("tables", "curves", "files")
NO_IMAGES = "it is for images, and these examples are none"
Kind = Literal["any", "images", "rows", "text"]


class Unavailable(RuntimeError):
    """A metric that cannot be computed here; the message is the reason, to be reported in place of a number."""


class MetricError(RuntimeError):
    """A metric whose function does not do what it must; the message names the metric."""


class Threshold(NamedTuple):
    """The value beyond which a reconstruction counts as a leak."""

    value: float
    source: str
    """Where it comes from."""
    shared: str = ""
    """The name by which it is changed if several metrics share it; else it has the name of its metric."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How the values of a metric are shown and judged."""

    title: str
    higher_leaks: bool
    """Whether a higher value means that more leaked."""
    unit: str = ""
    digits: int = 3
    threshold: Threshold | None = None
    shown: Literal["tables", "curves", "files"] = "tables"
    """Where a report shows it: in tables, curves and files, in curves and files, or in files alone."""
    of: Kind = "any"
    """Of which examples it says something."""
    question: str = ""
    """What it judges: answers to this question, or reconstructions if it is empty."""

    def leak(self, value: float) -> float:
        """The value with its sign turned where lower means more leaked: larger is always worse for the client."""
        return value if self.higher_leaks else -value

    def leaks(self, value: float | None) -> bool:
        """Whether a value lies beyond the threshold."""
        return value is not None and self.threshold is not None and self.leak(value) > self.leak(self.threshold.value)

    def text(self, value: float | None) -> str:
        """The number as shown."""
        return "-" if value is None else f"{round(value, self.digits) + 0.0:.{self.digits}f}"  # no minus zero

    def to_dict(self) -> dict[str, Any]:
        """The facts as they are kept in metrics.json."""
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(Measure)}
        return facts | {"threshold": self.threshold._asdict() if self.threshold else None}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """The opposite of `to_dict`; ValueError if something is missing or has a wrong type."""
        kinds = {"title": str, "higher_leaks": bool, "unit": str, "digits": int, "shown": str}
        for key, kind in kinds.items():
            if type(facts.get(key)) is not kind:
                raise ValueError(f"{key} must be {kind.__name__}, not {facts.get(key)!r}")
        if facts["shown"] not in PLACES or not 0 <= facts["digits"] <= 12:
            raise ValueError(f"shown must be one of {', '.join(PLACES)}, and digits lie between 0 and 12")
        limit, threshold = facts.get("threshold"), None
        if limit is not None:
            threshold = Threshold(float(limit["value"]), str(limit["source"]), str(limit["shared"]))
            if not math.isfinite(threshold.value):
                raise ValueError(f"a threshold must be a finite number, not {threshold.value}")
        of: Kind = facts.get("of", "any")  # older files do not say
        if of not in get_args(Kind):
            raise ValueError(f"of must be one of {', '.join(get_args(Kind))}")
        question = str(facts.get("question", ""))
        return cls(**{key: facts[key] for key in kinds}, threshold=threshold, of=of, question=question)


class Tools(NamedTuple):
    """What some metrics need beside the examples, as far as it is at hand."""

    judge: Judge | None = None
    evaluator: Path | None = None
    lpips: bool = True
    rows: Rows | None = None
    """What the examples are, if they are rows of a table and no images."""
    text: Text | None = None
    """What the examples are, if they are text."""

    def has(self, need: Need | None) -> bool:
        """Whether a need is met."""
        return need is None or bool(getattr(self, need))


class Matched(NamedTuple):
    """The reconstructions of one target in the order of its true examples: x (n, *shape), of text ids, else in [0, 1]."""

    x: Tensor
    y: Tensor
    true_x: Tensor
    true_y: Tensor
    tools: Tools = Tools()


@dataclass(frozen=True, kw_only=True)
class Metric(Measure):
    """A measure that can be computed: `values` is a pure function, Matched -> (n,), that may raise Unavailable(reason)."""

    values: Callable[[Matched], Tensor]
    needs: Need | None = None
    """Without what it needs a metric is left out."""

    def __call__(self, pairs: Matched) -> Tensor:
        """The values as float64 (n,), one per example."""
        if self.of == "images" and (pairs.tools.rows is not None or pairs.tools.text is not None):
            raise Unavailable(NO_IMAGES)
        try:
            found = self.values(pairs)
        except Unavailable:
            raise
        except Exception as error:  # it may be anybody's code
            raise MetricError(f"the metric {self.title} cannot be computed: {type(error).__name__}: {error}") from error
        if not isinstance(found, Tensor) or found.shape != pairs.true_y.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise MetricError(
                f"the metric {self.title} must give a tensor ({len(pairs.true_y)},), one value per example, not {shape}"
            )
        return found.detach().double().cpu()
