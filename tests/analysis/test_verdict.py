"""What a verdict rests on: a defense holds only where the attack was strong enough to tell."""

import csv
import io

import pytest
from rich.console import Console

from fl_app.analysis.conditions import conditions_of
from fl_app.analysis.headline import cautions, headline
from fl_app.analysis.results import read_study
from fl_app.analysis.verdict import verdict_of
from fl_app.report.export import TABLES
from fl_app.report.files import summary_csv
from fl_app.sweeps.table import table_of
from helpers.gate import add_attack, line, make_run, make_sweep


def study(tmp_path, undefended, defended, floor=None, who="informed"):
    """No defense and one, each attacked: PSNR of the undefended, of the defended, of the class mean."""
    path = make_sweep(tmp_path / "sweep", [("none", [line(psnr=undefended), line(1, psnr=undefended)]), ("sign", None)])
    run = make_run(path / "runs/1/training", defense="sign")
    blind = [] if floor is None else [{"floor": "class mean", **line(n, psnr=floor)} for n in range(2)]
    add_attack(run, [line(psnr=defended), line(1, psnr=defended)], who, grants=["defense"], floors=blind)
    return conditions_of(read_study(path).cells)


@pytest.mark.parametrize(
    ("undefended", "defended", "floor", "word", "reason"),
    [
        (30.0, 12.0, 10.0, "holds", ""),
        (30.0, 12.0, None, "holds", ""),
        (30.0, 16.0, 10.0, "fails", "PSNR 16.0"),
        (30.0, 16.0, 18.0, "fails", "PSNR 16.0"),
        (30.0, 8.0, 10.0, "not decided", "8.0 dB is below the 10.0 dB of the mean image of the class"),
        (12.0, 11.0, 10.0, "not decided", "undefended updates stay within the limits, too"),
        (12.0, 14.0, 10.0, "not decided", "undefended updates stay within the limits, too"),
    ],
)
def test_a_weak_attack_decides_nothing(tmp_path, undefended, defended, floor, word, reason):
    plain, sign = study(tmp_path, undefended, defended, floor)
    verdict = verdict_of(sign)
    assert verdict.word == word
    assert reason in "; ".join(verdict.reasons)
    assert verdict.words == (f"{word}: the attack is too weak" if word == "not decided" else word)
    assert verdict_of(plain).word == ("fails" if undefended > 15 else "not decided")  # no defense never holds
    words = " ".join(headline([plain, sign]))
    assert ("cannot be decided" in words) == (word == "not decided")
    assert ("keeps the most" in words) == (word == "holds")


def test_that_there_was_no_informed_attacker_is_said(tmp_path):
    plain, sign = study(tmp_path, 30.0, 12.0, 10.0, who="naive")
    assert verdict_of(sign).word == "holds (naive only)"
    assert any("naive attackers alone: sign" in one for one in cautions([plain, sign]))


def test_each_attack_is_held_against_itself_without_a_defense(tmp_path):
    """A strong attack that leaks undefended updates does not vouch for a weak one on the same row."""
    path = make_sweep(tmp_path / "sweep", [("none", [line(psnr=30.0)]), ("sign", [line(psnr=12.0)])])
    for place in (0, 1):
        add_attack(path / f"runs/{place}/training", [line(psnr=9.0)], asked="weak")
    sign = conditions_of(read_study(path).cells)[1]
    assert verdict_of(sign).word == "holds (naive only)"
    assert {one.asked: verdict_of(one).word for one in sign.by_attack()} == {
        ("idlg",): "holds (naive only)",
        ("weak",): "not decided",
    }
    console = Console(width=200, file=io.StringIO())
    console.print(table_of(read_study(path).cells))
    rows = [row.split() for row in console.file.getvalue().splitlines()]
    assert [row[3:5] for row in rows if row[:2] == ["sign", "weak"]] == [["not", "decided:"]]
    told = {(row["cell"], row["verdict"]) for row in TABLES["summary"](read_study(path))}
    assert told == {("none, seed 0", "fails"), ("sign, seed 0", "holds (naive only)")}
    assert {row["verdict"] for row in csv.DictReader(io.StringIO(summary_csv([sign.only(["weak"])])))} == {
        "not decided: the attack is too weak"
    }


@pytest.mark.parametrize(("width", "whole"), [(70, False), (80, False), (200, True)])
def test_a_narrow_terminal_leaves_out_measures_before_names(tmp_path, width, whole):
    lines = [line(psnr=30.0, ssim=0.9, lpips_alex=0.01)]
    path = make_sweep(tmp_path / "sweep", [("none", lines), ("gradient_dropout(p=0.6)", lines)])
    console = Console(width=width, file=io.StringIO())
    console.print(table_of(read_study(path).cells))
    rows = [row for row in console.file.getvalue().splitlines() if row.strip()]
    assert "".join(row.split()[0] for row in rows[-2:] if row[0] != " ").endswith("gradient_dropout(p=0.6)")
    assert sum("30.0" in row for row in rows) == 2
    assert any("0.010" in row for row in rows) == whole
    assert all(len(row) <= width for row in rows)
