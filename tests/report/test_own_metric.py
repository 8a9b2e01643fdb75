"""A new metric is one entry of the registry, or one name from outside: it is then in every file, table, report and gate."""

import csv
import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fl_app import engines
from fl_app.analysis.gate import LEAK, UNJUDGED
from fl_app.cli.attack import attack_run
from fl_app.engines.watcher import Watcher
from fl_app.report import write_report
from fl_app.report.export import TABLES, read_checked
from fl_app.scoring.base import Metric, Threshold
from fl_app.scoring.metrics import METRICS
from helpers.cli import thorns
from helpers.gate import app, run_gate
from helpers.small_study import Page

ATTACK = "idlg(iterations=2, restarts=1)"
MODULE = """
from fl_app.scoring.base import Metric, Threshold

nearest = Metric(
    title="nearest pixel <b>",
    unit="grey",
    digits=4,
    higher_leaks=False,
    threshold=Threshold(-1.0, "our own paper"),
    values=lambda pairs: (pairs.x - pairs.true_x).abs().flatten(1).amin(1),
)
"""


@pytest.fixture
def captured(small):
    return engines.run(small.changed(batch_size=1, rounds=1, capture="1", defense="prune(ratio=0.5)"), "inline", Watcher())


def everywhere(path, title):
    """The metric in scores, exports, report and its files."""
    for file in path.glob("attacks/*/scores.jsonl"):
        assert all(0 <= json.loads(line)["nearest"] < 1 for line in file.read_text().splitlines())
    study = read_checked(path)
    assert not study.problems
    targets, summary = TABLES["targets"](study), TABLES["summary"](study)
    assert all(row["nearest"] is not None for row in targets)
    assert all({"nearest_mean", "informed_nearest", "floor_noise_nearest"} <= row.keys() for row in summary)
    page = Page(write_report(path))
    heads = next(row for row in page.rows if row and row[0] == "#")
    assert heads.count(title) == 2  # naive and informed; markup stays text
    assert (path / "report/nearest.svg").exists()
    with (path / "report/summary.csv").open() as rows:
        assert float(next(csv.DictReader(rows))["informed_nearest_mean"]) >= 0
    assert f" & {title.partition(' <')[0]}" in (path / "report/summary.tex").read_text()
    return page


def test_one_entry_of_the_registry(captured, monkeypatch):
    threshold = Threshold(-1.0, "nobody")
    values = lambda pairs: (pairs.x - pairs.true_x).abs().flatten(1).amin(1)  # noqa: E731
    metric = Metric(title="nearest", higher_leaks=False, threshold=threshold, values=values)
    monkeypatch.setitem(METRICS, "nearest", metric)
    told = io.StringIO()
    attack_run(Console(file=told, width=250), captured.path, [ATTACK], grants=[], perceptual=False)
    assert any(line.split()[:1] == ["nearest"] for line in told.getvalue().splitlines())
    page = everywhere(captured.path, "nearest")
    assert "nearest -1 (nobody)" in page.words
    assert not list(captured.path.glob("attacks/*/metrics.json"))
    off = ("--psnr", "off", "--ssim", "off", "--lpips", "off")
    assert "the attack is too weak" in run_gate(captured.path, *off)[1]
    assert run_gate(captured.path, *off, "--limit", "nearest=2")[0] == LEAK


def test_a_metric_of_somebody_elses_module(captured, tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    words = ["attack", str(captured.path), "--attack", ATTACK, "--no-lpips"]
    refused = thorns(*words, "--metric", "mine:nerest", cwd=tmp_path)
    assert refused.returncode == 2
    assert "mine.py has no 'nerest'; it has: " in refused.stderr
    assert not (captured.path / "attacks").exists()  # before any work
    done = thorns(*words, "--metric", "mine:nearest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert any(line.split()[:1] == ["nearest"] for line in done.stdout.splitlines())
    (tmp_path / "mine.py").unlink()  # what follows reads results, and imports nothing of it
    page = everywhere(captured.path, "nearest pixel <b>")
    assert "nearest pixel <b> -1 grey (our own paper)" in page.words
    off = ("--psnr", "off", "--ssim", "off", "--lpips", "off")
    assert run_gate(captured.path, *off)[0] == UNJUDGED  # nothing leaks, to an attack that is too weak to tell
    code, out, _ = run_gate(captured.path, *off, "--limit", "nearest=2")
    assert code == LEAK
    assert "nearest mean" in out
    assert "< 2 grey" in out
    assert run_gate(captured.path, *off, "--limit", "nearest=off")[0] == UNJUDGED  # nothing is left to judge
    assert "did you mean 'nearest'" in run_gate(captured.path, "--limit", "nearst=2")[2]
    assert "METRIC=VALUE" in run_gate(captured.path, "--limit", "nearest")[2]
    assert run_gate(captured.path, *off, "--limit", "label_accuracy=-1")[0] == LEAK  # a threshold that nobody had named


def test_what_describes_a_metric_is_read_with_care(captured, tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    done = thorns("attack", str(captured.path), "--attack", ATTACK, "--no-lpips", "--metric", "mine:nearest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    described = sorted(captured.path.glob("attacks/*/metrics.json"))
    described[0].write_text('{"nearest": {"title": 3}}')
    assert "title must be str" in run_gate(captured.path)[1]
    described[0].unlink()  # the numbers are still there, under the name that they have
    assert "nearest" in TABLES["targets"](read_checked(captured.path))[0]
    again = thorns("attack", str(captured.path), "--attack", ATTACK, "--no-lpips", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert not list(captured.path.glob("attacks/*/metrics.json"))
    exported = CliRunner().invoke(app, ["export", str(captured.path), "--to", str(tmp_path / "t.csv")])
    assert exported.exit_code == 0
    assert "nearest" not in (tmp_path / "t.csv").read_text().splitlines()[0]
