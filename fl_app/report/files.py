"""The numbers of a report as files: CSV in full precision, with the folders that they come from, and a table for LaTeX."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.analysis.attackers import WORST_OF_ALL, Attacker
from fl_app.analysis.conditions import Condition, Find, floors_of, mean, measures_shown
from fl_app.analysis.results import SPENT, WORST_MEMBER
from fl_app.analysis.verdict import UNDECIDED, WEAK, verdict_of
from fl_app.report.spreadsheet import csv_text
from fl_app.report.tables import half, short, told
from fl_app.scoring.base import PLACES, Measure
from fl_app.scoring.score import Summary, summarize

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def _parts(name: str, found: Summary) -> dict[str, Any]:
    return {f"{name}_mean": found.mean, f"{name}_low": found.low, f"{name}_high": found.high}


def _leaks(found: Mapping[str, Attacker | None], prefix: str) -> dict[str, Any]:
    """Who reached most by each metric, and what; the attack, its targets and failures are those of the first metric."""
    known = {name: one for name, one in found.items() if one is not None}
    first = next(iter(known.values()), None)
    if first is None:
        return {}
    row: dict[str, Any] = {f"{prefix}who": first.who, f"{prefix}attack": first.attack}
    row |= {f"{prefix}targets": len(first.targets), f"{prefix}failed": first.failed}
    for name, one in known.items():
        row |= _parts(f"{prefix}{name}", one.summary(name)) | {f"{prefix}{name}_who": one.who}
    return row


def summary_csv(conditions: Sequence[Condition]) -> str:
    """One row per condition."""
    measures = measures_shown(conditions, *PLACES)
    rows: list[dict[str, Any]] = []
    for one in conditions:
        row: dict[str, Any] = {"number": one.number, "defense": one.defense, **one.others}
        row |= {"seeds": " ".join(str(seed) for seed in sorted({cell.seed for cell in one.cells}))}
        for name, values in (("accuracy", list(one.accuracies.values())), ("pmm", list(one.pmm.values()))):
            row |= {
                f"{name}_mean": mean(values),
                f"{name}_min": min(values, default=None),
                f"{name}_max": max(values, default=None),
            }
        row |= {"epsilon": one.epsilon, "delta": one.delta, "seconds_a_round": one.seconds_a_round}
        row |= {f"{key}_a_round": one.cost_a_round(key) for key in SPENT}
        verdict = verdict_of(one)
        row |= {"verdict": verdict.words, "verdict_reasons": "; ".join(verdict.reasons)}
        for prefix, find in (("naive_", one.naive), ("informed_", one.informed)):
            row |= _leaks({name: find(name) for name in measures}, prefix)
            worst = {name: find(name, by_truth=True) for name in measures}
            for name, each in worst.items():
                if each is not None and each.by_truth:
                    row |= _parts(f"{prefix}by_truth_{name}", each.summary(name))
        rows.append(row)
    return csv_text(rows)


def attackers_csv(conditions: Sequence[Condition], base: Path) -> str:
    """One row per attacker, with the folders whose scores.jsonl it sums up; then the blind floors."""
    measures = measures_shown(conditions, *PLACES)
    rows: list[dict[str, Any]] = []
    for condition in conditions:
        for one in condition.attackers:
            folders = " ".join(os.path.relpath(part.folder.resolve(), base.resolve()) for part in one.parts)
            row = {"number": condition.number, "setting": condition.label, "asked": one.asked, "told": told(one)}
            row |= {"visibility": one.visibility, "who": one.who, "attack": one.attack}
            row |= {"targets": len(one.targets), "failed": one.failed}
            for name in measures:
                row |= _parts(name, one.summary(name))
                if (control := one.control(name)).n:
                    row |= _parts(f"control_{name}", control)
            rows.append({**row, "seconds": one.seconds, "folders": folders})
    for group in dict.fromkeys(one.apart for one in conditions):
        for name, blind in floors_of([one for one in conditions if one.apart == group]).items():
            row = {"setting": group, "who": f"floor: {name}", "targets": len(blind)}
            for metric in measures:
                row |= _parts(metric, summarize(blind, metric))
            rows.append(row)
    return csv_text(rows)


def latex_text(text: str) -> str:
    """Words with what LaTeX would take for commands escaped; other than ASCII as a question mark, to compile anywhere."""
    plain = text.encode("ascii", "replace").decode()
    return "".join(SPECIAL.get(letter, letter if letter.isprintable() else " ") for letter in plain)


def latex(conditions: Sequence[Condition], title: str) -> str:
    """The summary as a table environment; needs the package booktabs."""
    measures = measures_shown(conditions, "tables")

    def figure(one: Attacker, name: str, measure: Measure) -> str:
        found = one.summary(name)
        interval = half(found, measure)
        text = measure.text(found.mean) + (f" $\\pm$ {interval}" if interval else "")
        return f"\\textbf{{{text}}}" if one.leaks(name, measure) else text

    def leak(find: Find, *, informed: bool) -> list[str]:
        entries = []
        for name, measure in measures.items():
            one, worst = find(name), find(name, by_truth=True)
            if one is None:
                entries.append("--")
                continue
            members = f" [{figure(worst, name, measure)}]" if worst is not None and worst.by_truth else ""
            entries.append(figure(one, name, measure) + ("$^n$" if informed and not one.informed else "") + members)
        return entries

    lines = []
    for one in conditions:
        value, kept = mean(list(one.accuracies.values())), mean(list(one.pmm.values()))
        shares = ["--" if value is None else f"{value * 100:.1f}", "--" if kept is None else f"{kept:.3f}"]
        epsilon = "--" if one.epsilon is None else f"{one.epsilon:.3g} ({short(one.delta or 0.0)})"
        leaks = [*leak(one.naive, informed=False), *leak(one.informed, informed=True)]
        lines.append(
            "    "
            + " & ".join([f"\\texttt{{{latex_text(one.label)}}}", verdict_of(one).word, *shares, *leaks, epsilon])
            + r" \\"
        )
    titles, number = " & ".join(latex_text(measure.title) for measure in measures.values()), len(measures)
    words = f"Mean $\\pm$ half of the 95\\,\\% interval over targets; bold: beyond the limit; informed: {WORST_OF_ALL}"
    if any(attacker.by_truth for one in conditions for attacker in one.attackers):
        words += f"; in brackets: the {WORST_MEMBER}"
    head = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{latex_text(title)}. {words} ($^n$: it was a naive one); {UNDECIDED}: {WEAK}.}}",
        f"  \\begin{{tabular}}{{llrr{'r' * 2 * number}r}}",
        r"    \toprule",
        f"    & & & & \\multicolumn{{{number}}}{{c}}{{naive}} & \\multicolumn{{{number}}}{{c}}{{informed}} & \\\\",
        f"    setting & verdict & accuracy & PMM & {titles} & {titles} & $\\varepsilon$ ($\\delta$) \\\\",
        r"    \midrule",
    ]
    return "\n".join([*head, *lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]) + "\n"
