"""Sweep files that cannot be meant: each is refused before work starts, with its file and key."""

import pytest

from fl_app.experiment.toml import ConfigError
from fl_app.store.files import RunError
from fl_app.sweeps.check import check

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
