"""The numbers of a report as files: CSV in full precision, with the folders that they come from, and a table for LaTeX."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_app.analysis.measures import JUDGED, NOISE_RATIO, PSNR, SHOWN
from fl_app.analysis.settings import Attacker, Setting, floors_of, mean
from fl_app.analysis.verdict import judge
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


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    names = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([{key: _safe(value) for key, value in row.items()} for row in rows])
    return out.getvalue()


def _safe(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is kept a text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value


def _parts(name: str, found: Summary) -> dict[str, Any]:
    return {f"{name}_mean": found.mean, f"{name}_low": found.low, f"{name}_high": found.high}


def _leaks(attacker: Attacker | None, prefix: str = "") -> dict[str, Any]:
    if attacker is None:
        return {}
    found: dict[str, Any] = {f"{prefix}who": attacker.who, f"{prefix}attack": attacker.attack}
    found |= {f"{prefix}targets": len(attacker.targets), f"{prefix}failed": attacker.summary(PSNR.key).failed}
    for measure in (*JUDGED, NOISE_RATIO):
        found |= _parts(f"{prefix}{measure.key}", attacker.summary(measure.key))
    return found


def summary_csv(settings: Sequence[Setting]) -> str:
    """One row a setting."""
    rows: list[dict[str, Any]] = []
    for one in settings:
        row: dict[str, Any] = {"number": one.number, "defense": one.defense, **one.others}
        row |= {"seeds": " ".join(str(seed) for seed in sorted({cell.seed for cell in one.cells}))}
        for name, values in (("accuracy", list(one.accuracies.values())), ("pmm", list(one.pmm.values()))):
            row |= {
                f"{name}_mean": mean(values),
                f"{name}_min": min(values, default=None),
                f"{name}_max": max(values, default=None),
            }
        row |= {"epsilon": one.epsilon, "seconds_a_round": one.seconds_a_round, "verdict": judge(one).word}
        rows.append(row | _leaks(one.naive, "naive_") | _leaks(one.informed, "informed_"))
    return _csv(rows)


def attackers_csv(settings: Sequence[Setting], base: Path) -> str:
    """One row an attacker, with the folders whose scores.jsonl it sums up; then the blind guesses."""
    rows: list[dict[str, Any]] = []
    for setting in settings:
        for one in setting.attackers:
            folders = " ".join(os.path.relpath(part.folder.resolve(), base.resolve()) for _, part in one.parts)
            about = {"number": setting.number, "setting": setting.label, "asked": one.asked, "told": one.ledger}
            rows.append({**about, "visibility": one.visibility, **_leaks(one), "seconds": one.seconds, "folders": folders})
    for group in dict.fromkeys(setting.apart for setting in settings):
        for name, blind in floors_of([setting for setting in settings if setting.apart == group]).items():
            row: dict[str, Any] = {"setting": group, "who": f"floor: {name}", "targets": len(blind)}
            for measure in JUDGED:
                row |= _parts(measure.key, summarize([{measure.key: line.get(measure.key)} for line in blind], measure.key))
            rows.append(row)
    return _csv(rows)


def latex_text(text: str) -> str:
    """Words with what LaTeX would take for commands escaped; other than ASCII as a question mark, to compile anywhere."""
    plain = text.encode("ascii", "replace").decode()
    return "".join(SPECIAL.get(letter, letter if letter.isprintable() else " ") for letter in plain)


def latex(settings: Sequence[Setting], title: str) -> str:
    """The summary as a table environment; needs the package booktabs."""

    def leak(attacker: Attacker | None) -> list[str]:
        cells = []
        for measure in SHOWN:
            found = attacker.summary(measure.key) if attacker else None
            half = measure.half(found) if found else ""
            text = measure.text(found.mean) if found and found.mean is not None else "--"
            text += f" $\\pm$ {half}" if half else ""
            cells.append(f"\\textbf{{{text}}}" if found and measure.leaked(found) else text)
        return cells

    lines = []
    for one in settings:
        value, kept = mean(list(one.accuracies.values())), mean(list(one.pmm.values()))
        shares = ["--" if value is None else f"{value * 100:.1f}", "--" if kept is None else f"{kept:.3f}"]
        epsilon = "--" if one.epsilon is None else f"{one.epsilon:.3g}"
        cells = [f"\\texttt{{{latex_text(one.label)}}}", *shares, *leak(one.naive), *leak(one.informed), epsilon]
        lines.append("    " + " & ".join(cells) + r" \\")
    measures = " & ".join(measure.title for measure in SHOWN)
    head = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{latex_text(title)}. Mean $\\pm$ half of the 95\\,\\% interval over targets; bold: beyond the limit.}}",
        r"  \begin{tabular}{lrrrrrrrrr}",
        r"    \toprule",
        r"    & & & \multicolumn{3}{c}{naive} & \multicolumn{3}{c}{informed} & \\",
        f"    setting & accuracy & PMM & {measures} & {measures} & $\\varepsilon$ \\\\",
        r"    \midrule",
    ]
    return "\n".join([*head, *lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]) + "\n"
