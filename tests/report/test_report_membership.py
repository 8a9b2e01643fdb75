"""Membership on the page and in the gate: curves, exact intervals, and what is never a pass."""

import json

import pytest
import torch

from fl_app.analysis.audit_dp import Audit, CanaryAudit
from fl_app.report import write_report
from fl_app.scoring.membership import MEASURES, Believed, floor, rows_of
from fl_app.scoring.questions import save_judged
from helpers.gate import add_attack, line, make_run, run_gate
from helpers.small_study import Page


@pytest.fixture
def run(tmp_path):
    """A run with made-up scores: 200 members of whom half stand out, 2000 others."""
    path = make_run(tmp_path / "run", defense="dp_sgd(noise=1)")
    draw = torch.Generator().manual_seed(0)
    truth = torch.tensor([1] * 100 + [0] * 1000, dtype=torch.int8)
    believed = {}
    for client in (0, 1):
        scores = torch.randn(1100, generator=draw)
        scores[:50] += 100
        believed[1, client] = Believed(scores, truth)
    rows = rows_of(believed)
    told = {"status": "done", "ledger": "candidates", "loss": None, "unavailable": {}}
    lines = [{"round": one, "client": client, **told, **row} for (one, client), row in rows.items()]
    folder = add_attack(path, lines, asked="alignment", floors=[{"floor": "prior guess", **floor()}])
    about = json.loads((folder / "attack.json").read_text())
    (folder / "attack.json").write_text(json.dumps({**about, "question": "membership"}))
    (folder / "metrics.json").write_text(json.dumps({name: one.to_dict() for name, one in MEASURES.items()}))
    save_judged(folder, "membership", believed)
    return path


def audited(path, lower, upper):
    found = CanaryAudit(kind="per round", releases=1, trials=100, right=80, scored=90, lower=lower, upper=upper)
    Audit(defense="dp_sgd(noise=1)", delta=1e-5, confidence=0.99, audits=[found]).save(path)


def test_the_page_has_the_curve_and_exact_intervals(run):
    write_report(run)
    words = Page(run / "report.html").words
    assert "Could the server tell that an example was there?" in words
    assert "0.500 0.429 to 0.571" in words  # 100 of 200 at 0.1 %
    assert "true-positive rate against false-positive rate" in (run / "report.html").read_text()
    assert (run / "report" / "roc-1.svg").exists()
    assert "No reconstruction was scored." in words
    audited(run, 1.5, 4.4)
    write_report(run)
    assert "epsilon is at least 1.50; the accountant says at most 4.40: not refuted" in Page(run / "report.html").words


def test_a_damaged_file_of_scores_is_named(run):
    next(run.glob("attacks/*/judged.safetensors")).write_bytes(b"{}")
    write_report(run)
    assert "judged.safetensors" in Page(run / "report.html").words
    assert run_gate(run, "--tpr-at-fpr", "0.01:0.9")[0] == 2


@pytest.mark.parametrize(
    ("limit", "code", "words"),
    [
        ("0.001:0.4", 1, "tpr_at_0.001 mean 0.5 [0.429, 0.571] > 0.4"),
        ("0.001:0.5", 0, "PASSED"),
        ("0.01:0.7", 0, "PASSED"),
        ("0.0001:0.7", 2, "2000 non-members are too few"),
        ("0.01", 2, "takes RATE:SHARE"),
        ("0:0.5", 2, "takes RATE:SHARE"),
        ("0.1:nan", 2, "takes RATE:SHARE"),
    ],
)
def test_the_gate_judges_members_found_at_a_rate(run, limit, code, words):
    found = run_gate(run, "--tpr-at-fpr", limit)
    assert found[0] == code
    assert words in " ".join(found[1:])


def test_reconstructions_and_members_are_held_against_their_own_thresholds(run):
    code, out, _ = run_gate(run)
    assert (code, "no reconstruction was scored" in out) == (2, True)
    add_attack(run, [line()])
    assert run_gate(run)[0] == 0  # no threshold of images is asked of who rebuilds none
    assert run_gate(run, "--tpr-at-fpr", "0.001:0.6")[0] == 0
    assert run_gate(run, "--tpr-at-fpr", "0.001:0.4")[0] == 1
    assert run_gate(run, "--limit", "auc=0.6")[0] == 1


def test_the_gate_judges_the_canary_audit(run):
    assert run_gate(run, "--empirical-epsilon", "3")[0] == 2  # none was done
    audited(run, 2.5, 4.4)
    assert run_gate(run, "--empirical-epsilon", "3")[0] == 0
    assert run_gate(run, "--empirical-epsilon", "2")[0] == 1
    audited(run, 5.0, 4.4)
    code, out, _ = run_gate(run, "--empirical-epsilon", "9")  # within the limit, but not within the promise
    assert (code, "promised_epsilon" in out) == (1, True)
