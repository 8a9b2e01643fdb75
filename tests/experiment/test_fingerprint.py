"""A run is scored, resumed and shown against the data that it was made with, or not at all."""

import json
import logging
import shutil

import pytest
from PIL import Image

from fl_app import data, engines
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.engines.watcher import Watcher
from fl_app.experiment import assets, fingerprint
from fl_app.experiment.runs import experiment_of
from fl_app.store.files import RunError
from helpers.cli import thorns
from helpers.engines import go

IDLG = "idlg(iterations=2, restarts=1)"


def forget():
    """As if this were a new process."""
    for cached in (data.load, assets._splits, assets.assets_of, fingerprint.fingerprint_of, fingerprint._note):
        cached.cache_clear()


@pytest.fixture
def own(small, pictures, tmp_path):
    """A run on a folder of its own, and that folder."""
    folder = tmp_path / "own"
    shutil.copytree(pictures, folder)
    changed = small.changed(dataset=f"imagefolder(path='{folder}', size=12)", batch_size=1, rounds=2, capture="1")
    yield go(changed), folder
    forget()


def repaint(folder):
    path = folder / "train" / "apple" / "00.png"
    Image.new("RGB", (12, 12), (1, 2, 3)).save(path)
    forget()


def test_a_changed_image_is_refused_by_attacks_and_by_a_longer_run(own, tmp_path):
    run, folder = own
    before = thorns("attack", str(run.path), "--attack", IDLG, "--no-lpips", cwd=tmp_path)
    assert before.returncode == 0, before.stderr
    scores = next(run.path.glob("attacks/*/scores.jsonl"))
    kept = scores.read_text()
    repaint(folder)
    for words in (
        ["attack", str(run.path), "--attack", IDLG, "--no-lpips"],
        ["run", "--resume", str(run.path), "-c", "rounds=3"],
    ):
        after = thorns(*words, cwd=tmp_path)
        assert after.returncode == 2
        assert "is not the data that" in after.stderr
        assert "run the experiment again" in after.stderr
        assert json.loads((run.path / "data.json").read_text())["content"] in after.stderr
        assert "Traceback" not in after.stderr
    assert scores.read_text() == kept


def test_a_renamed_image_is_refused_too(own):
    run, folder = own
    (folder / "train" / "apple" / "00.png").rename(folder / "train" / "apple" / "00a.png")
    forget()
    with pytest.raises(RunError, match="is not the data that"):
        Session(run, IDLG, (), InlineWorker())


def test_data_that_only_moved_in_time_is_the_same(own):
    run, folder = own
    (folder / "train" / "apple" / "00.png").touch()
    forget()
    Session(run, IDLG, (), InlineWorker())


def test_a_report_shows_no_picture_of_other_data(own, tmp_path):
    run, folder = own
    assert thorns("attack", str(run.path), "--attack", IDLG, "--no-lpips", cwd=tmp_path).returncode == 0
    repaint(folder)
    reported = thorns("report", str(run.path), cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    assert any("is not the data that" in page.read_text() for page in run.path.rglob("*.html"))


def test_a_run_from_before_there_was_a_record_still_works_with_a_note(own, caplog):
    run, _ = own
    (run.path / "data.json").unlink()
    with caplog.at_level(logging.INFO, "thorns"):
        Session(run, IDLG, (), InlineWorker())
        Session(run, IDLG, (), InlineWorker())
    assert caplog.text.count("has no record of its data") == 1
    engines.run(experiment_of(run).changed(rounds=3), "inline", Watcher(), resume=True)


def test_a_damaged_record_is_named(own):
    run, _ = own
    (run.path / "data.json").write_text("[")
    with pytest.raises(RunError, match=r"data\.json cannot be read: it is damaged"):
        Session(run, IDLG, (), InlineWorker())
