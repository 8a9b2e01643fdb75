"""Sweeps that are interrupted: failures, Ctrl-C, SIGKILL, half a run, and any number of workers after that."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fl_app.analysis.results import read_study
from fl_app.store.locks import alone
from fl_app.sweeps import command, work
from helpers.small_sweep import journal, results_of


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
