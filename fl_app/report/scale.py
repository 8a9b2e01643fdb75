"""From values to pixels: ranges, round ticks, and labels that do not lie on each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.report.charts import Chart


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic axis from `start` to `end` pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False
    """Whether only whole numbers mean something."""

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.log else value
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values within the range: powers of ten, or four to eight steps of 1, 2 or 5."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers]
        span = self.high - self.low
        step = 10 ** math.floor(math.log10(span / 4))
        step = next((step * factor for factor in (1, 2, 5) if span / (step * factor) <= 6), step * 10)
        step = max(step, 1) if self.whole else step
        first = math.ceil(self.low / step - 1e-9)
        return [place * step for place in range(first, math.floor(self.high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """A tick as text."""
    return f"{value:.0e}" if value and not 1e-3 <= abs(value) < 1e4 else f"{round(value, 10):g}"


def _range(values: Sequence[float], intervals: Sequence[float]) -> tuple[float, float]:
    """A range around all values, and around intervals as far as they do not dwarf the values."""
    low, high = min(values), max(values)
    room = (high - low) or abs(high) * 0.1 or 1.0
    low = min([low, *(max(value, low - room / 2) for value in intervals)])
    high = max([high, *(min(value, high + room / 2) for value in intervals)])
    margin = 0.05 * (high - low) or room  # one value alone has some room around it, or its ticks would be all digits
    return low - margin, high + margin


def scales_of(chart: Chart, width: tuple[float, float], height: tuple[float, float]) -> tuple[Scale, Scale]:
    """The axes of a chart; pixels of its left and right, bottom and top."""
    points = [point for series in chart.series for point in series.points]
    across = [value for point in points for value in (point.x_low, point.x_high) if value is not None]
    up = [value for point in points for value in (point.y_low, point.y_high) if value is not None]
    x_low, x_high = _range([point.x for point in points], across)
    heights = [*(point.y for point in points), *(level.y for level in chart.levels)]
    positive = [value for value in heights if value > 0]
    if not chart.dots:
        x_low, x_high = min(point.x for point in points), max(point.x for point in points)
    y_low, y_high = (min(positive) / 1.3, max(positive) * 1.3) if chart.log else _range(heights, up)
    across_all = Scale(x_low, x_high, *width, log=chart.log_x, whole=not chart.dots)
    return across_all, Scale(y_low, y_high, *height, log=chart.log)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones that keep a gap and stay within a range, in the same order."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    places = [0.0] * len(wanted)
    last = low - gap
    for i in order:
        last = places[i] = max(wanted[i], last + gap, low)
    next_ = high + gap
    for i in reversed(order):
        next_ = places[i] = min(places[i], next_ - gap, high)
    return places
