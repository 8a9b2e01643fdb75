"""Bounds on the page: in sentences, beside what attacks reached."""

import pytest

from fl_app.analysis.bounds.identifiability import Identifiability
from fl_app.analysis.bounds.information import Bayesian
from fl_app.analysis.bounds.results import Bounds, TargetBounds
from fl_app.analysis.results import read_run
from fl_app.report import write_report
from helpers.small_study import Page, attack, make_run


@pytest.fixture
def run(small, tmp_path):
    made = make_run(small, tmp_path / "run", "prune(ratio=0.5)", 0, 0.5)
    attack(made, "naive", 0.1)
    return made.path


def test_the_page_says_what_no_attack_can_do(run):
    write_report(run)
    assert "What no attack can do" not in Page(run / "report.html").words
    few = Identifiability(
        entries=5,
        unknowns=12,
        rank_at_least=5,
        rank_at_most=5,
        above_rounding=5,
        largest=1.0,
        median=0.5,
        smallest=0.1,
        directions=12,
    )
    every = Bayesian(mse=0.01, blind=0.1, components=3, draws=4)
    target = TargetBounds(round=1, client=0, examples=1, batch=few, bayesian=every, seconds=1.0)
    made = Bounds(at="public", defense="prune", public=9, targets=[target], smooth=True, no_robustness="it is <none>")
    made.save(run)
    write_report(run)
    words = Page(run / "report.html").words
    assert "5 equations for 12 unknowns: no attack without a prior can rebuild the batch" in words
    assert "PSNR at most 20.0 dB (of the mean squared error); 10.0 dB without the update" in words
    assert "No bound from differential privacy: it is <none>." in words
    assert "The attacks that were run: PSNR 2" in words  # noise of 0.1, less what clamping takes away


def test_a_damaged_file_is_named_and_left_out(run):
    (run / "bounds.json").write_text('{"version": 2}')
    found = read_run(run)
    assert found.bounds is None
    assert "bounds.json cannot be read" in found.problems[0]
    write_report(run)
    assert "bounds.json cannot be read" in Page(run / "report.html").words
