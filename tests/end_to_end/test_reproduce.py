"""The reproduction scripts without any training: settings by scale, estimates, and tables from canned results."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from fl_app.experiment.config import Experiment
from helpers.paths import ROOT

FOLDER = ROOT / "scripts" / "reproduce"
NAMES = ("refiner", "gradient_dropout", "drop_fedsgd")


@pytest.fixture(scope="module")
def load():
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))


def canned(cells, row):
    """Results as `run_cell` gives them; `row(cell, attacker, number)` makes a target."""
    full = {
        "mse": 0.1,
        "psnr": 10.0,
        "ssim": 0.5,
        "lpips_alex": 0.3,
        "label_accuracy": 1.0,
        "noise_ratio": 0.5,
        "loss": 1.0,
        "gap": 0.0,
    }
    return [
        {
            "name": cell.name,
            "seed": cell.seed,
            "accuracy": 0.5 if number == 0 else 0.45,
            "training_seconds": 1.0,
            "attack_seconds": 2.0,
            "targets": {
                victims.name: {
                    attacker.name: [full | row(cell, attacker, target) for target in range(victims.settings["clients"])]
                    for attacker in victims.attackers
                }
                for victims in cell.victims
            },
        }
        for number, cell in enumerate(cells)
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["smoke", "cpu", "paper"])
def test_every_cell_can_be_run(load, name, size):
    script, common = load(name), load("common")
    cells = script.cells_of(script.SCALES[size], 2)
    assert len({common.cell_id(cell) for cell in cells}) == len(cells)
    assert len({common.kept_at(cell, Path("runs")) for cell in cells}) == len(cells)
    assert cells[0].training["defense"] == "none"
    assert cells[0].floors
    for cell in cells:
        Experiment(**cell.training, seed=cell.seed)  # refuses what cannot be run
        for victims in cell.victims:
            experiment = Experiment(**victims.settings, seed=cell.seed, rounds=1, capture="1")
            assert experiment.client_examples == experiment.batch_size
            assert len({attacker.name for attacker in victims.attackers}) == len(victims.attackers)


@pytest.mark.parametrize("name", NAMES)
def test_scales_fit_their_time(load, name):
    script, common = load(name), load("common")
    seconds = {
        size: sum(common.cost(cell, script.RATES) for cell in script.cells_of(scale, scale.seeds))
        for size, scale in script.SCALES.items()
    }
    assert seconds["smoke"] < 60
    assert 600 < seconds["cpu"] < 2 * 20 * 60  # two cores
    assert seconds["paper"] > 10 * seconds["cpu"]


def test_informed_attackers_stand_beside_naive_ones(load):
    common = load("common")
    assert [one.name for one in common.attackers_of("x", "cosine_lbfgs", "none")] == ["x, naive"]
    naive, informed = common.attackers_of("x", "cosine_lbfgs", "soteria(ratio=0.8)")
    assert naive.grants == ()
    assert informed.grants == ("defense",)
    assert "ignore=['last']" in informed.attack


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--scale", "big"], "invalid choice"),
        (["--seeds", "0"], "at least 1"),
        (["--workers", "two"], "at least 1"),
        (["--out", "/"], "a folder"),
    ],
)
def test_wrong_options_are_explained(load, capsys, given, said):
    with pytest.raises(SystemExit) as error:
        load("report").options_of("", "refiner", load("refiner").SCALES, given)
    assert error.value.code == 2
    assert said in capsys.readouterr().err


def test_options_name_the_places(load):
    options = load("report").options_of("", "refiner", load("refiner").SCALES, ["--scale", "cpu"])
    assert options.out == Path("docs/results/refiner-cpu.md")
    assert options.runs.name == "reproduce-refiner-cpu"
    dropout = load("report").options_of("", "gradient_dropout", load("refiner").SCALES, [])
    assert dropout.out == Path("docs/results/gradient-dropout-smoke.md")
    assert options.command == ".venv/bin/python scripts/reproduce/refiner.py --scale cpu"


def test_a_finished_cell_is_read_and_other_settings_are_refused(load, tmp_path):
    common, script = load("common"), load("drop_fedsgd")
    first, other = (script.cells_of(script.SCALES[size], 1)[0] for size in ("smoke", "cpu"))
    kept = common.kept_at(first, tmp_path)
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"asked": first._asdict(), "accuracy": 0.25}))
    assert common.run_cell(first, tmp_path)["accuracy"] == 0.25
    with pytest.raises(SystemExit, match="other settings"):
        common.run_cell(other, tmp_path)


def test_changes_are_paired_by_target(load):
    report = load("report")
    rows = {"a": [{"psnr": 10.0}, {"psnr": 20.0}, None], "b": [{"psnr": 9.0}, {"psnr": 19.1}, {"psnr": 1.0}]}
    found = report.Found([{"name": name, "seed": 0, "targets": {"v": {"x": rows[name]}}} for name in rows])
    change = found.change("a", "b", "v", "x", "psnr")
    assert change.n == 2
    assert change.mean == pytest.approx(-0.95)
    assert report.direction(change) == "falls"
    assert report.direction(found.change("b", "a", "v", "x", "psnr")) == "rises"
    assert report.direction(found.change("a", "a", "v", "x", "psnr")) == "does not clearly change"


def test_refiner_table(load):
    script, report = load("refiner"), load("report")
    scale = script.SCALES["cpu"]
    cells = script.cells_of(scale, 1)
    strength = {cell.name: number for number, cell in enumerate(cells)}
    found = report.Found(canned(cells, lambda cell, who, n: {"psnr": 30.0 - strength[cell.name] + 0.01 * n}))
    text = "\n".join(script.lines_of(found) + script.verdicts(found, scale))
    assert "PSNR 13.2, PMM 90.69" in text  # Table 7 stands beside alpha 0.5 at eps 0.1
    assert "| refiner alpha 0.9, no bound | 90.00 |" in text
    assert 'from "refiner alpha 0.0, no bound" to "refiner alpha 0.9, no bound"' in text
    assert "inverting_gradients, naive: PSNR falls" in text


def test_gradient_dropout_tables(load):
    script, report = load("gradient_dropout"), load("report")
    scale = script.SCALES["cpu"]

    def row(cell, who, n):
        hidden = cell.name != script.NONE and "informed" not in who.name
        return {"ssim": (0.1 if hidden else 0.6) + 0.001 * n}

    found = report.Found(canned(script.cells_of(scale, 1), row))
    text = "\n".join(script.lines_of(found, 8) + script.verdicts(found, scale, 8))
    assert "Gradient Dropout: naive: SSIM < 0.2 costs least with" in text
    assert "informed: no setting brings SSIM below 0.2. Paper: SSIM < 0.2 for 88 %" in text
    assert "Soteria p 0.8: naive SSIM falls against no defense" in text
    low = report.Found(canned(script.cells_of(scale, 1), lambda cell, who, n: {"ssim": 0.1}))
    assert "says nothing here" in "\n".join(script.verdicts(low, scale, 1))


def test_drop_fedsgd_counts_both_readings_of_the_distance(load):
    script, report = load("drop_fedsgd"), load("report")
    scale = script.SCALES["cpu"]
    rows = [{"loss": 0.005}, {"loss": 0.05}, {"loss": 0.5}, None]
    assert script.share(rows, "loss", 0.01) == (1, 4)
    assert script.share(rows, "loss", 0.1) == (2, 4)
    assert script.percent(0, 2) == "0 % [0, 84]"
    found = report.Found(canned(script.cells_of(scale, 1), lambda cell, who, n: {"loss": 0.05, "gap": 0.3, "psnr": 25.0}))
    text = "\n".join(script.lines_of(found, "mnist") + script.verdicts(found, "mnist", scale))
    assert "| p 0.01 | 0.450 | DLG, 20 x 20 steps, naive | 0 % [0, 11] | 100 % [89, 100] | 100 % [89, 100] |" in text
    assert "47 %, 0.38, 0.28, 0.32" in text
    assert "for 32 of 32 targets the true image itself would count as a failure" in text
    assert "paper 47 %, outside our interval" in text


def test_the_report_says_how_it_was_made(load, tmp_path):
    script, report = load("drop_fedsgd"), load("report")
    options = report.options_of("", "drop_fedsgd", script.SCALES, ["--out", str(tmp_path / "new" / "out.md")])
    found = report.Found(canned(script.cells_of(script.SCALES["smoke"], 1), lambda *_: {}))
    text = report.write("A title", ["About."], ["Body."], script.NOTES, found, ["mnist, p 0.1: no memory"], 75.0, options)
    assert (tmp_path / "new" / "out.md").read_text() == text
    for part in (
        "# A title: scale smoke",
        options.command,
        "took 75 s",
        "GPU: ",
        "load ",
        "1 seed(s)",
        "mnist, p 0.1: no memory",
    ):
        assert part in text
