"""What looks like an example whatever an update says is a leak only as far as it beats its control."""

import csv

import pytest
import torch

from fl_app.analysis.conditions import conditions_of
from fl_app.analysis.findings import findings_of
from fl_app.analysis.gate import UNJUDGED
from fl_app.analysis.limits import limits_of
from fl_app.analysis.results import read_study
from fl_app.analysis.verdict import nearly_fails, verdict_of
from fl_app.report import write_report
from fl_app.report.export import TABLES
from fl_app.scoring.answers import score_answer
from fl_app.scoring.base import Tools
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.target import TargetScore
from fl_app.store.reconstructions import guess_path, load_guess, save_guess
from helpers.gate import add_attack, line, make_run, make_sweep, run_gate
from helpers.small_study import Page


def drawn(place, psnr, control):
    return line(place, psnr=psnr, control={"psnr": control, "ssim": 0.1, "lpips": 0.6})


@pytest.fixture
def sweep(tmp_path):
    """Undefended it beats its control; defended it draws as fine images, and finds as much in an update that says nothing."""
    undefended = [drawn(place, 20.0 + place, 11.0) for place in range(3)]
    path = make_sweep(tmp_path / "sweep", [("none", undefended), ("prune(ratio=0.9)", None)])
    run = make_run(path / "runs/1/training", defense="prune(ratio=0.9)")
    add_attack(run, [drawn(place, 18.0 + place, 18.5 + place / 2) for place in range(3)], "attack", asked="ggl")
    return path


def test_what_does_not_beat_its_control_is_no_leak(sweep):
    plain, pruned = conditions_of(read_study(sweep).cells)
    assert verdict_of(plain).fails
    assert pruned.worst().mean("psnr") == 19.0
    assert pruned.worst().control("psnr").mean == 19.0
    verdict = verdict_of(pruned)
    assert verdict.word == "not decided"
    assert "no more than the same attack finds in updates that say nothing" in verdict.reasons[0]
    assert not nearly_fails(pruned)


def test_one_that_beats_it_leaks(sweep):
    run = sweep / "runs/1/training"
    add_attack(run, [drawn(place, 18.0 + place, 12.0) for place in range(3)], "naive", asked="gias")
    _, pruned = conditions_of(read_study(sweep).cells)
    assert verdict_of(pruned).fails
    assert verdict_of(pruned).reasons[0].startswith("PSNR 19.0 > 15")


def test_two_targets_that_disagree_are_not_enough(sweep):
    folder = sweep / "runs/1/training"
    add_attack(folder, [drawn(0, 30.0, 12.0), drawn(1, 12.5, 12.0)], "naive", asked="gifd")
    _, pruned = conditions_of(read_study(sweep).cells)
    attacker = next(one for one in pruned.attackers if one.asked == "gifd")
    assert attacker.mean("psnr") == 21.25
    assert not attacker.leaks("psnr", METRICS["psnr"])


def test_a_control_is_shown_beside_what_it_belongs_to(sweep):
    page = Page(write_report(sweep))
    assert "control 19.0" in page.words
    with (sweep / "report/attackers.csv").open() as rows:
        found = [one for one in csv.DictReader(rows) if one["asked"] == "ggl"]
    assert float(found[0]["control_psnr_mean"]) == 19.0
    rows = TABLES["targets"](read_study(sweep))
    assert {one.get("psnr_control") for one in rows if one["status"] == "done"} >= {11.0, 18.5, 19.0}
    code, told, why = run_gate(sweep, "--psnr", "15")
    assert code == UNJUDGED
    assert "no more than the same attack finds" in told + why
    _, pruned = conditions_of(read_study(sweep).cells)
    found = findings_of(pruned.worst(), limits_of(pruned.measures))
    assert "psnr mean 19 dB" in found[0].words()
    assert "(its control 19 dB, no less)" in found[0].words()
    assert found[0].as_json()["control"] == 19.0


def test_a_control_is_kept_scored_and_read_again(tmp_path):
    x, y = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1])
    other = torch.full_like(x, 0.5)
    save_guess(guess_path(tmp_path, (1, 0)), x, y, torch.zeros(()), {}, control=other)
    assert torch.equal(load_guess(guess_path(tmp_path, (1, 0))).control, other)
    metrics = {"psnr": METRICS["psnr"]}
    target = score_answer(tmp_path, (1, 0), (x, y), {}, metrics, Tools()).target
    assert target.values["psnr"] == 100
    assert 5 < target.control["psnr"] < 20
    assert TargetScore.from_dict(target.to_dict()) == target
    with pytest.raises(ValueError, match="control psnr"):
        TargetScore.from_dict({**target.to_dict(), "control": {"psnr": "high"}})
