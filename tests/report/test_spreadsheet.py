"""No text in a CSV file is taken for a formula, in the report's files and in exports alike."""

import csv
import json

import pytest

from fl_app.report import write_report
from fl_app.report.export import TABLES, read_checked, save
from fl_app.report.spreadsheet import csv_text, guarded
from helpers.gate import add_attack, line, make_sweep

DANGEROUS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1")


@pytest.mark.parametrize("text", DANGEROUS)
def test_a_text_that_could_be_a_formula_stays_a_text(text):
    assert guarded(text) == f"'{text}"
    (_, row) = csv.reader(csv_text([{"a": text, "b": -1.5}]).splitlines()) if "\r" not in text else ("", [f"'{text}", "-1.5"])
    assert row == [f"'{text}", "-1.5"]  # a negative number stays one


def test_names_of_columns_are_texts_too():
    assert csv_text([{"=cmd()": 1}]).splitlines()[0] == "'=cmd()"
    assert guarded("a=b") == "a=b"


def test_reports_and_exports_are_guarded_alike(tmp_path):
    path = make_sweep(tmp_path / "sweep", [("prune(ratio=0.9)", [line()])])
    plan = json.loads((path / "plan.json").read_text())
    plan["cells"][0] |= {"name": "=HYPERLINK()", "varied": {"defense": "prune(ratio=0.9)", "note": "@evil"}}
    (path / "plan.json").write_text(json.dumps(plan))
    add_attack(path / "runs/0/training", [line(ledger="+told")], "-who", asked="=asked")
    write_report(path)
    for what, make in TABLES.items():
        save(make(read_checked(path)), tmp_path / f"{what}.csv")
    files = [*(path / "report").glob("*.csv"), *tmp_path.glob("*.csv")]
    assert len(files) == 5
    for file in files:
        with file.open(newline="") as rows:
            texts = [text for row in csv.reader(rows) for text in row]
        assert any(text.startswith("'") for text in texts), file
        for text in texts:
            if text.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(text)  # a number, or this raises
