"""An attack with members is two numbers: what it answered, and its worst member by truth, by which verdicts go."""

import csv
import io
import json

import pytest
import torch
from rich.console import Console

from fl_app import engines
from fl_app.analysis.conditions import conditions_of
from fl_app.analysis.results import read_study
from fl_app.analysis.verdict import verdict_of
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.cli.attack import attack_run
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.experiment.truth import true_examples
from fl_app.report import write_report
from fl_app.report.export import TABLES, read_checked
from fl_app.scoring.attacks import Scoring
from fl_app.scoring.target import TargetScore
from fl_app.store.files import RunError, save_tensors
from fl_app.store.reconstructions import guess_path, load_guess, save_guess
from fl_app.sweeps.table import table_of
from helpers.gate import add_attack, line, make_run, make_sweep, run_gate
from helpers.small_study import Page

WORST = {"psnr": {"value": 21.0, "member": "lbfgs"}, "ssim": {"value": 0.4, "member": "adam"}}


@pytest.fixture
def sweep(tmp_path):
    """Who answers stays within the limits; the worst members do not, by PSNR."""
    path = make_sweep(tmp_path / "sweep", [("none", [line(psnr=40.0)]), ("prune(ratio=0.9)", None)])
    run = make_run(path / "runs/1/training", defense="prune(ratio=0.9)")
    for who, grants in (("naive", []), ("informed", ["defense"])):
        scores = {"psnr": 14.0 if who == "informed" else 12.0}
        more = {"by_truth": WORST} if who == "informed" else {}
        add_attack(run, [line(**scores, **more), line(1, **scores, **more)], who, asked="standard", grants=grants)
    return path


def test_the_verdict_goes_by_the_worst_member(sweep):
    _, pruned = conditions_of(read_study(sweep).cells)
    assert [one.who for one in pruned.attackers] == ["naive", "informed", "informed, worst member by truth"]
    assert (pruned.informed().mean("psnr"), pruned.informed(by_truth=True).mean("psnr")) == (14.0, 21.0)
    assert pruned.naive(by_truth=True) is pruned.naive()
    verdict = verdict_of(pruned)
    assert verdict.fails
    assert verdict.reasons == ["PSNR 21.0 > 15 (informed, worst member by truth, standard)"]
    assert pruned.worst().members("psnr") == {"lbfgs": 2}


def test_both_numbers_are_shown_everywhere(sweep):
    told = io.StringIO()
    Console(file=told, width=200).print(table_of(read_study(sweep).cells))
    assert "14.0 0.10 0.600" in told.getvalue()
    assert "21.0 0.40 0.600 by truth" in told.getvalue()
    page = Page(write_report(sweep))
    assert page.row("prune(ratio=0.9)")[8].split() == ["14.0", "±", "0.0;", "by", "truth", "21.0", "±", "0.0"]
    assert "informed, worst member by truth" in page.words
    assert "a defense is as good as its worst attacker" in page.words
    with (sweep / "report/summary.csv").open() as rows:
        found = next(one for one in csv.DictReader(rows) if one["defense"] == "prune(ratio=0.9)")
    assert (float(found["informed_psnr_mean"]), float(found["informed_by_truth_psnr_mean"])) == (14.0, 21.0)
    assert "14.0 $\\pm$ 0.0 [\\textbf{21.0 $\\pm$ 0.0}]" in (sweep / "report/summary.tex").read_text()
    study = read_checked(sweep)
    row = next(row for row in TABLES["targets"](study) if row.get("who") == "informed")
    assert (row["psnr"], row["psnr_by_truth"], row["psnr_by_truth_member"]) == (14.0, 21.0, "lbfgs")
    row = next(row for row in TABLES["summary"](study) if row.get("who") == "informed")
    assert (row["psnr_mean"], row["psnr_by_truth_mean"], row["informed_psnr"], row["informed_psnr_by_truth"]) == (
        14,
        21,
        14,
        21,
    )
    assert row["verdict"] == "fails"


def test_the_gate_names_the_worst_member_and_what_was_answered(sweep):
    code, said, _ = run_gate(sweep)
    assert code == 1
    assert "informed, worst member by truth of standard" in said
    assert "psnr mean 21 dB [21, 21] (answered 14 dB) > 15 dB" in said


def test_scoring_keeps_the_worst_member_of_each_target_by_each_metric(small, tmp_path):
    assets = assets_of(small)
    x, y = true_examples(assets, 0, 1)
    near, far = (x + 0.02).clamp(0, 1), (x + 0.2).clamp(0, 1)
    others = {"near": (near, 1 - y.clamp(max=1)), "far": (far, y), "broken": (x * torch.nan, y)}
    save_guess(guess_path(tmp_path, (1, 0)), far, y, torch.tensor(0.1), {}, others)
    save_guess(guess_path(tmp_path, (1, 1)), far, y, torch.tensor(0.1), {})
    with_members, without = Scoring(assets, tmp_path, {}, perceptual=False).run([(1, 0), (1, 1)]).targets
    assert with_members.by_truth["psnr"].member == with_members.by_truth["ssim"].member == "near"
    assert with_members.by_truth["label_accuracy"].member == "far"
    assert with_members.values["psnr"] < with_members.by_truth["psnr"].value == with_members.at_worst.values["psnr"]
    assert without.by_truth == {}
    lines = [json.loads(text) for text in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert "by_truth" not in lines[1]
    assert [TargetScore.from_dict(one) for one in lines] == [with_members, without]


@pytest.mark.parametrize("bad", [[1], {"psnr": 3.0}, {"psnr": {"value": "x", "member": "a"}}, {"psnr": {"value": 3.0}}])
def test_worst_members_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match="by_truth"):
        TargetScore.from_dict(line(by_truth=bad))


def test_a_member_without_its_classes_is_a_damaged_file(tmp_path):
    x, y = torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64)
    save_tensors(tmp_path / "a.safetensors", {"x": x, "y": y, "loss": torch.zeros(1), "others/a: b/x": x}, {})
    with pytest.raises(RunError, match="not a reconstruction"):
        load_guess(tmp_path / "a.safetensors")


def test_the_command_shows_both_columns(small):
    run = engines.run(small.changed(batch_size=1, rounds=1, capture="1"), "inline", Watcher())
    session = Session(run, "idlg(iterations=2)", (), InlineWorker())
    for key in session.captured():
        x, y = true_examples(assets_of(session.experiment), key[1], key[0])
        notes = {"attack": session.attack, "ledger": "-", "visibility": "individual", "seconds": "1.0"}
        save_guess(guess_path(session.folder, key), 1 - x, y, torch.tensor(0.1), notes, {"right": (x, y), "wrong": (1 - x, y)})
    told = io.StringIO()
    attack_run(Console(file=told, width=250), run.path, [session.attack], grants=[], perceptual=False)
    assert "worst member" in told.getvalue()
    row = next(text for text in told.getvalue().splitlines() if text.split()[:1] == ["psnr"]).split()
    assert float(row[1]) < 20
    assert "100.000" in row
