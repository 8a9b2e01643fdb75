"""Plans of small sweep files, which several files of tests make."""

import tomllib

import pytest

from fl_app.sweeps.expand import make_plan
from fl_app.sweeps.file import sweep_of
from helpers.small_sweep import text_of


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
