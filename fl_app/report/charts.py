"""What is drawn, without how: points with intervals, lines, levels, and the Pareto front of utility against leakage."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fl_app.analysis.conditions import Condition, floors_of, mean, measures_shown
from fl_app.scoring.base import Measure
from fl_app.scoring.score import summarize


class Point(NamedTuple):
    """A value with its intervals; `number` is the condition's row in the summary, `label` says what it is."""

    x: float
    y: float
    number: int
    label: str
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None


class Series(NamedTuple):
    """Points that belong together, in order; `color` is the place of its family in the legend."""

    name: str
    color: int
    points: list[Point]


class Level(NamedTuple):
    """A horizontal line: a blind floor, or a threshold."""

    name: str
    y: float
    threshold: bool = False


@dataclass(frozen=True)
class Chart:
    """One picture; `name` is that of its file."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    levels: list[Level] = field(default_factory=list)
    front: list[Point] = field(default_factory=list)
    """The conditions that no other beats in both, by utility."""
    dots: bool = True
    """Points with marks and bands, or plain lines."""
    log: bool = False
    """Whether values span orders of magnitude."""
    log_x: bool = False
    """Whether what they are drawn against does."""


def colors_of(conditions: Sequence[Condition]) -> dict[str, int]:
    """Family -> its colour: undefended is 0, the others in the order of the plan."""
    names = dict.fromkeys(one.family for one in conditions if not one.undefended)
    return {"none": 0, **{name: place for place, name in enumerate(names, 1)}}


def pareto(points: Sequence[Point], measure: Measure) -> list[Point]:
    """The points than which no other has both more utility and less leakage, by utility."""

    def beaten(one: Point) -> bool:
        mine = measure.leak(one.y)
        return any(
            other.x >= one.x and measure.leak(other.y) <= mine and (other.x > one.x or measure.leak(other.y) < mine)
            for other in points
        )

    return sorted({point for point in points if not beaten(point)}, key=lambda point: point.x)


def trade_offs(conditions: Sequence[Condition], colors: dict[str, int], suffix: str = "") -> list[Chart]:
    """Leakage to the worst attacker against PMM (accuracy, if there is no undefended cell), one chart per measure."""
    relative = all(one.pmm for one in conditions if one.accuracies)
    charts = []
    for metric, measure in measures_shown(conditions, "tables", "curves").items():
        points = {one.label: point for one in conditions if (point := _point(one, metric, relative)) is not None}
        if not points:
            continue
        several = len({one.defense for one in conditions}) > 1
        grouped: dict[tuple[str, str], list[Point]] = {}
        for one in conditions:
            if one.label in points:
                apart = str(one.others) if several else ""
                grouped.setdefault((one.family, apart), []).append(points[one.label])
        charts.append(
            Chart(
                f"{metric.replace('_', '-')}{suffix}",
                title_of(measure),
                "PMM (accuracy / undefended)" if relative else "accuracy",
                axis_of(measure),
                [Series(family, colors[family], found) for (family, _), found in grouped.items()],
                levels_of(conditions, metric, measure),
                pareto(list(points.values()), measure) if len(points) > 1 else [],
            )
        )
    return charts


def _point(condition: Condition, metric: str, relative: bool) -> Point | None:
    utility, measure = list((condition.pmm if relative else condition.accuracies).values()), condition.measures[metric]
    worst, x = condition.worst(metric), mean(utility)
    if worst is None or x is None:
        return None
    found = worst.summary(metric)
    assert found.mean is not None
    low, high = (min(utility), max(utility)) if len(utility) > 1 else (None, None)
    label = f"{condition.label}: {measure.title} {measure.text(found.mean)}, {x:.3f} ({worst.name})"
    return Point(x, found.mean, condition.number, label, low, high, found.low, found.high)


def title_of(measure: Measure) -> str:
    """What a chart of a measure is called."""
    return f"{measure.title}: {'higher' if measure.higher_leaks else 'lower'} leaks more"


def axis_of(measure: Measure) -> str:
    """A measure with its unit."""
    return f"{measure.title} [{measure.unit}]" if measure.unit else measure.title


def levels_of(conditions: Sequence[Condition], metric: str, measure: Measure) -> list[Level]:
    """The blind floors and the threshold of a metric."""
    blind = {name: summarize(rows, metric).mean for name, rows in floors_of(conditions).items()}
    found = [Level(name, value) for name, value in blind.items() if value is not None]
    return found + ([Level("leak limit", measure.threshold.value, threshold=True)] if measure.threshold else [])
