"""What is drawn, without how: points with intervals, lines, and the Pareto front of utility against leakage."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fl_app.analysis.measures import DRAWN, Measure
from fl_app.analysis.settings import Setting, floors_of, mean
from fl_app.scoring.score import summarize

WIDE = 50
"""Values further apart than this factor are shown on a logarithmic axis."""


class Point(NamedTuple):
    """A value with its intervals; `number` is the setting's row in the summary, `label` says what it is."""

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
    """A horizontal line: a blind guess, or a threshold."""

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
    """The settings that no other beats in both, by utility."""
    dots: bool = True
    """Points with marks and bands, or plain lines."""
    log: bool = False
    """Whether values span orders of magnitude."""


def colors_of(settings: Sequence[Setting]) -> dict[str, int]:
    """Family -> its colour: undefended is 0, the others in the order of the plan."""
    names = dict.fromkeys(setting.family for setting in settings if not setting.undefended)
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


def trade_offs(settings: Sequence[Setting], colors: dict[str, int], suffix: str = "") -> list[Chart]:
    """Leakage to the worst attacker against PMM (accuracy, if there is no undefended cell), one chart a measure."""
    relative = all(setting.pmm for setting in settings if setting.accuracies)
    charts = []
    for measure in DRAWN:
        points = {setting.label: point for setting in settings if (point := _point(setting, measure, relative)) is not None}
        if not points:
            continue
        several = len({setting.defense for setting in settings}) > 1
        grouped: dict[tuple[str, str], list[Point]] = {}
        for setting in settings:
            if setting.label in points:
                apart = str(setting.others) if several else ""
                grouped.setdefault((setting.family, apart), []).append(points[setting.label])
        charts.append(
            Chart(
                f"{measure.key.replace('_', '-')}{suffix}",
                f"{measure.title}: {'higher' if measure.higher_leaks else 'lower'} leaks more",
                "PMM (accuracy / undefended)" if relative else "accuracy",
                f"{measure.title} [{measure.unit}]" if measure.unit else measure.title,
                [Series(family, colors[family], found) for (family, _), found in grouped.items()],
                _levels(settings, measure),
                pareto(list(points.values()), measure) if len(points) > 1 else [],
            )
        )
    return charts


def _point(setting: Setting, measure: Measure, relative: bool) -> Point | None:
    utility = list((setting.pmm if relative else setting.accuracies).values())
    worst, x = setting.worst(measure), mean(utility)
    if worst is None or x is None:
        return None
    found = worst.summary(measure.key)
    assert found.mean is not None
    low, high = (min(utility), max(utility)) if len(utility) > 1 else (None, None)
    label = f"{setting.label}: {measure.title} {measure.text(found.mean)}, {x:.3f} ({worst.name})"
    return Point(x, found.mean, setting.number, label, low, high, found.low, found.high)


def _levels(settings: Sequence[Setting], measure: Measure) -> list[Level]:
    found = []
    for name, rows in floors_of(settings).items():
        blind = summarize([{measure.key: row.get(measure.key)} for row in rows], measure.key)
        if blind.mean is not None:
            found.append(Level(name, blind.mean))
    return found + ([Level("leak limit", measure.threshold, threshold=True)] if measure.threshold is not None else [])


def by_round(settings: Sequence[Setting], colors: dict[str, int], suffix: str = "") -> list[Chart]:
    """Accuracy, composed epsilon and PSNR of the worst attacker by round, where there is more than one round to show."""
    drawn = [
        ("accuracy", "Accuracy by round", "accuracy", [_metric(setting, "accuracy") for setting in settings]),
        ("epsilon", "Composed epsilon by round", "epsilon", [_metric(setting, "epsilon") for setting in settings]),
        ("psnr-by-round", "PSNR of the worst attacker by round", "PSNR [dB]", [_leak(setting) for setting in settings]),
    ]
    charts = []
    for name, title, label, lines in drawn:
        series = [
            Series(setting.label, colors[setting.family], points)
            for setting, points in zip(settings, lines, strict=True)
            if len(points) > 1
        ]
        if series:
            heights = [point.y for one in series for point in one.points]
            log = name == "epsilon" and max(heights) > WIDE * min(heights) > 0
            charts.append(Chart(f"{name}{suffix}", title, "round", label, series, dots=False, log=log))
    return charts


def _metric(setting: Setting, key: str) -> list[Point]:
    """A metric of training by round, the mean over the seeds; at most some fifty points."""
    found: dict[int, list[float]] = {}
    for run in setting.trained.values():
        for line in run.metrics:
            if key in line and (key == "accuracy" or line["round"]):
                found.setdefault(int(line["round"]), []).append(float(line[key]))
    rounds = sorted(found)
    every = max(1, len(rounds) // 50)
    kept = [one for place, one in enumerate(rounds) if place % every == 0 or one == rounds[-1]]
    return [Point(one, sum(found[one]) / len(found[one]), setting.number, setting.label) for one in kept]


def _leak(setting: Setting) -> list[Point]:
    worst = setting.worst()
    if worst is None:
        return []
    found = [(one, worst.summary("psnr", one).mean) for one in worst.rounds]
    return [Point(one, value, setting.number, setting.label) for one, value in found if value is not None]
