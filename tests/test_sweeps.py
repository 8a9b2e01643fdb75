"""Sweeps as a person starts them: results, a second time, failures, Ctrl-C, SIGKILL, and any number of workers."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import typer
from rich.console import Console
from safetensors.torch import load_file

from fl_app.results import read_study
from fl_app.sweeps import command, work
from fl_app.sweeps.live import View
from fl_app.sweeps.locks import alone
from fl_app.sweeps.table import lines_of

FILE = """
title = "A small [one]"
seeds = [0]
attacks = ["idlg(iterations=2, restarts=1)"]
lpips = false
[run]
dataset = "{dataset}"
model = "lenet"
clients = 2
batch-size = 4
rounds = {rounds}
eval-every = 2
defense = ["none", "prune(ratio={{0.5,0.9}})"]
[targets]
clients = 3
client-examples = 1
batch-size = 1
rounds = 1
capture = "1"
"""


@pytest.fixture
def file(pictures, tmp_path):
    """Writes a sweep file into a folder of its own."""

    def write(rounds=4, name="small"):
        path = tmp_path / f"{name}.toml"
        path.write_text(FILE.format(dataset=f"imagefolder(path='{pictures}', size=12)", rounds=rounds))
        return path

    return write


@pytest.fixture
def sweep(monkeypatch, tmp_path):
    """Runs `thorns sweep` in this process, without its report; (exit code, what it said)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_report", lambda *_: None)

    def start(path, out=None, workers=1, dry_run=False):
        told = io.StringIO()
        try:
            command.sweep(Console(file=told, width=200), path, out, workers, dry_run=dry_run)
        except typer.Exit as end:
            return end.exit_code, told.getvalue()
        return 0, told.getvalue()

    return start


def journal(folder, event):
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return Counter(line["unit"] for line in lines if line["event"] == event)


def results_of(folder):
    """All that must not depend on workers or interruptions: weights, metrics without their clocks, guesses, scores."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            found[name] = {key: value.tolist() for key, value in load_file(path).items()}
        elif path.name in ("metrics.jsonl", "scores.jsonl", "floors.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    return found


def test_a_sweep_its_results_and_the_same_again(file, sweep, tmp_path):
    code, said = sweep(file())
    out = tmp_path / "runs" / "small"
    assert code == 0, said
    assert "A small [one]: 3 cells" in said
    assert "3/3 prune(ratio=0.9), seed 0: accuracy 0." in said
    study = read_study(out)
    assert [cell.name for cell in study.cells] == [f"{d}, seed 0" for d in ("none", "prune(ratio=0.5)", "prune(ratio=0.9)")]
    assert not study.problems
    none, pruned, _ = lines_of(study.cells)
    assert none.pmm == pytest.approx(100)
    assert none.informed is None
    assert pruned.informed is not None
    assert pruned.pmm == pytest.approx(100 * pruned.accuracy / none.accuracy)
    rows = [json.loads(line) for line in next(out.glob("runs/none*/targets/attacks/*/scores.jsonl")).read_text().splitlines()]
    assert none.naive.scores["psnr"].mean == pytest.approx(sum(row["psnr"] for row in rows) / 3)
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


def test_a_failed_cell_stays_visible_and_is_tried_again(file, sweep, tmp_path, monkeypatch):
    train = work.train

    def sometimes(experiment):
        if experiment.defense == "prune(ratio=0.5)" and experiment.clients == 3:
            raise RuntimeError("no [luck] today")
        return train(experiment)

    monkeypatch.setattr(work, "train", sometimes)
    code, said = sweep(file())
    out = tmp_path / "runs" / "small"
    assert code == 1
    assert "failed: prune(ratio=0.5), seed 0: RuntimeError: no [luck] today" in said
    assert [cell.failed for cell in read_study(out).cells] == [None, "RuntimeError: no [luck] today", None]
    assert "3/3" in said  # the rest went on
    monkeypatch.setattr(work, "train", train)
    before = journal(out, "finished")
    code, said = sweep(file())
    assert code == 0
    assert all(cell.failed is None for cell in read_study(out).cells)
    assert {name: number for name, number in journal(out, "finished").items() if name in before} == before


def test_a_run_without_any_usable_reply_has_failed(file, sweep, monkeypatch):
    monkeypatch.setattr("client_defenses.prune.Prune.on_gradient", lambda *_: {})
    monkeypatch.setattr(command, "check", lambda *_, **__: [])  # which would have refused it
    code, said = sweep(file())
    assert code == 1
    assert "no reply of a client was usable in 4 rounds" in said


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(file, sweep, tmp_path, monkeypatch):
    do, seen = work.do, []

    def interrupted(unit):
        seen.append(unit.name)
        if len(seen) == 4:
            raise KeyboardInterrupt
        do(unit)

    monkeypatch.setattr(work, "do", interrupted)
    code, said = sweep(file())
    assert code == 130
    assert "go on with: thorns sweep runs/small" in said
    out = tmp_path / "runs" / "small"
    assert len(journal(out, "finished")) == 3
    monkeypatch.setattr(work, "do", do)
    assert sweep(out)[0] == 0
    assert set(journal(out, "started").values()) == {1}


def cut_short(run):
    (run / "checkpoint.safetensors").unlink()
    (run / "metrics.jsonl").write_text('{"round": 0, "seco')


def of_other_settings(run):
    text = (run / "experiment.toml").read_text()
    (run / "experiment.toml").write_text(text.replace("rounds = 4", "rounds = 9"))


def half_written(run):
    (run / "checkpoint.safetensors").write_bytes(b"half")


def test_half_a_run_is_gone_on_with_or_thrown_away(file, sweep, tmp_path):
    path = file()
    path.write_text(path.read_text().replace("prune(ratio={0.5,0.9})", "none").replace("seeds = [0]", "seeds = [0, 1, 2]"))
    assert sweep(path, Path("whole"))[0] == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for seed, damage in enumerate((cut_short, of_other_settings, half_written)):
        run = next((tmp_path / "cut" / "runs").glob(f"none-s{seed}-*/training"))
        (tmp_path / "cut" / "work" / f"{run.parent.name}.json").unlink()
        damage(run)
    code, said = sweep(path, Path("cut"))
    assert code == 0
    assert "to do: 3 runs and 0 attacks" in said
    assert results_of(tmp_path / "cut") == results_of(tmp_path / "whole")


def test_sigkill_on_two_workers_then_one_worker_loses_and_repeats_nothing(file, sweep, tmp_path):
    """The rest is done by one worker: results must not depend on how many there are."""
    path, out = file(rounds=40), tmp_path / "killed"
    thorns = Path(sys.executable).parent / "thorns"
    words = [thorns, "sweep", path, "--out", out, "--workers", "2"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    began = time.monotonic()
    while len(list((out / "work").glob("[!.]*.json"))) < 2:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() - began < 300
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = time.monotonic()
    at_work = {json.loads(line)["process"] for line in (out / "journal.jsonl").read_text().splitlines()}
    assert len(at_work) == 2
    while any(os.path.exists(f"/proc/{pid}/cmdline") and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in at_work):
        assert time.monotonic() - killed < 60  # workers do not outlive the command
        time.sleep(0.05)
    finished = {path.stem for path in (out / "work").glob("[!.]*.json")}
    before = journal(out, "started")
    assert len(finished) < 9
    code, said = sweep(path, out)
    assert code == 0, said
    after = journal(out, "started")
    assert all(after[name] == before[name] == 1 for name in finished)
    assert len(after) == 9
    assert sweep(path, Path("whole"))[0] == 0
    assert results_of(out) == results_of(tmp_path / "whole")


def test_a_second_sweep_in_the_same_folder_is_refused(file, sweep, tmp_path):
    with alone(tmp_path / "runs" / "small" / ".lock"), pytest.raises(ValueError, match="another sweep is at work"):
        sweep(file())


def test_the_live_table_shows_progress_and_first_results(file, sweep, tmp_path, monkeypatch):
    shown = []
    ended = View.ended

    def look(self, cell, reason, *, before=False):
        ended(self, cell, reason, before=before)
        told = io.StringIO()
        Console(file=told, width=160).print(self)
        shown.append(told.getvalue())

    monkeypatch.setattr(View, "ended", look)
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
        options = {"targets": 2, "seeds": 1, "grant": "", "lpips": False, "out": None, "workers": 1, "dry_run": False}
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
