"""What is drawn by round: accuracy and epsilon of the training, and what leaks where several rounds were attacked."""

from collections.abc import Callable, Sequence
from functools import partial

from fl_app.analysis.conditions import Condition, measures_shown
from fl_app.report.charts import Chart, Level, Point, Series, axis_of, levels_of, title_of
from fl_app.report.tables import short

WIDE = 50
"""Values further apart than this factor are shown on a logarithmic axis."""
SOME = 50
"""About so many points of a long training are drawn."""
Line = Callable[[Condition], list[Point]]


def training(conditions: Sequence[Condition], colors: dict[str, int], suffix: str = "") -> list[Chart]:
    """Accuracy and composed epsilon by round, means over the seeds, where there is more than one round to show."""
    deltas = sorted({one.delta for one in conditions if one.delta is not None})
    at = f" at delta {', '.join(map(short, deltas))}"
    named = {"accuracy": ("Accuracy by round", "accuracy"), "epsilon": ("Composed epsilon by round", f"epsilon{at}")}
    charts = []
    for name, (title, label) in named.items():
        charts += _chart(f"{name}{suffix}", title, label, _series(conditions, colors, partial(_metric, name)))
    return charts


def leakage(conditions: Sequence[Condition], colors: dict[str, int], suffix: str = "") -> list[Chart]:
    """What the worst attacker of each round reached, by measure, where several rounds were attacked."""
    charts = []
    for metric, measure in measures_shown(conditions, "tables").items():
        series = _series(conditions, colors, partial(_leak, metric))
        limits = [one for one in levels_of(conditions, metric, measure) if one.threshold]
        name = f"{metric.replace('_', '-')}-by-round{suffix}"
        charts += _chart(name, title_of(measure), axis_of(measure), series, limits)
    return charts


def _series(conditions: Sequence[Condition], colors: dict[str, int], line: Line) -> list[Series]:
    return [Series(one.label, colors[one.family], points) for one in conditions if len(points := line(one)) > 1]


def _chart(name: str, title: str, label: str, series: list[Series], levels: Sequence[Level] = ()) -> list[Chart]:
    """A chart, unless there is nothing to draw."""
    if not series:
        return []
    heights = [point.y for one in series for point in one.points]
    log = name.startswith("epsilon") and max(heights) > WIDE * min(heights) > 0
    return [Chart(name, title, "round", label, series, list(levels), dots=False, log=log)]


def _metric(key: str, condition: Condition) -> list[Point]:
    """A metric of training by round, the mean over the seeds."""
    found: dict[int, list[float]] = {}
    for run in condition.trained.values():
        for line in run.metrics:
            if key in line and (key == "accuracy" or line["round"]):
                found.setdefault(int(line["round"]), []).append(float(line[key]))
    rounds = sorted(found)
    every = max(1, len(rounds) // SOME)
    kept = [one for place, one in enumerate(rounds) if place % every == 0 or one == rounds[-1]]
    return [Point(one, sum(found[one]) / len(found[one]), condition.number, condition.label) for one in kept]


def _leak(metric: str, condition: Condition) -> list[Point]:
    points = []
    for server_round in condition.attacked_rounds:
        worst = condition.worst(metric, server_round)
        found = worst.summary(metric, server_round) if worst else None
        if found is not None and found.mean is not None:
            ends = {"y_low": found.low, "y_high": found.high}
            points.append(Point(server_round, found.mean, condition.number, condition.label, **ends))
    return points
