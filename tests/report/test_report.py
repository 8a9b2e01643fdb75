"""Reports: numbers that can be traced to the run directory, honest verdicts, and no word from a file taken for markup."""

import csv
import json
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from fl_app.analysis.gate import UNJUDGED
from fl_app.cli.main import main
from fl_app.experiment.assets import assets_of
from fl_app.experiment.runs import experiment_of
from fl_app.experiment.truth import true_examples
from fl_app.report import write_report
from fl_app.report.charts import Point, pareto
from fl_app.report.export import TABLES, read_checked
from fl_app.report.files import latex_text
from fl_app.report.scale import Scale, spread
from fl_app.scoring.metrics import METRICS
from fl_app.store.runs import RunDir
from helpers import gate as gate_helpers
from helpers.small_study import HOSTILE, KEYS, Page, attack, make_run, make_sweep


@pytest.fixture(scope="module")
def study(pictures, tmp_path_factory):
    from fl_app.experiment.config import Experiment

    small = Experiment(dataset=f"imagefolder(path='{pictures}', size=12)", model="lenet", clients=3)
    return make_sweep(small, tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def page(study):
    return Page(write_report(study))


def test_three_numbers_are_found_again_in_the_run_directory(study, page):
    """Informed PSNR from the guesses and the data, its interval from scores.jsonl, PMM from metrics.jsonl."""
    row = page.row("prune(ratio=0.9)")
    values = []
    for place in (4, 5):
        run = RunDir.open(study / f"runs/{place}/training")
        (folder,) = [f.parent for f in run.path.glob("attacks/*/attack.json") if json.loads(f.read_text())["who"] == "informed"]
        for server_round, client in KEYS:
            guess = load_file(folder / f"round-{server_round:04d}/client-{client:02d}.safetensors")["x"].flip(0)
            truth, _ = true_examples(assets_of(experiment_of(run)), client, server_round)
            error = (guess.double() - truth.double()).pow(2).flatten(1).mean(1)
            values.append((-10 * error.log10()).mean().item())
    values = torch.tensor(values, dtype=torch.float64)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std().item() / len(values) ** 0.5
    assert row[8].split() == [f"{values.mean():.1f}", "±", f"{half:.1f}"]
    last = [json.loads((study / f"runs/{p}/training/metrics.jsonl").read_text().splitlines()[-1])["accuracy"] for p in range(6)]
    kept = [last[4] / last[0], last[5] / last[1]]
    assert row[4].split() == [f"{sum(kept) / 2:.3f}", f"{min(kept):.3f}", "to", f"{max(kept):.3f}"]
    with (study / "report/summary.csv").open() as rows:
        found = next(line for line in csv.DictReader(rows) if line["defense"] == "prune(ratio=0.9)")
    assert float(found["informed_psnr_mean"]) == pytest.approx(values.mean().item(), abs=1e-4)
    assert float(found["pmm_mean"]) == pytest.approx(sum(kept) / 2)


def test_a_defense_that_only_the_naive_attacker_misses_is_called_failing(page):
    assert page.row("none")[2] == "fails"
    row = page.row("prune(ratio=0.5)")
    assert row[2] == "fails"
    assert float(row[5].split()[0]) < 15 < float(row[8].split()[0])
    words = page.row("prune(ratio=0.9)")[2]
    assert words.startswith("not decided the attack is too weak: 10.")  # it rebuilds less than the mean of the class
    assert "Of 2 defended settings none is shown to hold: 1 fail the limits" in page.words
    assert "1 cannot be decided, as the attacks are too weak" in page.words


def test_what_failed_stays_visible(page):
    assert "2 of 8 cells have failed or are not finished" in page.words
    assert "out of memory" in page.words
    assert "not started" in page.words
    assert page.row("prune(ratio=0.9)")[12].split() == ["12", "1", "failed"]
    assert "1 target of idlg(iterations=1) diverged" in page.words
    assert page.row("sign")[2:5] == ["not attacked", "-", "-"]  # its training is there, but the cell failed


def test_what_was_known_run_and_needed_is_there(page):
    assert page.row("blind floor: class mean")[5].endswith(tuple("0123456789"))
    known = {(row[2], row[4], row[5]) for row in page.rows if len(row) == 11 and row[1] == "prune(ratio=0.5)"}
    assert known == {("naive", "nothing", "individual updates"), ("informed", "defense", "individual updates")}
    assert "thorns sweep small.toml" in page.words
    assert any(row[0].strip() == "flwr" for row in page.rows if row)
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 3 * 2 * 2 + 2 * 3 * 3 * 2  # most, median, least; truth, naive, informed; two examples each
    assert all(one["src"].startswith("data:image/png;base64,") and one["alt"] for one in images)
    assert len(page.source) < 1_000_000


def test_files_lie_beside_the_page(study, page):
    names = {path.name for path in (study / "report").iterdir()}
    charts = ("psnr", "ssim", "lpips-alex", "accuracy", "psnr-by-round")
    assert {"summary.csv", "attackers.csv", "summary.tex", *(f"{c}.{e}" for c in charts for e in ("svg", "png"))} <= names
    with (study / "report/attackers.csv").open() as rows:
        folders = [line["folders"].split() for line in csv.DictReader(rows) if line["folders"]]
    assert all((study / folder / "scores.jsonl").is_file() for one in folders for folder in one)


def test_latex_has_its_shape(study, page):
    text = (study / "report/summary.tex").read_text()
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    bare = text.replace(r"\{", "").replace(r"\}", "")
    assert bare.count("{") == bare.count("}")
    rows = [line for line in text.splitlines() if "texttt" in line]
    assert len(rows) == 4
    assert all(row.count(" & ") == 10 and row.endswith(r"\\") for row in rows)
    assert r"prune(ratio=0.5)" in rows[1]
    assert r"\textbf{" in rows[1]
    assert [row.split(" & ")[1] for row in rows] == ["fails", "fails", "not decided", "not attacked"]
    assert "not decided: the attack is too weak" in text
    assert latex_text(r"a_b & 50% {x} \end ~ ^ $ é") == (
        r"a\_b \& 50\% \{x\} \textbackslash{}end \textasciitilde{} \textasciicircum{} \$ ?"
    )


def test_hostile_words_stay_words(small, tmp_path):
    page = Page(write_report(make_sweep(small, tmp_path, hostile=True)))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert all(one["src"].startswith("data:") for tag, one in page.tags if tag == "img")
    assert not [tag for tag, _ in page.tags if tag in ("iframe", "object", "base")]
    assert all(one["href"].startswith(("#", "report/")) for tag, one in page.tags if tag == "a")
    assert HOSTILE in " ".join(page.text)
    assert "hacked" in (tmp_path / "report/summary.tex").read_text()


def test_a_run_without_attacks_and_a_sweep_without_cells(small, tmp_path):
    run = make_run(small, tmp_path / "run", "none", 0, 0.8)
    page = Page(write_report(run.path))
    assert "No attack was scored. none reached 80.0% accuracy." in page.words
    assert "not finished" not in page.words
    broken_off = make_run(small, tmp_path / "broken-off", "none", 0, 0.7, eval_every=1)
    kept = broken_off.metrics_path.read_text().splitlines()[:2]
    broken_off.metrics_path.write_text("\n".join(kept) + "\n")
    assert "The run is not finished: round 1 of 2." in Page(write_report(broken_off.path)).words
    assert "Reconstructions" not in page.words
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/plan.json").write_text(json.dumps({"title": "Nothing", "command": "thorns sweep", "cells": []}))
    assert "No run has been started." in Page(write_report(tmp_path / "empty")).words


def test_a_single_defended_run_that_only_naive_attackers_tried(small, tmp_path):
    run = make_run(small, tmp_path / "run", "sign", 0, 0.5)
    attack(run, "naive", 0.6)
    (run.path / "attacks/torn").mkdir()
    (run.path / "attacks/torn/scores.jsonl").write_text("{")
    page = Page(write_report(run.path))
    assert page.row("sign")[2].startswith("not decided the attack is too weak")
    assert "Some means are over no more than 6 targets" in page.words
    assert "torn/attack.json cannot be read" in page.words
    assert "50.0% accuracy" in page.words


def test_an_attack_that_infers_has_no_reconstructions_to_show(tmp_path):
    run = gate_helpers.make_run(tmp_path / "run", defense="sign")
    believed = {"round": 1, "client": 0, "status": "done", "loss": None, "ledger": "nothing", "unavailable": {}}
    gate_helpers.add_attack(run, [believed, {**believed, "client": 1}], asked="members")
    page = Page(write_report(run))
    assert page.row("sign")[2] == "not attacked"  # by nothing that a threshold is about
    assert "No reconstruction was scored." in page.words
    assert [row["status"] for row in TABLES["targets"](read_checked(run))] == ["done", "done"]
    assert TABLES["summary"](read_checked(run))[0]["psnr_n"] == 0
    code, out, _ = gate_helpers.run_gate(run)
    assert code == UNJUDGED
    assert "psnr was not scored on any target" in out


def test_data_that_is_gone_costs_the_pictures_only(small, tmp_path, monkeypatch):
    run = make_run(small, tmp_path / "run", "none", 0, 0.5)
    attack(run, "attack", 0.1)

    def gone(experiment):
        raise RuntimeError("the data set is not on this machine")

    monkeypatch.setattr("fl_app.report.gallery.truth_of", gone)
    page = Page(write_report(run.path))
    assert "no pictures: the data set is not on this machine" in page.words
    assert page.row("none")[2] == "fails"


def test_a_folder_that_is_no_study_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["thorns", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "neither a run" in capsys.readouterr().err


def test_the_front_has_no_setting_that_another_beats():
    points = [Point(x, y, n, str(n)) for n, (x, y) in enumerate([(0.9, 20), (0.8, 10), (0.7, 12), (0.9, 18), (0.5, 5)])]
    assert [point.number for point in pareto(points, METRICS["psnr"])] == [4, 1, 3]
    assert [point.number for point in pareto(points, METRICS["lpips_alex"])] == [0]


def test_labels_keep_their_distance_and_ticks_are_round():
    places = spread([10, 11, 11.5, 90, 99], 12, 0, 100)
    assert all(b - a >= 11.99 for a, b in pairwise(places))
    assert places[-1] <= 100
    assert Scale(0.03, 0.97, 0, 1).ticks() == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert Scale(1, 2, 0, 1, whole=True).ticks() == [1, 2]
    assert Scale(3, 2e4, 0, 1, log=True).ticks() == [10, 100, 1000, 10000]
