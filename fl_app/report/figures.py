"""The same charts as files for papers and slides: SVG and PNG on white."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_app.report.charts import Chart, Series
from fl_app.report.palette import LIGHT, MATPLOTLIB_MARKS, color_at, mark_at

STYLES = ("-", "--", ":", "-.")


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write a chart as <name>.svg and <name>.png."""
    figure = Figure(figsize=(5.6, 3.6), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    for place, series in enumerate(chart.series):
        _series(axes, series, chart.dots, STYLES[place % len(STYLES)])
    for level in chart.levels:
        axes.axhline(level.y, color="#b00020" if level.threshold else "#888888", linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(
            level.name, (1, level.y), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            fontsize=7, va="center", color="#b00020" if level.threshold else "#666666",
        )  # fmt: skip
    if chart.front:
        axes.step(
            [p.x for p in chart.front], [p.y for p in chart.front], where="pre", color="#222222", linewidth=0.9, linestyle=":"
        )
        axes.scatter(
            [p.x for p in chart.front], [p.y for p in chart.front], s=110, facecolors="none", edgecolors="#222222",
            linewidths=0.9, label="Pareto front", zorder=4,
        )  # fmt: skip
    if chart.log:
        axes.set_yscale("log")
    if chart.log_x:
        axes.set_xscale("log")
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    paths = [folder / f"{chart.name}.svg", folder / f"{chart.name}.png"]
    for path in paths:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _series(axes: Axes, series: Series, dots: bool, style: str) -> None:
    color, points = LIGHT[color_at(series.color)], series.points
    xs, ys = [point.x for point in points], [point.y for point in points]
    name = _plain(series.name)
    if not dots:
        axes.plot(xs, ys, style, color=color, linewidth=1.2, label=name)
        return
    axes.plot(xs, ys, color=color, linewidth=1.2, marker=MATPLOTLIB_MARKS[mark_at(series.color)], markersize=5, label=name)
    for point in points:
        if point.y_low is not None and point.y_high is not None:
            axes.vlines(point.x, point.y_low, point.y_high, color=color, linewidth=0.8)
        if point.x_low is not None and point.x_high is not None:
            axes.hlines(point.y, point.x_low, point.x_high, color=color, linewidth=0.8)
    if len(points) > 1 and all(point.y_low is not None and point.y_high is not None for point in points):
        ordered = sorted(points, key=lambda point: point.x)
        low, high = [p.y_low for p in ordered if p.y_low is not None], [p.y_high for p in ordered if p.y_high is not None]
        axes.fill_between([p.x for p in ordered], low, high, color=color, alpha=0.12, linewidth=0)


def _plain(text: str) -> str:
    """Without what matplotlib would take for mathematics or leave out of a legend."""
    return text.replace("$", r"\$").lstrip("_")
