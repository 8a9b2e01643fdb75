"""Sweep files: what a grid stands for, what is shared, and what is refused before any work."""

import tomllib

import pytest

from fl_app.experiment.toml import ConfigError
from fl_app.sweeps.estimate import Estimator, amount
from fl_app.sweeps.expand import make_plan
from fl_app.sweeps.file import read_sweep, sweep_of
from fl_app.sweeps.grid import GridError, choices, values_of
from helpers.paths import ROOT
from helpers.small_sweep import FILE, text_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", ["none"]),
        ("f(p={0.9,0.6})", ["f(p=0.9)", "f(p=0.6)"]),
        ("f(p={1, 2}) + g(q={3,4})", ["f(p=1) + g(q=3)", "f(p=1) + g(q=4)", "f(p=2) + g(q=3)", "f(p=2) + g(q=4)"]),
        ("{none,f(p={1,2})}", ["none", "f(p=1)", "f(p=2)"]),
        ("f(a={[1,2],'x,y'})", ["f(a=[1,2])", "f(a='x,y')"]),
        ("f(path='/a{b,c}')", ["f(path='/a{b,c}')"]),
    ],
)
def test_braces_stand_for_each_choice(text, found):
    assert choices(text) == found


@pytest.mark.parametrize("text", ["f(p={1,2)", "f(p=1})", "f(p={1,})", "f(p={})"])
def test_braces_that_cannot_be_read_are_refused(text):
    with pytest.raises(GridError):
        choices(text)


def test_a_value_named_twice_counts_once_but_true_is_not_one():
    assert values_of([1, 1, True, "a{1,1,2}"]) == [1, True, "a1", "a2"]


def test_cells_come_seed_by_seed_and_are_named_by_what_differs(plan):
    names = [cell.name for cell in plan().cells]
    settings = ["none", "prune(ratio=0.5)", "prune(ratio=0.9)"]
    assert names == [f"{setting}, seed {seed}" for seed in (0, 1) for setting in settings]
    cell = plan(("clients = 3", "clients = [3, 2]")).cells[0]
    assert cell.varied == {"defense": "none", "targets.clients": 3}
    assert cell.training.experiment.clients == 2
    assert cell.attacked.experiment.clients == 3
    assert cell.attacked.experiment.model == "lenet"  # what [targets] does not say is as in [run]


def units_of(plan):
    runs = [unit for unit in plan.units if unit.attacking is None]
    return len(runs), len(plan.units) - len(runs)


def test_equal_runs_are_shared(plan):
    assert units_of(plan()) == (12, 6)
    assert units_of(plan(("clients = 3", "clients = [3, 2]"))) == (6 + 12, 12)  # the training does not know the targets
    assert units_of(plan(("rounds = 3", "rounds = [3, 5]"))) == (12 + 6, 6)  # nor do the targets know its length
    assert units_of(plan(("rounds = 3", 'rounds = 3\nvisibility = ["individual", "aggregate"]'))) == (6 + 12, 12)
    hidden = ("rounds = 3", 'rounds = 3\nvisibility = ["individual", "secagg"]'), ("clients = 2", "clients = 3")
    assert units_of(plan(*hidden)) == (12 + 12, 12)  # a protocol is part of the training: it has its costs and its rounding
    assert units_of(plan(("seeds = [0, 1]", 'seeds = [0, 1]\ngrant = "labels"'))) == (12, 6)
    twice = plan(("idlg(iterations=2)", "idlg(iterations={2,3})"))
    assert units_of(twice) == (12, 12)  # one run serves every attack
    assert units_of(plan(('"none", ', '"none", "none", '))) == (12, 6)


def test_names_of_units_depend_on_their_settings_alone(plan):
    every = {unit.name for unit in plan().units}
    one = plan(("seeds = [0, 1]", "seeds = [1]"), ('"none", "prune(ratio={0.5,0.9})"', '"prune(ratio=0.9)", "none"'))
    assert {unit.name for unit in one.units} < every


def test_the_baseline_is_added_and_said(plan):
    made = plan(('"none", ', ""))
    assert [cell.varied["defense"] for cell in made.cells[:3]] == ["none", "prune(ratio=0.5)", "prune(ratio=0.9)"]
    assert "baseline was added" in made.notes[0]
    assert not plan().notes


def test_what_is_kept_for_attacks_is_attacked_by_standard_where_none_is_named(plan):
    named = 'attacks = ["idlg(iterations=2)"]\n'
    assert {unit.attacking.attack for unit in plan((named, "")).units if unit.attacking} == {"standard"}
    table = FILE[FILE.index("[targets]") :]
    alone = plan((named, ""), (table, ""))
    assert not any(unit.attacking for unit in alone.units), "nothing is kept: it is a training"
    kept = plan((named, "attacks = []\n"), (table, ""), ("rounds = 3", 'rounds = 3\ncapture = "1"'))
    assert not any(unit.attacking for unit in kept.units), "none was asked for"


def test_without_targets_the_trained_run_is_attacked(plan):
    text = FILE[FILE.index("[targets]") :]
    made = plan((text, ""), ("rounds = 3", 'rounds = 3\ncapture = "1"'))
    assert all(cell.training == cell.attacked and len(cell.units) == 2 for cell in made.cells)
    with pytest.raises(ConfigError, match=r"small\.toml, cell none: nothing is kept.*capture = \"1\".*\[run\]"):
        plan((text, ""))


def test_tables_of_runs_and_targets_go_together_as_they_say(tables):
    made = tables()
    seen = [(cell.varied["defense"], cell.varied["optimizer"], cell.varied["targets"]) for cell in made.cells if not cell.seed]
    slow, quick = "sgd(lr=0.01)", "sgd(lr=0.1)"
    assert seen == [
        ("none", slow, "one"),
        ("none", slow, "eight"),
        ("prune(ratio=0.5)", slow, "one"),
        ("prune(ratio=0.5)", slow, "eight"),
        ("none", quick, "one"),
        ("sign", quick, "one"),
    ]
    one, eight = made.cells[:2]
    assert one.training == eight.training  # what is shared stands once, and is done once
    assert one.training.experiment.clients == 2
    assert (one.attacked.experiment.batch_size, eight.attacked.experiment.batch_size) == (1, 8)
    assert one.attacked.place.endswith("/one")
    assert [unit.attacking.attack for unit in one.attacks] == ["idlg(iterations=2)"]
    assert (one.attacks[0].attacking.grants, one.attacks[0].attacking.informed) == ((), True)
    assert [unit.attacking.attack for unit in eight.attacks] == ["dlg(iterations=3)", "idlg(labels='count')"]
    assert (eight.attacks[0].attacking.grants, eight.attacks[0].attacking.informed) == (("labels",), False)


def test_equal_targets_with_other_grants_are_not_mixed_up(tables):
    made = tables(("clients = 2\nclient-examples = 8\nbatch-size = 8", "clients = 3\nclient-examples = 1\nbatch-size = 1"))
    one, eight = made.cells[:2]
    assert one.attacked.experiment.changed(run_dir="") == eight.attacked.experiment.changed(run_dir="")
    assert one.attacked.place != eight.attacked.place


def test_the_judge_is_the_undefended_training_of_the_same_seed(plan):
    made = plan(("lpips = false", "lpips = false\njudge = true"))
    for cell in made.cells:
        plain = next(one for one in made.cells if one.seed == cell.seed and one.varied["defense"] == "none")
        assert [(unit.needs, unit.attacking.judge) for unit in cell.attacks] == [
            ((cell.attacked.name, plain.training.name), plain.training.place)
        ]


SCALES = """
[scale.as-it-is]
[scale.tiny]
seeds = [7]
[scale.tiny.run]
rounds = 1
[scale.tiny.targets]
clients = 1
[scale.wrong.run]
ronds = 1
"""


def test_a_scale_changes_what_it_names_and_nothing_else(pictures, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(text_of(pictures, seeds=[0, 1], attack="idlg(iterations=2)", rounds=3) + SCALES)
    whole, text = read_sweep(path)
    assert text == path.read_text()
    assert read_sweep(path, "as-it-is")[0] == whole
    tiny, text = read_sweep(path, "tiny")
    assert (tiny.seeds, tiny.run["rounds"], tiny.targets["clients"]) == ([7], 1, 1)
    assert tiny.run["clients"] == whole.run["clients"]
    assert sweep_of(tomllib.loads(text), "again") == tiny  # what the folder of the sweep keeps
    with pytest.raises(ConfigError, match=r"small\.toml has no scale 'tny'; did you mean 'tiny'"):
        read_sweep(path, "tny")
    with pytest.raises(ConfigError, match=r"small\.toml, scale wrong: \[run\] there is no setting 'ronds'"):
        read_sweep(path, "wrong")
    path.write_text(path.read_text().replace(SCALES, ""))
    with pytest.raises(ConfigError, match="has no scale 'tiny'; it has none"):
        read_sweep(path, "tiny")


def test_estimates_are_in_proportion_and_borrow_from_other_defenses(plan):
    made, found = plan(("rounds = 3", "rounds = [3, 30]")), Estimator()
    short, long = made.cells[0].training, made.cells[1].training
    found.learn(made.cells[0].attacked, 1.0)
    assert found.guess(short) is None  # targets say nothing about trainings
    found.learn(short, 2.0)
    assert found.guess(long) == pytest.approx(20.0)
    pruned = next(cell for cell in made.cells if cell.varied["defense"] != "none")
    assert found.guess(pruned.training) == pytest.approx(2.0)
    assert found.guess(pruned.attacks[0]) is None
    assert amount(pruned.attacks[0]) == 3 * 2 * 2  # targets, iterations, restarts of idlg


DOCS = (ROOT / "docs" / "sweeps.md").read_text()
CONFIGS = ROOT / "configs"
SWEEPS = [path for path in sorted(CONFIGS.rglob("*.toml")) if "run" in tomllib.loads(path.read_text())]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_sweeps_that_come_along_can_be_planned(path, tmp_path):
    made = make_plan(read_sweep(path)[0], tmp_path / "out", path.name, "")
    assert not made.notes  # none of them forgot its baseline
    (line,) = [line for line in DOCS.splitlines() if line.startswith(f"| `{path.relative_to(CONFIGS)}` |")]
    assert line.endswith(f"| {len(made.cells)} |")


@pytest.mark.parametrize(("number", "scale", "cells"), [(0, "", 48), (1, "", 7), (1, "long", 21)])
def test_the_files_in_the_documentation_are_valid(tmp_path, number, scale, cells):
    path = tmp_path / "sweeps.toml"
    path.write_text(DOCS.split("```toml\n")[1 + number].partition("```")[0])
    sweep, _ = read_sweep(path, scale)
    assert len(make_plan(sweep, tmp_path / "out", "sweeps.md", "").cells) == cells
    assert tomllib.loads(sweep.toml()) == sweep.model_dump(by_alias=True)
