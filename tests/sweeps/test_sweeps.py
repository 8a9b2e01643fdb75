"""Sweeps as a person starts them: results, a second time, what is seen meanwhile, and `thorns compare`."""

import io
import json

import pytest
from rich.console import Console

from fl_app.analysis.conditions import conditions_of
from fl_app.analysis.results import read_study
from fl_app.core import plugins
from fl_app.sweeps import command
from fl_app.sweeps.estimate import Estimator, try_out
from fl_app.sweeps.expand import make_plan
from fl_app.sweeps.file import read_sweep
from fl_app.sweeps.live import LiveTable
from helpers.small_sweep import journal


def test_a_sweep_its_results_and_the_same_again(file, sweep, tmp_path):
    code, said = sweep(file())
    out = tmp_path / "runs" / "small"
    assert code == 0, said
    assert "A small [one]: 3 cells" in said
    assert "3/3 prune(ratio=0.9), seed 0: accuracy 0." in said
    study = read_study(out)
    assert [cell.name for cell in study.cells] == [f"{d}, seed 0" for d in ("none", "prune(ratio=0.5)", "prune(ratio=0.9)")]
    assert not study.problems
    none, pruned, _ = conditions_of(study.cells)
    assert none.pmm == {0: 1.0}
    assert none.informed() is None
    assert pruned.informed() is not None
    assert pruned.pmm[0] == pytest.approx(pruned.accuracies[0] / none.accuracies[0])
    rows = [json.loads(line) for line in next(out.glob("runs/none*/targets/attacks/*/scores.jsonl")).read_text().splitlines()]
    assert none.naive().mean("psnr") == pytest.approx(sum(row["psnr"] for row in rows) / 3)
    kept, plan = journal(out, "started"), (out / "plan.json").read_text()
    assert set(kept.values()) == {1}
    code, said = sweep(out)  # the folder does as well as the file
    assert code == 0
    assert "all of it is finished" in said
    assert journal(out, "started") == kept
    assert (out / "plan.json").read_text() == plan
    longer = file()
    longer.write_text(longer.read_text().replace("0.5,0.9", "0.9,0.99"))
    code, said = sweep(longer)
    assert "to do: 2 runs and 1 attacks" in said  # of the new cell
    assert len(read_study(out).cells) == 3
    assert set(journal(out, "started").values()) == {1}


def test_a_dry_run_shows_cells_and_times_and_writes_nothing(file, sweep, tmp_path):
    code, said = sweep(file(), dry_run=True)
    assert code == 0
    assert "to do: 6 runs and 3 attacks" in said
    assert "prune(ratio=0.9), seed 0: about " in said
    assert not (tmp_path / "runs").exists()


def test_when_the_time_for_trials_is_up_one_of_a_kind_is_enough(file, tmp_path):
    plan = make_plan(read_sweep(file())[0], tmp_path / "out", "small.toml", "thorns sweep small.toml")
    found = Estimator()
    try_out(plan.units, found, budget=0.0)
    assert {kind.defense for kind in found.seconds} == {"none"}
    assert all(found.guess(unit) is not None for unit in plan.units)


def test_the_live_table_shows_progress_and_first_results(file, sweep, tmp_path, monkeypatch):
    shown = []
    ended = LiveTable.ended

    def look(self, cell, reason, *, before=False):
        ended(self, cell, reason, before=before)
        told = io.StringIO()
        Console(file=told, width=160).print(self)
        shown.append(told.getvalue())

    monkeypatch.setattr(LiveTable, "ended", look)
    assert sweep(file())[0] == 0
    assert "1/3 cells" in shown[0]
    assert "none" in shown[0]
    assert "prune" not in shown[0].partition("defense")[2]
    assert "3/3 cells" in shown[2]
    assert "prune(ratio=0.9)" in shown[2]


def test_compare_is_a_sweep_that_can_go_on_from_its_folder(pictures, sweep, tmp_path):
    settings = [f"dataset=imagefolder(path='{pictures}', size=12)", "rounds=2", "batch-size=4"]

    def compare(*more):
        told = io.StringIO()
        console = Console(file=told, width=200)
        scored = {"lpips": False, "metrics": []}
        options = {"targets": 2, "seeds": 1, "grant": "", "out": None, "workers": 1, "dry_run": False, **scored}
        command.compare(console, ["prune(ratio={0.5,0.9})"], [*settings, *more], ["idlg(iterations=2, restarts=1)"], **options)
        return told.getvalue()

    assert "baseline was added" in compare()
    (out,) = (tmp_path / "runs").glob("compare-*")
    study = read_study(out)
    assert [cell.varied["defense"] for cell in study.cells] == ["none", "prune(ratio=0.5)", "prune(ratio=0.9)"]
    assert all(cell.attacked.experiment.clients == 2 for cell in study.cells)
    code, said = sweep(out)
    assert code == 0
    assert "all of it is finished" in said
    with pytest.raises(ValueError, match="compare takes --attack instead"):
        compare("attack=idlg")


def test_a_sweep_scores_metrics_from_outside(file, sweep, tmp_path, monkeypatch):
    values = "lambda pairs: (pairs.x - pairs.true_x).flatten(1).mean(1)"
    (tmp_path / "brighter.py").write_text(
        f"from fl_app.scoring.base import Metric\nshift = Metric(title='shift', higher_leaks=False, values={values})\n"
    )
    path = file()
    path.write_text('metrics = ["brighter:shift"]\n' + path.read_text())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="brighter:shift"):
        sweep(path)  # a file does not allow code by naming it
    monkeypatch.setenv(plugins.ALLOW, "brighter:shift")
    code, said = sweep(path)
    assert code == 0, said
    assert "PSNR SSIM LPIPS shift" in said
    for condition in conditions_of(read_study(tmp_path / "runs" / "small").cells):
        assert -1 < condition.worst("shift").mean("shift") < 1
