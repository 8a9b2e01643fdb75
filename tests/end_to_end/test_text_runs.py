"""Text from the training to the gate, on a data set from outside: what works on images works on sentences."""

import json

import pytest
import torch
from safetensors.torch import save_file

from fl_app.core.text import SPECIAL
from helpers.cli import thorns
from helpers.small_text import DATA, WORDS

SET = "said:sentences"
MODEL = "bert(dim=16, depth=1, heads=2, freeze=False)"
SETTINGS = {
    "dataset": SET,
    "model": MODEL,
    "clients": 3,
    "client-examples": 10,
    "batch-size": 1,
    "rounds": 2,
    "eval-every": 2,
    "capture": 1,
    "run-dir": "text",
}
APP = """
from fl_app import models


def net():
    return models.build("bert(dim=16, depth=1, heads=2, freeze=False)", (10, 20), 2)
"""


def run_in(place, **changes):
    settings = SETTINGS | {key.replace("_", "-"): value for key, value in changes.items()}
    words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    return thorns("run", *words, "--allow", SET, cwd=place)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose first round was attacked."""
    place = tmp_path_factory.mktemp("text")
    (place / "said.py").write_text(DATA)
    (place / "app.py").write_text(APP)
    found = run_in(place)
    assert found.returncode == 0, found.stderr
    found = thorns("attack", "text", "--attack", "closed_form", "--attack", "loss", "--allow", SET, cwd=place)
    assert found.returncode == 0, found.stderr
    return place, found.stdout + found.stderr


def test_sentences_are_scored_by_their_words(run):
    place, said = run
    (folder,) = (place / "text" / "attacks").glob("closed_form-*")
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert [(line["rouge1"], line["exact"]) for line in lines] == 3 * [(100, 100)]
    assert all(line["psnr"] is None for line in lines)
    floors = [json.loads(line) for line in (folder / "floors.jsonl").read_text().splitlines()]
    assert {one["floor"] for one in floors} == {"same class", "common words", "random words"}
    assert all(one["exact"] == 0 for one in floors)
    assert (folder / "grid.png").stat().st_size > 1000
    assert "psnr, ssim, above_30db, lpips_alex, lpips_vgg are unavailable: it is for images" in said


def test_membership_is_asked_of_sentences(run):
    place, _ = run
    (folder,) = (place / "text" / "attacks").glob("loss-*")
    assert all(json.loads(line)["status"] == "done" for line in (folder / "scores.jsonl").read_text().splitlines())


def test_utility_has_mcc(run):
    place, _ = run
    last = json.loads((place / "text" / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"accuracy", "macro_f1", "mcc", "loss"} <= last.keys()


def test_the_report_marks_words(run):
    place, _ = run
    found = thorns("report", "text", "--allow", SET, cwd=place)
    assert found.returncode == 0, found.stderr
    page = (place / "text" / "report.html").read_text()
    assert '<dt class="true">truth</dt>' in page
    assert '<mark class="right">' in page
    assert "by ROUGE-1 of its worst attacker" in page
    assert "no pictures" not in page


def test_the_gate_judges_words(run):
    place, _ = run
    leak = thorns("gate", "text", "--attack", "closed_form", "--allow", SET, cwd=place)
    assert (leak.returncode, leak.stdout.split()[0]) == (1, "LEAK")
    assert "lpips, psnr, ssim say nothing of text" in leak.stderr
    off = ["--rouge1", "100", "--rouge-l", "off", "--token-f1", "100", "--exact", "off"]
    passed = thorns("gate", "text", "--attack", "closed_form", *off, "--allow", SET, cwd=place)
    assert passed.returncode == 0, passed.stdout + passed.stderr


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "lenet5"}, "lenet5 takes images, and these examples are text"),
        ({"defense": "instahide"}, "instahide flips the signs of pixels, and these examples are text"),
        ({"attack": "idlg"}, "no attack on text"),
    ],
)
def test_what_is_for_images_is_refused_in_one_line(run, changes, why):
    found = run_in(run[0], run_dir=f"refused-{next(iter(changes))}", **changes)
    assert found.returncode != 0
    assert why in found.stderr
    assert "Traceback" not in found.stderr


def test_the_app_of_somebody_else_is_attacked_by_its_vocabulary(run):
    place, _ = run
    (place / "theirs").mkdir(exist_ok=True)
    if not (place / "theirs" / "captures").exists():
        (place / "theirs" / "captures").symlink_to(place / "text" / "captures")
    words = [*SPECIAL, *WORDS]
    (place / "vocab.txt").write_text("\n".join(words) + "\n")
    about = ["--model", "app:net", "--input-shape", "10", "--vocabulary", "vocab.txt", "--classes", "2"]
    found = thorns("attack", "theirs", "--attack", "closed_form", *about, cwd=place)
    assert found.returncode == 0, found.stderr
    (folder,) = (place / "theirs" / "attacks").glob("closed_form-*")
    said = (folder / "reconstructions.txt").read_text()
    assert len(said.splitlines()) == 3
    assert set(said.replace(":", " ").replace(",", " ").split()) <= {*words, "round", "1", "client", "0", "2"}
    bad = thorns("attack", "theirs", "--attack", "closed_form", *about[:4], "--vocabulary", "missing.txt", cwd=place)
    assert "--vocabulary takes a number of tokens or a file" in bad.stderr


def test_the_truth_of_somebody_elses_text_is_held_against_it(run):
    place, _ = run
    truth = {f"round-0001/client-0{i}/x": torch.tensor([[2, 5, 3, *7 * [0]]]) for i in range(3)}
    truth |= {f"round-0001/client-0{i}/y": torch.zeros(1, dtype=torch.int64) for i in range(3)}
    save_file(truth, place / "truth.safetensors")
    about = ["--model", "app:net", "--input-shape", "10", "--vocabulary", "20", "--classes", "2"]
    found = thorns("gate", "text/captures", "--attack", "closed_form", *about, "--truth", "truth.safetensors", cwd=place)
    assert found.returncode == 2, found.stdout + found.stderr
    assert "does not explain the captured update" in found.stdout + found.stderr
