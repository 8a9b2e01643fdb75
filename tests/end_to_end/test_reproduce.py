"""scripts/reproduce: every experiment can be planned at every scale, and a small run of one gives a page that can be traced."""

import json
import re
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from fl_app.experiment import candidates
from fl_app.report.markdown import MARKER, TRAINED, column_of
from fl_app.report.paper import read_figures
from fl_app.scoring.metrics import METRICS
from fl_app.sweeps import work
from fl_app.sweeps.expand import make_plan
from fl_app.sweeps.file import read_sweep
from fl_app.sweeps.plan import undefended
from helpers.paths import ROOT

FOLDER = ROOT / "configs" / "reproduce"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
SCALES = [(name, scale) for name in NAMES for scale in tomllib.loads((FOLDER / f"{name}.toml").read_text())["scale"]]


@pytest.fixture(scope="module")
def script():
    loader = SourceFileLoader("reproduce", str(ROOT / "scripts" / "reproduce"))
    module = module_from_spec(spec_from_loader("reproduce", loader))
    loader.exec_module(module)
    return module


def plan_of(name, scale, tmp_path):
    return make_plan(read_sweep(FOLDER / f"{name}.toml", scale)[0], tmp_path / "out", name, "")


def test_there_is_one_of_each_paper_and_the_trade_off():
    papers = ["drop-fedsgd", "fedem", "gradient-dropout", "latent-perturbation", "refiner"]
    assert sorted([*papers, "generative", "malicious", "text", "tradeoff"]) == NAMES
    assert {("smoke", name) for name in NAMES} <= {(scale, name) for name, scale in SCALES}
    assert {("cpu", name) for name in NAMES} <= {(scale, name) for name, scale in SCALES}
    assert {("paper", name) for name in papers} <= {(scale, name) for name, scale in SCALES}


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_scale_can_be_planned(name, scale, tmp_path):
    made = plan_of(name, scale, tmp_path)
    assert made.sweep.about
    assert not made.notes  # none forgot its baseline
    assert undefended(made.cells[0].varied["defense"])
    assert all(cell.attacks for cell in made.cells)
    small = sum(unit.experiment.rounds for unit in made.units if unit.attacking is None) < 200
    assert small == (scale == "smoke")


@pytest.mark.parametrize("name", NAMES)
def test_every_text_asks_for_columns_that_exist(name):
    text = (FOLDER / f"{name}.md").read_text()
    assert text.startswith("# ")
    (marker,) = MARKER.findall(text)
    for column in marker.split(","):
        assert column.strip() in TRAINED or column_of(column).metric in {*METRICS, "loss"}
    assert "## What to know\n\n- " in text


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.csv"))])
def test_every_figure_of_a_paper_has_its_place_at_the_papers_scale(name, tmp_path):
    made = plan_of(name, "paper", tmp_path)
    columns = MARKER.search((FOLDER / f"{name}.md").read_text())[1].split(",")
    shown = {column.strip() if column.strip() in TRAINED else column_of(column).title() for column in columns}
    for line in read_figures(FOLDER / f"{name}.csv"):
        assert line.values.keys() <= shown
        cells = [cell for cell in made.cells if _is_of(line, cell)]
        assert cells, line
        stages = [len(re.findall(r"\d+", cell.attacked.experiment.capture)) for cell in cells]
        assert any(line.by(unit.attacking.attack, line.stage or 1) for cell in cells for unit in cell.attacks), line
        assert (line.stage or 1) <= min(stages)


def _is_of(line, cell):
    told = {**cell.training.experiment.run_config(), **cell.varied}
    family = told["defense"].partition("(")[0]
    return all(value in (told[key], family if key == "defense" else told[key]) for key, value in line.settings.items())


def rows_of(page):
    """(defense, attacker) -> cells by their heads, of a page with one table."""
    lines = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| ")]
    cells = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    return {(one["defense"].strip("`"), one["attacker"]): one for one in cells}


def without_clocks(page):
    return [line for line in page.splitlines() if not line.startswith("Runs took ")]


def test_a_run_that_is_broken_off_goes_on_to_a_page_with_the_measured_numbers(script, tmp_path, monkeypatch, capsys):
    """Drop-FedSGD at the smallest scale: some twenty runs and attacks on MNIST, which learn from few images here."""
    monkeypatch.setattr(candidates, "PUBLIC", 500)
    monkeypatch.chdir(tmp_path)
    out, runs = tmp_path / "pages" / "page.md", tmp_path / "runs" / "reproduce-drop-fedsgd-smoke"
    words = ["drop_fedsgd", "--scale", "smoke", "--workers", "1", "--out", str(out)]
    do, seen = work.do, []

    def interrupted(unit):
        seen.append(unit.name)
        if len(seen) == 6:
            raise KeyboardInterrupt
        do(unit)

    monkeypatch.setattr(work, "do", interrupted)
    assert script.main(words) == 130
    assert not out.exists()
    finished = {path.name: path.stat().st_mtime_ns for path in (runs / "work").glob("[!.]*.json")}
    assert len(finished) == 5
    monkeypatch.setattr(work, "do", do)
    assert script.main(words) == 0
    assert "Page: pages/page.md" in capsys.readouterr().out
    assert finished == {name: (runs / "work" / name).stat().st_mtime_ns for name in finished}
    page = out.read_text()
    assert "Made by `scripts/reproduce drop-fedsgd --scale smoke`" in page
    assert str(tmp_path) not in page
    rows = rows_of(page)
    plan = json.loads((runs / "plan.json").read_text())
    assert len(plan["cells"]) == 4
    for cell in plan["cells"]:
        last = json.loads((runs / cell["training"] / "metrics.jsonl").read_text().splitlines()[-1])
        attacks = list((runs / cell["attacked"] / "attacks").glob("*/attack.json"))
        assert attacks
        for about in attacks:
            told = json.loads(about.read_text())
            who = "naive" if told["who"] in ("attack", "naive") else told["who"]
            row = rows[cell["varied"]["defense"], f"{who}, dlg"]
            targets = [json.loads(line) for line in about.with_name("scores.jsonl").read_text().splitlines()]
            assert row["targets"] == str(len(targets)) == "2"
            for head, key, digits in (("SSIM", "ssim", 2), ("MSE", "mse", 4)):
                assert float(row[head].split(" [")[0]) == round(sum(one[key] for one in targets) / 2, digits)
            close = sum(one["psnr"] >= 20 for one in targets)
            assert row["PSNR >= 20"].startswith(f"{50 * close} % [")
            if who == "naive":
                assert row["accuracy"].startswith(f"{last['accuracy']:.3f}")
                assert row["loss < 0.01"].startswith(f"{50 * sum(one['loss'] < 0.01 for one in targets)} % [")
    assert rows["none", "naive, dlg"]["SSIM"].endswith("; paper 0.371")
    assert rows["drop_fedsgd(p=0.05)", "naive, dlg"]["loss < 0.01"].endswith("; paper 2 %")
    assert script.main(words) == 0
    assert "all of it is finished" in capsys.readouterr().out
    assert without_clocks(out.read_text()) == without_clocks(page)


def test_a_cell_that_fails_is_named_on_the_page(script, tmp_path, monkeypatch, capsys):
    train = work.train

    def sometimes(experiment):
        if experiment.defense != "none":
            raise RuntimeError("no luck today")
        return train(experiment)

    monkeypatch.setattr(work, "train", sometimes)
    out = tmp_path / "page.md"
    assert (
        script.main(["drop-fedsgd", "--scale", "smoke", "--workers", "1", "--runs", str(tmp_path / "runs"), "--out", str(out)])
        == 1
    )
    page = out.read_text()
    assert page.count("- **Not finished:** ") == 3
    assert "- **Not finished:** drop_fedsgd(p=0.05), seed 0: RuntimeError: no luck today" in page
    assert rows_of(page)["none", "naive, dlg"]["targets"] == "2"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["refinr"], 2, "invalid choice: 'refinr'"),
        (["refiner", "--scale", "big"], 2, "has no scale 'big'; valid: cpu, paper, smoke"),
        (["refiner", "--workers", "-1"], 2, "--workers is a number from 0 on"),
        (["refiner", "--out", "/"], 2, "--out names a file"),
    ],
)
def test_wrong_options_are_explained(script, capsys, words, code, said):
    try:
        found = script.main(words)
    except SystemExit as end:
        found = end.code
    assert found == code
    assert said in capsys.readouterr().err


def test_a_dry_run_writes_nothing(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert script.main(["drop-fedsgd", "--scale", "smoke", "--dry-run", "--out", str(tmp_path / "page.md")]) == 0
    assert "to do: 8 runs and 4 attacks" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
