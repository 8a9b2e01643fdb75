"""A table from the training to the gate: what works on images works on rows."""

import json

import pytest

from helpers.cli import thorns


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on Titanic whose first round was attacked."""
    place = tmp_path_factory.mktemp("tables")
    settings = {
        "dataset": "table(kind='titanic')",
        "model": "mlp(hidden=[32])",
        "clients": 3,
        "batch-size": 1,
        "rounds": 2,
        "eval-every": 2,
        "capture": 1,
        "run-dir": "rows",
    }
    found = thorns("run", *[word for key, value in settings.items() for word in ("-c", f"{key}={value}")], cwd=place)
    assert found.returncode == 0, found.stderr
    found = thorns("attack", "rows", "--attack", "readout", "--attack", "attribute(column=sex)", cwd=place)
    assert found.returncode == 0, found.stderr
    return place, found.stdout + found.stderr


def test_rows_are_scored_by_their_cells(run):
    place, said = run
    (folder,) = (place / "rows" / "attacks").glob("readout-*")
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert [line["cells"] for line in lines] == [1, 1, 1]
    assert all(line["psnr"] is None for line in lines)
    floors = {json.loads(line)["floor"] for line in (folder / "floors.jsonl").read_text().splitlines()}
    assert floors == {"class mode", "same class", "noise"}
    assert (folder / "grid.png").stat().st_size > 1000
    assert "psnr, ssim, above_30db, lpips_alex, lpips_vgg are unavailable: it is for images" in said


def test_the_attribute_is_judged(run):
    place, _ = run
    (folder,) = (place / "rows" / "attacks").glob("attribute-*")
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert [line["attribute_accuracy"] for line in lines] == [1, 1, 1]


def test_the_report_shows_cells(run):
    place, _ = run
    found = thorns("report", "rows", cwd=place)
    assert found.returncode == 0, found.stderr
    page = (place / "rows" / "report.html").read_text()
    assert '<th scope="col">embarked</th>' in page
    assert '<td class="right"><b>' in page
    assert "cells right" in page
    assert "no pictures" not in page


def test_the_gate_judges_cells(run):
    place, _ = run
    leak = thorns("gate", "rows", "--attack", "readout", cwd=place)
    assert (leak.returncode, leak.stdout.split()[0]) == (1, "LEAK")
    assert "cells mean 1" in leak.stdout
    assert "exact, lpips, psnr, rouge1, rouge_l, ssim, token_f1 say nothing of rows of a table" in leak.stderr
    passed = thorns("gate", "rows", "--attack", "readout", "--limit", "cells=1.0", cwd=place)
    assert passed.returncode == 0, passed.stdout + passed.stderr


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["model=lenet5"], "lenet5 takes images, and these examples are rows of a table: use linear or mlp"),
        (["model=mlp", "defense=refiner"], "refiner needs grey or RGB images"),
        (["model=mlp", "defense=recup(attribute=age)"], "no column of categories 'age'"),
        (["model=mlp", "server=imprint", "capture=1"], "takes images, and these examples are rows"),
    ],
)
def test_what_takes_images_says_so(settings, why, tmp_path):
    words = [word for one in ("dataset=table", "clients=2", "rounds=1", *settings) for word in ("-c", one)]
    found = thorns("run", *words, cwd=tmp_path)
    assert found.returncode != 0
    assert why in " ".join((found.stdout + found.stderr).split())
