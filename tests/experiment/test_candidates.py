"""Candidates: whose they are, that they tell nothing by their order or class, and files that hold none."""

import io
import json

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from fl_app import engines
from fl_app.cli.attack import attack_run
from fl_app.core.observation import Candidates
from fl_app.core.space import Images
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.experiment.candidates import held_out, public_examples, read_candidates
from fl_app.experiment.grants import candidates_of
from fl_app.experiment.truth import true_examples
from fl_app.scoring.membership import LEFT_OUT, MEMBER, OTHER, membership
from fl_app.store.files import RunError

SETTINGS = {"client_examples": 6, "candidates": 5, "rounds": 1, "capture": "1", "model": "linear", "normalize": False}


@pytest.fixture
def assets(small):
    return assets_of(small.changed(**SETTINGS))


def test_members_are_the_targets_own_and_others_nobodys(assets):
    asked = candidates_of(assets, (1, 0))
    truth = membership(assets, (1, 0), asked)
    assert sorted(truth.tolist()) == [OTHER] * 5 + [MEMBER] * 4
    x, y = true_examples(assets, 0, 1)
    for place in (truth == MEMBER).nonzero()[:, 0].tolist():
        assert any(torch.equal(asked.x[place], own) and asked.y[place] == label for own, label in zip(x, y, strict=True))
    owned = assets.splits.train.at(torch.cat(assets.shares))[0]
    for one in asked.x[truth == OTHER]:
        assert not (owned == one).flatten(1).all(1).any()
    again = candidates_of(assets, (1, 0))
    assert torch.equal(asked.x, again.x)
    assert not torch.equal(candidates_of(assets, (1, 1)).x, asked.x)


def test_their_order_tells_nothing(assets):
    places = torch.cat([membership(assets, (one, 0), candidates_of(assets, (one, 0))).nonzero()[:, 0] for one in range(1, 60)])
    counts = torch.bincount(places, minlength=9).double()
    assert (counts / counts.sum() - 1 / 9).abs().max() < 0.06


def test_others_have_the_classes_of_the_members(assets, rng):
    _, y = held_out(assets, torch.tensor([2, 2, 2]), 20, rng)
    assert set(y.tolist()) == {2}
    _, y = held_out(assets, torch.tensor([0, 0, 1]), 60, rng)
    assert 2 not in y
    assert (y == 0).sum() > (y == 1).sum()


def test_examples_of_other_clients_or_rounds_are_left_out(assets):
    x, y = true_examples(assets, 1, 1)
    assert membership(assets, (1, 0), Candidates(x, y)).tolist() == [LEFT_OUT] * 4
    assert membership(assets, (1, -1), Candidates(x, y)).tolist() == [MEMBER] * 4  # of the aggregate they are a part


def test_where_nothing_is_held_out_it_says_so(small, rng):
    whole = assets_of(small.changed(candidates=5))  # clients own all, and the test split is public
    with pytest.raises(RunError, match=r"no example is held out .*client-examples"):
        held_out(whole, torch.tensor([0]), 5, rng)
    assert len(public_examples(whole)[1]) == 30


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"member": torch.zeros(2)}, "nothing else: not who is a member"),
        ({"x": torch.rand(2, 3, 9, 9)}, "x must be examples of the shape"),
        ({"x": torch.rand(2, 3, 12, 12) + 1}, "x must be examples of the shape"),
        ({"x": torch.rand(0, 3, 12, 12), "y": torch.zeros(0, dtype=torch.int64)}, "x must be examples"),
        ({"y": torch.tensor([0, 3])}, "y must be 2 classes below 3"),
        ({"y": torch.tensor([0.0, 1.0])}, "y must be 2 classes below 3"),
    ],
)
def test_a_file_that_holds_no_candidates_is_refused(tmp_path, change, words):
    save_file({"x": torch.rand(2, 3, 12, 12), "y": torch.tensor([0, 1]), **change}, tmp_path / "asked.safetensors")
    with pytest.raises(RunError, match=words):
        read_candidates(tmp_path / "asked.safetensors", Images((3, 12, 12)), 3)


def test_from_a_capture_to_scores_and_from_a_file(small, tmp_path):
    run = engines.run(small.changed(**SETTINGS), "inline", Watcher()).path
    said = Console(file=io.StringIO(), width=200)
    assert attack_run(said, run, ["alignment"], grants=[])
    assert "prior guess" in said.file.getvalue()
    (folder,) = run.glob("attacks/alignment-*")
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert [line["ledger"] for line in lines] == ["candidates"] * 3
    assert sum(line["auc"] for line in lines) / 3 > 0.6
    judged = load_file(folder / "judged.safetensors")
    assert judged["truth"].tolist().count(1) == 12
    assert load_file(folder / "round-0001" / "client-00.safetensors").keys() == {"scores"}  # no truth beside the answers
    x, y = true_examples(assets_of(small.changed(**SETTINGS)), 2, 1)
    save_file({"x": x, "y": y}, tmp_path / "asked.safetensors")
    assert attack_run(said, run, ["alignment"], grants=[], candidates=tmp_path / "asked.safetensors")
    (other,) = set(run.glob("attacks/alignment-*")) - {folder}
    truth = load_file(other / "judged.safetensors")["truth"]
    assert sorted(truth.tolist()) == [-1] * 8 + [1] * 4
