"""Sweep files: what a grid stands for, what is shared, and what is refused before any work."""

import tomllib

import pytest

from fl_app.experiment.config import ConfigError
from fl_app.store.files import RunError
from fl_app.sweeps.check import check
from fl_app.sweeps.estimate import Estimator, amount
from fl_app.sweeps.expand import make_plan
from fl_app.sweeps.file import read_sweep, sweep_of
from fl_app.sweeps.grid import GridError, choices, values_of
from helpers.paths import ROOT
from helpers.small_sweep import FILE, text_of


@pytest.fixture
def plan(pictures, tmp_path):
    """Makes a plan of the small sweep, with changes given as (old text, new text)."""

    def make(*changes):
        text = text_of(pictures, seeds=[0, 1], attack="idlg(iterations=2)", rounds=3)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return make_plan(sweep_of(tomllib.loads(text), "small.toml"), tmp_path / "out", "small.toml", "thorns sweep small.toml")

    return make


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


KINDS = """[targets]
rounds = 1
capture = "1"
[targets.one]
clients = 3
client-examples = 1
batch-size = 1
[targets.eight]
runs = ["slow"]
clients = 2
client-examples = 8
batch-size = 8
attacks = ["dlg(iterations=3)", "idlg(labels='count')"]
grant = "labels"
informed = false
"""
"""Two kinds of targets, the second for one of two tables of runs."""
RUNS = """[run]
model = "lenet"
clients = 2
rounds = 3
defense = ["none", "prune(ratio=0.5)"]
[run.slow]
optimizer = "sgd(lr=0.01)"
[run.quick]
optimizer = "sgd(lr=0.1)"
defense = ["none", "sign"]
"""


@pytest.fixture
def tables(plan):
    text = text_of("", seeds=[0, 1], attack="idlg(iterations=2)", rounds=3)
    old = text[text.index("model = ") :]

    def make(*changes):
        new = f"{RUNS.removeprefix('[run]')}{KINDS}"
        for before, after in changes:
            assert before in new
            new = new.replace(before, after)
        return plan((old, new))

    return make


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


WRONG_VALUES = [
    ("clients = 2", "clinets = 2", r"small\.toml: \[run\] there is no setting 'clinets'; did you mean 'clients'"),
    ("rounds = 1", "ronds = 1", r"small\.toml: \[targets\] there is no setting 'ronds'; did you mean 'rounds'"),
    ("seeds = [0, 1]", "sedes = [0]", r"small\.toml: there is no 'sedes'.*did you mean 'seeds'"),
    ("seeds = [0, 1]", "rounds = 3", r"small\.toml: there is no 'rounds'.*table \[run\]"),
    ("seeds = [0, 1]", "seeds = [0, 0]", r"small\.toml: seeds = \[0, 0\] names one twice"),
    ("seeds = [0, 1]", "seeds = []", r"small\.toml: seeds = \[\]"),
    ("rounds = 3", "rounds = 3\nseed = 1", r"\[run\] seed: .*seeds = \[0, 1, 2\]"),
    ("rounds = 3", 'rounds = 3\nattack = "idlg"', r"\[run\] attack: .*attacks = "),
    ("idlg(", "idgl(", r"small\.toml: attacks: .*did you mean 'idlg'"),
    ("ratio=", "ration=", r"small\.toml: defense = 'prune\(ration=0\.5\)': prune has no setting 'ration'.*'ratio'"),
    ("0.5,0.9", "0.5,1.9", r"small\.toml: defense = 'prune\(ratio=1\.9\)'"),
    ("0.5,0.9", "0.5,0.9}}", r"small\.toml: \[run\] defense: a '}'"),
    (
        '"lenet"',
        '["lenet", "lenett"]',
        r"small\.toml, cell none, model=lenett: model = 'lenett'.*did you mean 'lenet'",
    ),
    ("clients = 2", "clients = 0", r"small\.toml, cell none: clients = 0 is not allowed"),
    ('capture = "1"', 'capture = "2"', r"small\.toml, cell none: .*names round 2"),
    ('capture = "1"', "", r"small\.toml, cell none: nothing is kept.*\[targets\]"),
    ("seeds = [0, 1]", 'grant = "lables"', r"small\.toml: grant: there is no grant 'lables'"),
    ('attacks = ["idlg(iterations=2)"]', "attacks = []", r"small\.toml: \[targets\] is what attacks work on"),
]
WRONG_TABLES = [
    ("[targets.one]", "[targets.split]", r"small\.toml: \[targets\.split\]: give it another name"),
    ("[run.quick]", '[run."Quick one"]', r"small\.toml: \[run\.Quick one\]: give it another name"),
    (
        'runs = ["slow"]',
        'runs = ["slwo"]',
        r"\[targets\.eight\] runs: there is no table \[run\.slwo\]; there are slow, quick",
    ),
    ('runs = ["slow"]', "runs = true", r"\[targets\.eight\] runs = True is not allowed: it is a list of texts"),
    (
        "informed = false",
        'informed = "no"',
        r"\[targets\.eight\] informed = 'no' is not allowed: it is true or false",
    ),
    ("dlg(iterations=3)", "dgl", r"\[targets\.eight\] attacks: 'dgl'.*did you mean"),
    (
        "clients = 2\nclient-ex",
        "clients = [[2]]\nclient-ex",
        r"\[targets\.eight\] clients = \[\[2\]\] is not allowed",
    ),
    ("[targets.one]", '[targets.one]\nruns = ["slow"]', r"\[run\.quick\] goes with no table of targets"),
    ("batch-size = 8", 'batch-size = 8\ncapture = "none"', r"nothing is kept.*\[targets\.eight\]"),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [*(("plan", *case) for case in WRONG_VALUES), *(("tables", *case) for case in WRONG_TABLES)],
)
def test_a_wrong_value_is_named_with_its_file_and_key(request, file, old, new, said):
    make = request.getfixturevalue(file)
    with pytest.raises(ConfigError, match=said):
        make((old, new))


def test_too_many_cells_are_refused_before_they_are_made(plan):
    with pytest.raises(ConfigError, match="more than 10000"):
        plan(("seeds = [0, 1]", f"seeds = {list(range(5000))}"))


def test_a_defense_that_does_not_fit_its_model_is_refused(plan):
    assert check(plan(), "small.toml", fetch=True) == []
    made = plan(("prune(ratio={0.5,0.9})", "latent_perturbation(layer='nowhere')"))
    with pytest.raises(ConfigError, match=r"small\.toml: defense = .*nowhere.* does not work with model = 'lenet'"):
        check(made, "small.toml", fetch=True)


def test_a_gpu_that_is_not_there_is_refused(plan, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"small\.toml: device = 'cuda'.* no GPU"):
        check(plan(("clients = 2", 'clients = 2\ndevice = "cuda"')), "small.toml", fetch=True)


def test_a_false_grant_is_refused(plan):
    granted = ("seeds = [0, 1]", 'seeds = [0, 1]\ngrant = "repeats"')
    assert check(plan(granted), "small.toml", fetch=True) == []
    with pytest.raises(ConfigError, match=r"small\.toml, cell none, seed 0: the grant 'repeats' would be false"):
        check(plan(granted, ("client-examples = 1", "client-examples = 9")), "small.toml", fetch=True)


def test_a_folder_with_something_else_is_left_alone(plan, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="--out"):
        plan()


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
