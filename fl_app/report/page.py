"""One self-contained page from a study: no request leaves it, and whatever comes from files is escaped."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from fl_app.analysis.attackers import WORST_OF_ALL
from fl_app.analysis.conditions import Condition, conditions_of
from fl_app.analysis.headline import cautions, headline
from fl_app.analysis.limits import in_words, limits_of, of_examples
from fl_app.analysis.results import Study
from fl_app.experiment.environment import version_of
from fl_app.report import about, svg, tables
from fl_app.report.bounds import bounds
from fl_app.report.charts import Chart, colors_of, trade_offs
from fl_app.report.gallery import exhibit
from fl_app.report.membership import Shown, membership
from fl_app.report.palette import DARK, LIGHT
from fl_app.report.rounds import leakage, training

HERE = Path(__file__).parent


class Section(NamedTuple):
    """Conditions that can be compared with each other, and what is drawn of them."""

    title: str
    conditions: list[Condition]
    trade_offs: list[Chart]
    leakage: list[Chart]
    training: list[Chart]
    legend: list[tuple[str, Markup]]


def sections_of(conditions: Sequence[Condition]) -> list[Section]:
    """The conditions by data set and model."""
    found, colors = [], colors_of(conditions)
    names = list(dict.fromkeys(one.apart for one in conditions))
    for place, name in enumerate(names, 1):
        own = [one for one in conditions if one.apart == name]
        suffix = f"-{place}" if len(names) > 1 else ""
        legend = [(family, svg.swatch(colors[family])) for family in dict.fromkeys(one.family for one in own)]
        settings = own, colors, suffix
        found.append(Section(name, own, trade_offs(*settings), leakage(*settings), training(*settings), legend))
    return found


def breakable(text: str) -> Markup:
    """A spec that a narrow column breaks after its brackets and commas rather than anywhere."""
    return Markup(str(escape(text)).replace("(", "(<wbr>").replace(",", ",<wbr>"))


def _drawn(chart: Chart) -> Markup:
    return Markup(svg.draw(chart))  # escapes each text itself


def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(HERE)
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["breakable"] = breakable
    templates.globals |= {
        "drawn": _drawn,
        "css": Markup((HERE / "report.css").read_text(encoding="utf-8")),
        "js": Markup((HERE / "report.js").read_text(encoding="utf-8")),
        "light": LIGHT,
        "dark": DARK,
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": version_of("thorns"),
    }
    return templates


def render(study: Study, sections: Sequence[Section], told: Shown) -> str:
    """The page."""
    conditions = [one for section in sections for one in section.conditions]
    context: dict[str, Any] = {
        "study": study,
        "groups": sections,
        "several": len(sections) > 1,
        "verdicts": [(one.title, headline(one.conditions), cautions(one.conditions)) for one in sections],
        "words": about.in_words(study),
        "limits": in_words(
            of_examples(limits_of(study.measures), [one.leading for one in conditions if one.attackers]), sources=True
        ),
        "informed": WORST_OF_ALL,
        "summary": tables.summary(conditions),
        "privacy": about.privacy(conditions),
        "leak_by_round": tables.leak_by_round(conditions),
        "attackers": tables.attackers(conditions),
        "bounds": bounds(conditions),
        "membership": told,
        "cost": tables.cost(conditions),
        "gallery": [shown for one in conditions if (shown := exhibit(one)) is not None],
        "facts": about.facts(study),
        "two_runs": any(cell.training is not cell.attacked for cell in study.cells),
        "environment": about.environment(study),
        "failed_cells": about.failed_cells(study),
        "failed_targets": about.failed_targets(study),
        "unavailable": about.unavailable(study),
        "seeds": sorted({cell.seed for cell in study.cells}),
    }
    return _templates().get_template("report.html").render(context)


def all_targets(study: Study, conditions: Sequence[Condition]) -> dict[str, str]:
    """File name -> the page of all targets of a condition, for those that have pictures."""
    template = _templates().get_template("targets.html")
    found = [shown for one in conditions if (shown := exhibit(one, every=True)) is not None and shown.shown]
    return {one.page: template.render({"study": study, "one": one}) for one in found}


def page_of(study: Study) -> tuple[str, list[Chart], list[Condition]]:
    """(page, all charts on it, conditions) of a study."""
    conditions = conditions_of(study.cells, unfinished=study.kind == "run")
    sections = sections_of(conditions)
    shown = membership(conditions)
    charts = [chart for one in sections for chart in (*one.trade_offs, *one.leakage, *one.training)]
    return render(study, sections, shown), [*charts, *(one.chart for one in shown.curves)], conditions
