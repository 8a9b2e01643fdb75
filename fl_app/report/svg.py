"""Charts as inline SVG: colours are the page's own, so that they follow light and dark."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from markupsafe import Markup

from fl_app.report.charts import Chart, Point, Series
from fl_app.report.palette import DASHES, color_at, mark_at
from fl_app.report.scale import Scale, scales_of, spread, tick_text

WIDTH, HEIGHT = 440, 320
LEFT, RIGHT, TOP, BOTTOM = 46, 70, 30, 44
FEW = 12
"""A line of at most so many points shows each of them."""
AROUND = ((11, 4, "start"), (-11, 4, "end"), (0, -10, "middle"), (0, 18, "middle"), (10, -6, "start"), (-10, 14, "end"))
"""Where the number of a point may stand, by preference."""


def _tag(name: str, text: str = "", **attributes: object) -> str:
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return f"<{name}{words}>{text}</{name}>"


def mark(kind: str, x: float, y: float, color: int, size: float = 4.5, title: str = "") -> str:
    """One mark at a place, with words for who points at it."""
    words, style = _tag("title", escape(title)) if title else "", f"var(--s{color})"
    if kind == "circle":
        return _tag("circle", words, cx=f"{x:.1f}", cy=f"{y:.1f}", r=size, fill=style, class_="mark")
    shapes: dict[str, list[tuple[float, float]]] = {
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "triangle": [(0, -1.25), (1.2, 0.95), (-1.2, 0.95)],
        "down": [(0, 1.25), (1.2, -0.95), (-1.2, -0.95)],
        "diamond": [(0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)],
    }
    corners = " ".join(f"{x + dx * size * 0.9:.1f},{y + dy * size * 0.9:.1f}" for dx, dy in shapes[kind])
    return _tag("polygon", words, points=corners, fill=style, class_="mark")


def swatch(color: int) -> Markup:
    """The mark of a series by itself, for legends."""
    drawn = mark(mark_at(color), 8, 8, color_at(color))
    return Markup(f'<svg viewBox="0 0 16 16" class="swatch" aria-hidden="true">{drawn}</svg>')


def _axes(chart: Chart, x: Scale, y: Scale) -> list[str]:
    parts = []
    for value in y.ticks():
        parts.append(_tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y(value):.1f}", y2=f"{y(value):.1f}", class_="grid"))
        parts.append(_tag("text", tick_text(value), x=LEFT - 7, y=f"{y(value) + 3.5:.1f}", text_anchor="end", class_="tick"))
    for value in x.ticks():
        parts.append(
            _tag("text", tick_text(value), x=f"{x(value):.1f}", y=HEIGHT - BOTTOM + 16, text_anchor="middle", class_="tick")
        )
        parts.append(
            _tag("line", x1=f"{x(value):.1f}", x2=f"{x(value):.1f}", y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4, class_="axis")
        )
    parts.append(_tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="axis"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_tag("text", escape(chart.x_label), x=middle, y=HEIGHT - 8, text_anchor="middle", class_="label"))
    # Level, above the axis: beside it a turned label would lie on ticks of many digits.
    parts.append(_tag("text", escape(chart.y_label), x=4, y=12, class_="label"))
    return parts


def _levels(chart: Chart, y: Scale) -> list[str]:
    parts = []
    if not chart.dots:  # the right is for the numbers of lines
        for level in chart.levels:
            height, above = (f"{y(level.y) - lift:.1f}" for lift in (0, 4))
            parts.append(_tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=height, y2=height, class_="limit"))
            parts.append(_tag("text", escape(level.name), x=LEFT + 6, y=above, class_="limit-name inside"))
        return parts
    places = spread([y(level.y) for level in chart.levels], 12, TOP + 4, HEIGHT - BOTTOM - 2)
    for level, place in zip(chart.levels, places, strict=True):
        kind = "limit" if level.threshold else "floor"
        at, end = f"{y(level.y):.1f}", WIDTH - RIGHT
        parts.append(_tag("line", x1=LEFT, x2=end, y1=at, y2=at, class_=kind))
        parts.append(_tag("line", x1=end, x2=end + 6, y1=at, y2=f"{place:.1f}", class_=kind))
        parts.append(_tag("text", escape(level.name), x=end + 8, y=f"{place + 3.5:.1f}", class_=f"{kind}-name"))
    return parts


def _band(points: Sequence[Point], x: Scale, y: Scale, color: int) -> str:
    """The intervals between neighbours, each piece turned the same way round so that overlaps stay filled."""
    path = []
    for pair in pairwise(points):
        a, b = sorted(pair, key=lambda point: point.x)
        edges = a.y_low, b.y_low, b.y_high, a.y_high
        if None not in edges:
            corners = [(x(p.x), y(v)) for p, v in zip((a, b, b, a), edges, strict=True) if v is not None]
            path.append("M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in corners) + "Z")
    return _tag("path", d="".join(path), fill=f"var(--s{color})", class_="band") if path else ""


def _line(points: Sequence[Point], x: Scale, y: Scale, color: int, dash: str = "") -> str:
    places = " ".join(f"{x(point.x):.1f},{y(point.y):.1f}" for point in points)
    return _tag("polyline", points=places, stroke=f"var(--s{color})", class_="line", stroke_dasharray=dash or "none")


def _whiskers(point: Point, x: Scale, y: Scale, color: int) -> str:
    parts = ""
    if point.y_low is not None and point.y_high is not None:
        ends = {"y1": f"{y(point.y_low):.1f}", "y2": f"{y(point.y_high):.1f}"}
        parts += _tag(
            "line", x1=f"{x(point.x):.1f}", x2=f"{x(point.x):.1f}", **ends, stroke=f"var(--s{color})", class_="whisker"
        )
    if point.x_low is not None and point.x_high is not None:
        ends = {"x1": f"{x(point.x_low):.1f}", "x2": f"{x(point.x_high):.1f}"}
        parts += _tag(
            "line", y1=f"{y(point.y):.1f}", y2=f"{y(point.y):.1f}", **ends, stroke=f"var(--s{color})", class_="whisker"
        )
    return parts


def _numbers(points: Sequence[Point], x: Scale, y: Scale) -> list[str]:
    """The row numbers beside the points, each at the first place where it covers nothing."""
    taken = [(x(point.x), y(point.y), 5.0, 5.0) for point in points]
    parts = []
    for point in points:
        half = 3.2 * len(str(point.number))
        choices = []
        for dx, dy, anchor in AROUND:
            left = {"start": half, "end": -half, "middle": 0.0}[anchor]
            place = (x(point.x) + dx + left, y(point.y) + dy - 4, half, 5.0)
            hits = sum(abs(place[0] - a) < half + w and abs(place[1] - b) < 5 + h for a, b, w, h in taken)
            hits += 2 * (not LEFT < place[0] < WIDTH - RIGHT or not TOP < place[1] < HEIGHT - BOTTOM)
            choices.append((hits, place))
        place = min(choices, key=lambda choice: choice[0])[1]
        taken.append(place)
        parts.append(
            _tag("text", str(point.number), x=f"{place[0]:.1f}", y=f"{place[1] + 4:.1f}", text_anchor="middle", class_="number")
        )
    return parts


def _front(points: Sequence[Point], x: Scale, y: Scale) -> list[str]:
    steps = [(x(points[0].x), y(points[0].y))]
    for a, b in pairwise(points):
        steps += [(x(a.x), y(b.y)), (x(b.x), y(b.y))]
    parts = (
        [_tag("polyline", points=" ".join(f"{px:.1f},{py:.1f}" for px, py in steps), class_="front")] if len(points) > 1 else []
    )
    return parts + [_tag("circle", cx=f"{x(p.x):.1f}", cy=f"{y(p.y):.1f}", r=8, class_="ring") for p in points]


def _dotted(chart: Chart, x: Scale, y: Scale) -> list[str]:
    inner = [_band(one.points, x, y, color_at(one.color)) for one in chart.series]
    inner += [_whiskers(point, x, y, color_at(one.color)) for one in chart.series for point in one.points]
    inner += [_line(one.points, x, y, color_at(one.color)) for one in chart.series if len(one.points) > 1]
    inner += _front(chart.front, x, y) if chart.front else []
    inner += [
        mark(mark_at(one.color), x(point.x), y(point.y), color_at(one.color), title=point.label)
        for one in chart.series
        for point in one.points
    ]
    return inner + _numbers([point for one in chart.series for point in one.points], x, y)


def _lines(series: Sequence[Series], x: Scale, y: Scale) -> list[str]:
    """Lines by round, told apart within a family by their dashes, with the row number at the end."""
    parts, seen = [], dict[int, int]()
    places = spread([y(one.points[-1].y) for one in series], 11, TOP + 4, HEIGHT - BOTTOM - 2)
    for one, place in zip(series, places, strict=True):
        seen[one.color] = seen.get(one.color, -1) + 1
        color, last = color_at(one.color), one.points[-1]
        parts.append(_band(one.points, x, y, color))
        parts.append(_line(one.points, x, y, color, DASHES[seen[one.color] % len(DASHES)]))
        if len(one.points) <= FEW:
            parts += [
                mark(mark_at(one.color), x(each.x), y(each.y), color, 3.5, f"{each.label}: {each.y:.3g} in round {each.x:g}")
                for each in one.points
            ]
        if not last.number:  # a line that is no row of a table
            continue
        ends = {"x1": f"{x(last.x):.1f}", "y1": f"{y(last.y):.1f}", "x2": str(WIDTH - RIGHT + 14), "y2": f"{place:.1f}"}
        parts.append(_tag("line", **ends, stroke=f"var(--s{color})", class_="whisker"))
        parts.append(
            _tag(
                "text",
                str(last.number),
                x=WIDTH - RIGHT + 17,
                y=f"{place + 3.5:.1f}",
                style=f"fill:var(--s{color})",
                class_="end",
            )
        )
    return parts


def draw(chart: Chart) -> str:
    """The chart as an <svg> element."""
    x, y = scales_of(chart, (LEFT + 4, WIDTH - RIGHT - 4), (HEIGHT - BOTTOM, TOP))
    body = _axes(chart, x, y)
    if chart.dots:
        body += _levels(chart, y)
        wide, high, inside = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM + 8, "".join(_dotted(chart, x, y))
        view = f"{LEFT} {TOP - 8} {wide} {high}"  # an inner <svg> clips what reaches beyond the axes
        body.append(_tag("svg", inside, x=LEFT, y=TOP - 8, width=wide, height=high, viewBox=view))
    else:
        body += _lines(chart.series, x, y) + _levels(chart, y)
    words = f"{chart.title}. {chart.y_label} against {chart.x_label}; the values are in the tables."
    return _tag("svg", "".join(body), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=words, class_="chart")
