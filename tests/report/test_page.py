"""The page around the numbers: where links lead, what is said beside them, and all targets' pictures."""

import json
from itertools import pairwise

import pytest

from fl_app.report import write_report
from helpers.small_study import Page, attack, make_run, make_sweep


@pytest.fixture(scope="module")
def written(pictures, tmp_path_factory):
    from fl_app.experiment.config import Experiment

    small = Experiment(dataset=f"imagefolder(path='{pictures}', size=12)", model="lenet", clients=3)
    return write_report(make_sweep(small, tmp_path_factory.mktemp("page")))


@pytest.fixture(scope="module")
def page(written):
    return Page(written)


def links(page):
    return [one["href"] for tag, one in page.tags if tag == "a"]


def test_every_link_leads_somewhere(written, page):
    ids = [one["id"] for _, one in page.tags if "id" in one]
    assert len(ids) == len(set(ids))
    inside = [link.removeprefix("#") for link in links(page) if link.startswith("#")]
    assert set(inside) <= set(ids)
    order = [ids.index(one) for one in inside]
    assert all(a < b for a, b in pairwise(order))  # the contents are in the order of the page
    beside = [link for link in links(page) if not link.startswith("#")]
    assert {"report/summary.csv", "report/attackers.csv", "report/summary.tex", "report/psnr.svg"} <= set(beside)
    assert all((written.parent / link).is_file() for link in beside)


def test_all_targets_have_pictures_by_what_leaks(written):
    all_of_them = Page(written.parent / "report/targets-2.html")
    images = [one for tag, one in all_of_them.tags if tag == "img"]
    assert len(images) == 12 * 3 * 2  # two seeds of six targets; truth, naive, informed; two examples each
    assert "All 12 targets" in all_of_them.words
    informed = [float(word.split()[0]) for word in all_of_them.text if " dB, SSIM" in word][1::2]
    assert informed == sorted(informed, reverse=True)
    assert links(all_of_them) == ["../report.html#reconstructions"]


def test_leakage_by_round_is_that_of_the_scores(written, page):
    rows = [[cell.strip() for cell in row] for row in page.rows]
    head = next(row for row in rows if row[2:] == ["round 1", "round 2"])
    first, second = (row for row in rows[rows.index(head) + 1 :][:2])
    assert (first[1], second[1]) == ("none", "prune(ratio=0.5)")
    scores = [path for place in (2, 3) for path in written.parent.glob(f"runs/{place}/training/attacks/*/scores.jsonl")]
    informed = [path for path in scores if json.loads((path.parent / "attack.json").read_text())["who"] == "informed"]
    lines = [json.loads(line) for path in informed for line in path.read_text().splitlines()]
    for place, server_round in ((2, 1), (3, 2)):
        values = [line["psnr"] for line in lines if line["round"] == server_round]
        assert second[place].split()[0] == f"{sum(values) / len(values):.1f}"


def test_one_seed_and_other_batch_sizes_are_said(page, small, tmp_path):
    assert "All of this is one seed" not in page.words
    assert "Accuracy is that of batch size" not in page.words
    sweep = make_sweep(small, tmp_path)
    plan = json.loads((sweep / "plan.json").read_text())
    plan["cells"] = [cell for cell in plan["cells"] if cell["seed"] == 0][:3]
    for place, cell in enumerate(plan["cells"]):
        trained = make_run(small, sweep / f"runs/large-{place}", cell["varied"]["defense"], 0, 0.8)
        settings = trained.path / "experiment.toml"
        settings.write_text(settings.read_text().replace("batch-size = 2", "batch-size = 3"))
        cell["training"] = f"runs/large-{place}"
    (sweep / "plan.json").write_text(json.dumps(plan))
    words = Page(write_report(sweep)).words
    assert "All of this is one seed" in words
    assert "Accuracy is that of batch size 3, leakage that of batch size 2." in words


@pytest.mark.parametrize(("values", "word"), [((5.0, 5.0), "each example was used once"), ((5.0, 7.0), "use them again")])
def test_epsilon_has_its_delta_and_why_it_grows_or_not(small, tmp_path, values, word):
    run = make_run(small, tmp_path / "run", "dp_sgd(noise=1.0)", 0, 0.8)
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    for line, value in zip(lines[1:], values, strict=True):
        line |= {"epsilon": value, "epsilon_if_sampled": 9.0, "delta": 1e-5}
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    attack(run, "naive", 0.3)
    page = Page(write_report(run.path))
    assert page.row("dp_sgd(noise=1.0)")[13].split() == [f"{values[1]:g}", "at", "delta", "1e-5"]
    assert word in page.words
    assert "epsilon at delta 1e-5" in page.words  # the axis of its curve
    assert f"{values[1]:g} (1e-5)" in (run.path / "report/summary.tex").read_text()
    assert "No undefended setting was attacked beside these" not in page.words  # nothing holds here
