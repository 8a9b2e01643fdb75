"""Reports: a run or sweep directory -> report.html, one page that needs nothing else, and its tables and curves as files."""

from pathlib import Path


def write_report(path: Path) -> Path:
    """Write report.html into a run or sweep directory, and report/ beside it (CSV, LaTeX, SVG, PNG); says where the page is."""
    from fl_app.analysis.results import read_study
    from fl_app.report import figures, files
    from fl_app.report.page import all_targets, page_of
    from fl_app.store.files import write_atomic

    study = read_study(path)
    page, charts, conditions = page_of(study)
    beside = path / "report"
    beside.mkdir(exist_ok=True)
    write_atomic(beside / "summary.csv", files.summary_csv(conditions))
    write_atomic(beside / "attackers.csv", files.attackers_csv(conditions, path))
    write_atomic(beside / "summary.tex", files.latex(conditions, study.title))
    for chart in charts:
        figures.save(chart, beside)
    for name, text in all_targets(study, conditions).items():
        write_atomic(beside / name, text)
    write_atomic(path / "report.html", page)
    return path / "report.html"
