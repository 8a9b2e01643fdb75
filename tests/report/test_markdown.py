"""Results as Markdown: numbers that are found again in the files, a paper's figures beside them, what was not finished."""

import json
from math import sqrt

import pytest
from scipy import stats

from fl_app.analysis.results import read_study
from fl_app.report.markdown import column_of, page, results, share
from fl_app.report.paper import read_figures
from fl_app.store.files import RunError
from helpers.small_study import make_sweep

COLUMNS = ["accuracy", "pmm", "psnr", "change of psnr", "ssim >= 0.5", "loss < 0.1"]
PAPER = """\
defense,attack,stage,psnr,pmm,ssim >= 0.5,loss < 0.1
none,idlg,1,12.5,,0.5,
prune(ratio=0.5),,,,87.5,,
prune,dlg,,99,,,
"""


@pytest.fixture(scope="module")
def study(pictures, tmp_path_factory):
    from fl_app.experiment.config import Experiment

    small = Experiment(dataset=f"imagefolder(path='{pictures}', size=12)", model="lenet", clients=3, batch_size=4, rounds=6)
    return read_study(make_sweep(small, tmp_path_factory.mktemp("study")))


@pytest.fixture
def figures(tmp_path):
    (tmp_path / "paper.csv").write_text(PAPER)
    return read_figures(tmp_path / "paper.csv")


@pytest.fixture
def rows(study, figures):
    """(defense, attacker, round) -> cells by their heads."""
    lines = [line[2:-2].split(" | ") for line in results(study, COLUMNS, figures) if line.startswith("| ")]
    heads = lines[0]
    cells = [dict(zip(heads, line, strict=True)) for line in lines[1:]]
    return {(one["defense"].strip("`"), one["attacker"], one["round"]): one for one in cells}


def scores(study, defense, who, key):
    """(seed, round, client) -> value, from the files themselves."""
    found = {}
    for run in {cell.attacked.path for cell in study.cells if cell.attacked and cell.varied["defense"] == defense}:
        seed = int(
            next(line for line in (run / "experiment.toml").read_text().splitlines() if line.startswith("seed")).split()[-1]
        )
        for folder in (run / "attacks").iterdir():
            if json.loads((folder / "attack.json").read_text())["who"] in who:
                for line in map(json.loads, (folder / "scores.jsonl").read_text().splitlines()):
                    found[seed, line["round"], line["client"]] = line.get(key)
    return found


def interval(values):
    mean = sum(values) / len(values)
    half = stats.t.ppf(0.975, len(values) - 1) * sqrt(
        sum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values)
    )
    mean, low, high = (f"{round(one, 1) + 0.0:.1f}" for one in (mean, mean - half, mean + half))
    return f"{mean} [{low}, {high}]"


def test_means_changes_and_shares_are_those_of_the_files(study, rows):
    for server_round in (1, 2):
        informed = rows["prune(ratio=0.9)", "informed, idlg", str(server_round)]
        plain = scores(study, "none", ("attack",), "psnr")
        told = scores(study, "prune(ratio=0.9)", ("informed",), "psnr")
        mine = {key: value for key, value in told.items() if key[1] == server_round}
        assert len(mine) == 6
        assert informed["PSNR"] == interval(list(mine.values()))
        assert informed["change of PSNR"] == interval([value - plain[key] for key, value in mine.items()])
        assert informed["told beyond the protocol"] == "defense"
        assert informed["loss < 0.1"] == ""  # it minimises something else
        similar = [value for key, value in scores(study, "none", ("attack",), "ssim").items() if key[1] == server_round]
        cell = rows["none", "naive, idlg", str(server_round)]["SSIM >= 0.5"]
        assert cell.startswith(share(sum(value >= 0.5 for value in similar), 6))
    assert rows["none", "naive, idlg", "1"]["change of PSNR"] == "-"
    assert rows["none", "naive, idlg", "1"]["loss < 0.1"].startswith("100 %")


def test_failed_targets_are_counted_and_reach_no_limit(study, rows):
    cell = rows["prune(ratio=0.9)", "naive, idlg", "2"]
    assert cell["targets"] == "6 (1 failed)"
    values = [
        one for key, one in scores(study, "prune(ratio=0.9)", ("naive",), "psnr").items() if key[1] == 2 and one is not None
    ]
    assert len(values) == 5
    assert cell["PSNR"] == interval(values)
    assert cell["SSIM >= 0.5"].endswith(share(0, 6).partition("%")[2])


def test_accuracies_are_over_seeds_and_stand_once_per_defense(rows):
    first, second = rows["prune(ratio=0.5)", "naive, idlg", "1"], rows["prune(ratio=0.5)", "naive, idlg", "2"]
    assert first["accuracy"].startswith("0.790 [")
    assert second["accuracy"] == second["PMM"] == ""
    assert float(first["PMM"].split()[0]) == pytest.approx(50 * (0.8 / 0.9 + 0.78 / 0.88), abs=0.05)


def test_a_papers_figures_stand_where_they_belong(rows):
    assert rows["none", "naive, idlg", "1"]["PSNR"].endswith("; paper 12.5")
    assert rows["none", "naive, idlg", "1"]["SSIM >= 0.5"].endswith("; paper 50 %")
    assert rows["prune(ratio=0.5)", "naive, idlg", "1"]["PMM"].endswith("; paper 87.5")
    shown = [key for key, row in rows.items() if any("paper" in cell for cell in row.values())]
    assert shown == [("none", "naive, idlg", "1"), ("prune(ratio=0.5)", "naive, idlg", "1")]  # nobody ran the paper's dlg


def test_what_is_not_finished_is_named(study):
    lines = results(study, ["psnr"], [])
    assert "- **Not finished:** sign, 0: out of memory " in lines
    assert "- **Not finished:** sign, 1: not started" in lines
    assert any(line.startswith("| `sign` | none finished |") for line in lines)


def test_a_page_has_its_text_around_the_results(study):
    text = "# A title\n\nBefore.\n\n<!-- results: accuracy, psnr -->\n\n## What to know\n\n- A note.\n"
    made = page(text, study, [], ["Made by hand."])
    order = [
        "# A title\n\nMade by hand.\n",
        "\nBefore.\n",
        "| defense | accuracy | attacker |",
        "## What to know\n\n- A note.\n- Brackets",
    ]
    places = [made.index(words) for words in order]
    assert places == sorted(places)
    with pytest.raises(RunError, match="needs a title"):
        page(text.replace("results:", "tables:"), study, [], [])
    with pytest.raises(RunError, match="no metric 'pnsr'"):
        page(text.replace("psnr", "pnsr"), study, [], [])


@pytest.mark.parametrize("text", ["psnr > 20", "change of psnr < 3", "psnr >= much", "", "change of"])
def test_a_wrong_column_is_refused(text):
    with pytest.raises(RunError, match="is no column"):
        column_of(text)


def test_a_wrong_figure_is_named_with_its_line(tmp_path):
    path = tmp_path / "paper.csv"
    assert read_figures(path) == []
    path.write_text("defense,psnr\nnone,1.5\nprune(ratio=0.5, scope='global'),2\n")  # a comma that is not in quotes
    with pytest.raises(RunError, match=r"paper\.csv, line 3: "):
        read_figures(path)
