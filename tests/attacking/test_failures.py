"""Failed targets: what is tried again, what is said of them, and how a command ends."""

import json
import os

import pytest

from fl_app.analysis.results import read_attack
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.store.files import RunError
from fl_app.store.lines import read_lines
from helpers.cli import thorns
from helpers.engines import go

IDLG = "idlg(iterations=2, restarts=1)"


@pytest.fixture
def captured(small):
    return go(small.changed(batch_size=1, rounds=1, capture="all"))


def session_of(run, text=IDLG):
    return Session(run, text, (), InlineWorker())


def command(run, tmp_path, text=IDLG):
    return thorns("attack", str(run.path), "--attack", text, "--no-lpips", cwd=tmp_path)


def in_the_way(run):
    """A file where the answers of the round belong."""
    session = session_of(run)
    session.folder.mkdir(parents=True)
    blocked = session.folder / "round-0001"
    blocked.write_text("")
    return session, blocked


def test_what_failed_is_tried_again_once_the_cause_has_passed(captured, tmp_path):
    session, blocked = in_the_way(captured)
    first = command(captured, tmp_path)
    assert first.returncode == 1, first.stderr
    assert first.stdout.count("failed: ") == 3
    assert "Traceback" not in first.stderr
    blocked.unlink()
    second = command(captured, tmp_path)
    assert second.returncode == 0, second.stdout
    assert second.stdout.count("(tried again)") == 3
    assert session.failures() == {}
    assert [target.done for target in read_attack(session.folder).targets] == [True] * 3


def test_a_session_tries_only_once(captured):
    session, _ = in_the_way(captured)
    keys = session.captured()
    session.work(session.pending(keys), 64)
    assert session.failures().keys() == set(keys)
    assert session.pending(keys) == []
    assert session_of(captured).pending(keys) == keys


def test_a_damaged_capture_is_not_tried_again_but_its_reason_is_shown(captured, tmp_path):
    (captured.path / "captures" / "round-0001" / "client-01.safetensors").write_bytes(b"damaged")
    assert command(captured, tmp_path).returncode == 0
    again = command(captured, tmp_path)
    assert again.returncode == 0
    assert "round 1, client 1 failed before: the capture cannot be used" in again.stdout
    assert "failed.jsonl for that" in again.stdout
    session = session_of(captured)
    assert [line["final"] for line in read_lines(session.failures_path)] == [True]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_capture_that_may_not_be_read_is_tried_again(captured):
    (captured.path / "captures" / "round-0001" / "client-01.safetensors").chmod(0)
    session = session_of(captured)
    session.work(session.captured(), 64)
    assert session_of(captured).pending(session.captured()) == [(1, 1)]


def test_an_attack_that_fails_on_every_target_ends_with_1_also_the_second_time(captured, tmp_path):
    for _ in range(2):
        done = command(captured, tmp_path, "idlg(labels='given')")
        assert done.returncode == 1
        assert "grant labels" in done.stdout


@pytest.mark.parametrize("name", ["failed.jsonl", "timing.jsonl", "scores.jsonl", "floors.jsonl", "metrics.jsonl"])
def test_a_cut_off_last_line_is_dropped_and_other_damage_is_named(name, captured, tmp_path):
    assert command(captured, tmp_path).returncode == 0
    session = session_of(captured)
    path = captured.metrics_path if name == "metrics.jsonl" else session.folder / name
    readers = {"failed.jsonl": session_of(captured).failures, "metrics.jsonl": captured.metrics}
    read = readers.get(name, lambda: read_attack(session.folder))
    if not path.exists():
        path.write_text(json.dumps({"round": 9, "client": 0, "reason": "why"}) + "\n")
    before = read()
    with path.open("a") as out:
        out.write('{"round": 9, "cli')
    if name in ("scores.jsonl", "floors.jsonl"):  # written whole: no crash does this, and a target would be missing
        with pytest.raises(RunError, match=f"{name}, line [0-9]+ is damaged"):
            read()
    else:
        assert read() == before
    path.write_text('{"cut\n' + path.read_text())
    with pytest.raises(RunError, match=f"{name}, line 1 is damaged"):
        read()


def test_an_attack_goes_on_after_a_crash_in_the_middle_of_a_line(captured, tmp_path):
    session = session_of(captured)
    session.folder.mkdir(parents=True)
    for path in (session.failures_path, session.timing_path):
        path.write_text('{"round": 1, "cli')
    done = command(captured, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(read_lines(session.timing_path)) == 1
