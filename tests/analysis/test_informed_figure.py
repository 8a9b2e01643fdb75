"""An informed attacker is never shown as weaker than a naive one: who knows the defense can ignore what it knows."""

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
from fl_app.attacking.attackers import sessions_of
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.cli.attack import attack_run
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.experiment.truth import true_examples
from fl_app.report import write_report
from fl_app.report.export import TABLES, read_checked
from fl_app.scoring.metrics import METRICS
from fl_app.store.reconstructions import guess_path, save_guess
from fl_app.sweeps.table import table_of
from helpers.gate import add_attack, failed, line, make_run, make_sweep
from helpers.small_study import Page


@pytest.fixture
def sweep(tmp_path):
    """The naive attacker is ahead by PSNR, one informed attacker by SSIM, the other by LPIPS."""
    path = make_sweep(tmp_path / "sweep", [("none", [line(psnr=40.0)]), ("prune(ratio=0.9)", None)])
    run = make_run(path / "runs/1/training", defense="prune(ratio=0.9)")
    for who, scores in {
        "naive": {"psnr": 14.0, "ssim": 0.2, "lpips_alex": 0.5},
        "informed: support": {"psnr": 12.0, "ssim": 0.4, "lpips_alex": 0.6},
        "informed: replay": {"psnr": 10.0, "ssim": 0.3, "lpips_alex": 0.3},
    }.items():
        grants = [] if who == "naive" else ["defense"]
        add_attack(run, [line(**scores), line(1, **scores)], who, attack=f"idlg(who='{who}')", grants=grants)
    return path


def test_the_worst_of_all_counts_by_each_measure(sweep):
    none, pruned = conditions_of(read_study(sweep).cells)
    names = {metric: pruned.informed(metric).who for metric in ("psnr", "ssim", "lpips_alex")}
    assert names == {"psnr": "naive", "ssim": "informed: support", "lpips_alex": "informed: replay"}
    for metric, measure in METRICS.items():
        means = [mean for one in pruned.attackers if (mean := one.mean(metric)) is not None]
        if means:
            shown = pruned.informed(metric).mean(metric)
            assert measure.leak(shown) == max(measure.leak(mean) for mean in means)
    assert pruned.told().who == "informed: support"
    assert none.informed() is None  # nobody knew anything: there is no such figure
    assert verdict_of(pruned).word == "holds"


def test_it_is_the_worst_of_all_everywhere(sweep):
    told = io.StringIO()
    Console(file=told, width=200).print(table_of(read_study(sweep).cells))
    (row,) = [text for text in told.getvalue().splitlines() if "prune" in text]
    assert "14.0 0.20 0.500" in row
    assert "14.0 0.40 0.300 naive; by SSIM support; by LPIPS replay" in row
    page = Page(write_report(sweep))
    shown = page.row("prune(ratio=0.9)")
    assert [text.split()[0] for text in shown[5:11]] == ["14.0", "0.20", "0.500", "14.0", "0.40", "0.300"]
    assert shown[11].startswith("naive; by SSIM informed: support; by LPIPS informed: replay")
    assert "Informed: the worst of all attackers by each measure, the naive ones included" in page.words
    with (sweep / "report/summary.csv").open() as rows:
        found = next(one for one in csv.DictReader(rows) if one["defense"] == "prune(ratio=0.9)")
    assert (float(found["informed_psnr_mean"]), found["informed_psnr_who"]) == (14.0, "naive")
    assert (float(found["informed_ssim_mean"]), found["informed_ssim_who"]) == (0.4, "informed: support")
    table = (sweep / "report/summary.tex").read_text()
    assert "14.0 $\\pm$ 0.0$^n$ & 0.40 $\\pm$ 0.00 & 0.300" in table
    assert "the worst of all attackers" in table
    rows = [row for row in TABLES["summary"](read_checked(sweep)) if row["defense"].startswith("prune")]
    assert {(row["informed_psnr"], row["informed_psnr_who"]) for row in rows} == {(14.0, "naive")}
    assert {(row["informed_lpips_alex"], row["informed_lpips_alex_who"]) for row in rows} == {(0.3, "informed: replay")}
    assert {row["psnr_mean"] for row in rows} == {14.0, 12.0, 10.0}  # each attacker's own figures stay


def test_an_informed_attacker_that_failed_everywhere_is_no_informed_figure(tmp_path):
    run = make_run(tmp_path / "run", defense="prune(ratio=0.9)")
    add_attack(run, [line()], "naive")
    add_attack(run, [failed()], "informed", grants=["defense"])
    (condition,) = conditions_of(read_study(run).cells, unfinished=True)
    assert condition.informed() is None
    assert verdict_of(condition).word == "holds (naive only)"


def test_the_command_names_the_worst_attacker(small, tmp_path):
    """Reconstructions that are on disk already are scored: the naive ones are nearly exact, the informed ones are noise."""
    run = engines.run(small.changed(batch_size=1, rounds=1, capture="1", defense="prune(ratio=0.5)"), "inline", Watcher())
    text = "idlg(iterations=2)"
    first = Session(run, text, (), InlineWorker())
    assets = assets_of(first.experiment)
    sessions = sessions_of(first, first.captured(), informed=True)
    for session in sessions:
        for key in first.captured():
            x, y = true_examples(assets, key[1], key[0])
            rebuilt = (x + 0.02).clamp(0, 1) if session.who == "naive" else 1 - x
            notes = {"attack": session.attack, "ledger": "-", "visibility": "individual", "seconds": "1.0"}
            save_guess(guess_path(session.folder, key), rebuilt, y, torch.tensor(0.1), notes)
    told = io.StringIO()
    attack_run(Console(file=told, width=250), run.path, [text], grants=[], perceptual=False)
    said = told.getvalue()
    assert all(session.attack in said for session in sessions)  # lists in a spec are no markup
    assert "informed figures: the worst of all attackers by each measure, the naive ones included" in said
    closing = next(text for text in said.splitlines() if text.startswith("worst for the defense: "))
    assert "dB by naive, SSIM" in closing
    row = next(text for text in said.splitlines() if text.split()[:1] == ["psnr"]).split()
    assert row[1] == row[-4]  # the column of the worst is as the naive one; three floors come after it
    alone = io.StringIO()
    attack_run(Console(file=alone, width=250), run.path, [text], grants=[], perceptual=False, informed=False)
    assert "worst for the defense" not in alone.getvalue()
    assert json.loads((first.folder / "attack.json").read_text())["who"] == "attack"
