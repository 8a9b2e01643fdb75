"""One self-contained page from a study: no request leaves it, and whatever comes from files is escaped."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from fl_app.analysis.measures import LIMITS
from fl_app.analysis.results import Study
from fl_app.analysis.settings import Setting, settings_of
from fl_app.analysis.verdict import cautions, headline
from fl_app.experiment.environment import version_of
from fl_app.report import about, svg, tables
from fl_app.report.charts import Chart, by_round, colors_of, trade_offs
from fl_app.report.gallery import exhibit
from fl_app.report.palette import DARK, LIGHT, color_at, mark_at

HERE = Path(__file__).parent


class Group(NamedTuple):
    """Settings that can be compared with each other, and what is drawn of them."""

    title: str
    settings: list[Setting]
    trade_offs: list[Chart]
    by_round: list[Chart]
    legend: list[tuple[str, Markup]]


def groups_of(settings: Sequence[Setting]) -> list[Group]:
    """The settings by data set and model."""
    found, colors = [], colors_of(settings)
    names = list(dict.fromkeys(setting.apart for setting in settings))
    for place, name in enumerate(names, 1):
        own = [setting for setting in settings if setting.apart == name]
        suffix = f"-{place}" if len(names) > 1 else ""
        legend = [(family, _swatch(colors[family])) for family in dict.fromkeys(setting.family for setting in own)]
        found.append(Group(name, own, trade_offs(own, colors, suffix), by_round(own, colors, suffix), legend))
    return found


def _swatch(color: int) -> Markup:
    drawn = svg.mark(mark_at(color), 8, 8, color_at(color))
    return Markup(f'<svg viewBox="0 0 16 16" class="swatch" aria-hidden="true">{drawn}</svg>')


def breakable(text: str) -> Markup:
    """A spec that a narrow column breaks after its brackets and commas rather than anywhere."""
    return Markup(str(escape(text)).replace("(", "(<wbr>").replace(",", ",<wbr>"))


def _drawn(chart: Chart) -> Markup:
    return Markup(svg.draw(chart))  # escapes each text itself


def render(study: Study, groups: Sequence[Group]) -> str:
    """The page."""
    loader = jinja2.FileSystemLoader(HERE)
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["breakable"] = breakable
    settings = [setting for group in groups for setting in group.settings]
    context: dict[str, Any] = {
        "study": study,
        "groups": groups,
        "several": len(groups) > 1,
        "drawn": _drawn,
        "verdicts": [(group.title, headline(group.settings), cautions(group.settings)) for group in groups],
        "words": about.in_words(study),
        "limits": LIMITS,
        "summary": tables.summary(settings),
        "attackers": tables.attackers(settings),
        "cost": tables.cost(settings),
        "gallery": [shown for setting in settings if (shown := exhibit(setting)) is not None],
        "facts": about.facts(study),
        "two_runs": any(cell.training is not cell.attacked for cell in study.cells),
        "environment": about.environment(study),
        "failed_cells": about.failed_cells(study),
        "failed_targets": about.failed_targets(study),
        "unavailable": about.unavailable(study),
        "seeds": sorted({cell.seed for cell in study.cells}),
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": version_of("thorns"),
        "css": Markup((HERE / "report.css").read_text(encoding="utf-8")),
        "js": Markup((HERE / "report.js").read_text(encoding="utf-8")),
        "light": LIGHT,
        "dark": DARK,
    }
    return templates.get_template("report.html").render(context)


def page_of(study: Study) -> tuple[str, list[Group], list[Setting]]:
    """(page, groups with their charts, settings) of a study."""
    settings = settings_of(study)
    groups = groups_of(settings)
    return render(study, groups), groups, settings
