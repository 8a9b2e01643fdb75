"""A full disk costs captures, never training: checkpoints have room of their own, and a failed one leaves the last."""

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from fl_app.engines import serving
from fl_app.engines.watcher import Watcher
from fl_app.store.captures import Captures
from fl_app.store.files import RunError, save_tensors, write_atomic
from fl_app.store.lines import LineFile, read_lines
from fl_app.store.runs import RunDir
from helpers.engines import go, same, weights_of


@pytest.fixture
def little_disk(tmp_path):
    """A disk of 1.5 MB."""
    if os.geteuid() != 0:
        pytest.skip("making a small disk needs root")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no small disk can be made here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


class Cramped(Watcher):
    """Lets no file grow beyond a size between two rounds."""

    def __init__(self, size, first, last):
        self.size, self.first, self.last = size, first, last
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_round(self, line):
        if line["round"] == self.first:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))
        if line["round"] == self.last:
            self.free()

    def free(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.fixture
def cramped():
    watchers = []

    def make(*words):
        watchers.append(Cramped(*words))
        return watchers[-1]

    yield make
    for one in watchers:
        one.free()


def test_captures_that_fill_the_disk_leave_room_for_every_checkpoint(small, little_disk, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(serving, "CHECKPOINT_SECONDS", 0.0)
    whole = go(small.changed(rounds=40))
    full = small.changed(rounds=40, capture="all", run_dir=str(little_disk / "run"))
    run = go(full)
    assert "a capture is lost" in caplog.text, "the disk was not full"
    assert 0 < len(Captures(run.path / "captures").paths()) < 40 * 3
    assert run.load_checkpoint().server_round == 40
    assert same(weights_of(run), weights_of(whole))
    assert not run.reserve_path.exists()
    assert go(full.changed(rounds=41), resume=True).load_checkpoint().server_round == 41


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_and_training_goes_on(small, cramped, monkeypatch, caplog):
    monkeypatch.setattr(serving, "CHECKPOINT_SECONDS", 0.0)
    kept = []

    class Looks(Cramped):
        def on_round(self, line):
            super().on_round(line)
            found = RunDir(run_dir).load_checkpoint()
            kept.append(found.server_round if found else 0)

    run_dir = Path(small.run_dir)
    watcher = Looks(20000, 3, 5)
    try:
        run = go(small, watcher=watcher)
    finally:
        watcher.free()
    assert kept == [0, 0, 1, 2, 2, 2, 5]  # as of the end of the round before; those of rounds 3 and 4 failed
    assert run.load_checkpoint().server_round == 6
    assert caplog.text.count("there is no newer checkpoint, the last one is kept") == 1
    assert "Traceback" not in caplog.text


def test_the_last_checkpoint_is_worth_an_error_that_says_how_to_go_on(small, cramped):
    watcher = cramped(20000, 3, 99)
    with pytest.raises(RunError, match="make room and go on with `thorns run --resume"):
        go(small, watcher=watcher)
    watcher.free()
    assert go(small, resume=True).load_checkpoint().server_round == 6


def test_every_way_to_write_fails_with_the_name_of_the_file(tmp_path, cramped, grads):
    cramped(100, 1, 9).on_round({"round": 1})
    (tmp_path / "text").write_text("old")
    for name, write in {
        "text": lambda path: write_atomic(path, "x" * 101),
        "tensors": lambda path: save_tensors(path, grads, {}),
        "lines": lambda path: LineFile(path).append({"words": "x" * 101}),
    }.items():
        with pytest.raises(RunError, match=f"{name} cannot be written: .*[Ff]ile too large"):
            write(tmp_path / name)
    assert (tmp_path / "text").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.stat().st_size) == ["text"]


def test_lines_that_could_not_be_written_come_with_the_next_one(tmp_path, cramped):
    run, lines = RunDir(tmp_path), [{"round": number, "word": "x" * 40} for number in range(4)]
    run.record(lines[0])
    watcher = cramped(80, 1, 2)
    watcher.on_round({"round": 1})
    for line in lines[1:3]:
        with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written"):
            run.record(line)
    assert run.metrics() == lines[:1]
    watcher.free()
    run.record(lines[3])
    assert run.metrics() == lines


def test_what_a_crash_left_of_a_line_does_not_damage_the_next(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps({"a": 1}) + '\n{"a": ')
    assert read_lines(path) == [{"a": 1}]
    LineFile(path).append({"a": 2})
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
