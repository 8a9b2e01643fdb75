"""Rows of a table under attack: read off, searched for, and what of images is left out."""

from dataclasses import replace

import pytest
import torch

import adversary
from adversary import labels
from adversary.search.problem import Problem
from adversary.spaces import Cells
from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.table import Column, Rows
from fl_app.scoring.matching import match
from helpers.rows import ROWS, scene


def told(seen, y):
    return [replace(one, knowledge=Knowledge(labels=own)) for one, own in zip(seen, y, strict=True)]


def cells(guess, x):
    return torch.stack([ROWS.right(one[match(one, true)], true).double().mean() for one, true in zip(guess.x, x, strict=True)])


@pytest.mark.parametrize("model", ["mlp(hidden=[64])", "linear"])
def test_a_row_is_read_off_exactly(model):
    x, y, seen, task = scene(1, model=model)
    guess = adversary.build("readout")(seen, task, 0)
    assert torch.allclose(guess.x, x, atol=1e-5)
    assert ROWS.holds(guess.x)
    assert torch.equal(guess.y, y)


def test_a_search_finds_the_cells():
    x, _, seen, task = scene(1)
    guess = adversary.build("rows(iterations=300, lr=0.05)")(seen, task, 0)
    blind = ROWS.noise(2, torch.Generator().manual_seed(9)).view(2, 1, -1)
    assert ROWS.holds(guess.x)
    assert cells(guess, x).mean() > 0.85
    assert cells(guess._replace(x=blind), x).mean() < 0.55


def test_standard_rebuilds_rows():
    x, _, seen, task = scene(1)
    guess = adversary.build("standard")(seen, task, 0)
    assert cells(guess, x).min() == 1
    assert "rows" in adversary.build("standard").members(seen[0], task, 0)


def test_standard_solves_for_rows_of_numbers_that_a_search_does_not_find():
    numbers = Rows(tuple(Column(f"number {i}") for i in range(30)))
    net, rng, rule = models.build("mlp", numbers.shape, 2, seed=3), torch.Generator().manual_seed(1), LocalRule(batch_size=8)
    x, y, params = numbers.noise(8, rng), torch.randint(2, (8,), generator=rng), models.parameters_of(net)
    update = local_update(net, params, x, y, rule)
    seen = [Observation(params=params, update=update, rule=rule, num_examples=8, server_round=1)]
    guess = adversary.build("standard")(seen, Task(net, numbers, 2), 0)
    assert (guess.x[0][match(guess.x[0], x)] - x).abs().max() < 1e-3
    assert "rows" not in guess.others[0]  # nobody had to search


def test_a_category_stays_on_the_simplex(rng):
    variables = Cells().bind(Task(torch.nn.Linear(8, 2), ROWS, 2))
    z = {name: value[None] for name, value in variables.draw(2, 3, rng).items()}
    moved = {"x": z["x"] + 5 * torch.randn(z["x"].shape, generator=rng)}
    fed = variables.inputs(moved)
    for block in ROWS.categories:
        assert torch.allclose(fed[..., block].sum(-1), torch.ones(1, 2, 3))
        assert torch.allclose(fed[..., block], moved["x"][..., block].softmax(-1))
    numbers = [0, 3, 7]
    assert torch.equal(fed[..., numbers], moved["x"][..., numbers])
    assert (z["x"][..., numbers] - 0.5).abs().mean() < 0.2


def test_total_variation_says_nothing_of_rows():
    _, _, seen, task = scene(2)
    attack = adversary.build("matching(priors=[tv(1.0), norm(0.1)])")
    classes = [torch.tensor([0, 1])]
    problem = Problem(attack, [(seen[0],)], task, [torch.Generator()], classes)
    assert [type(prior).__name__ for prior in problem.said] == ["Norm"]


def test_classes_are_counted_again_by_what_was_found():
    x, y, seen, task = scene(8, seed=4)
    for one, rows, true in zip(seen, x, y, strict=True):
        for rule in ("count", "count_rows", "rows"):
            found = [y.bincount(minlength=2).tolist() for y in labels.again(rule, one, task, rows)]
            assert true.bincount(minlength=2).tolist() in found
        assert labels.again("given", one, task, rows) == []


def test_who_is_told_the_classes_counts_nothing():
    _, y, seen, task = scene(2)
    guess = adversary.build("rows(iterations=5, labels=given)")(told(seen, y), task, 0)
    assert torch.equal(guess.y.sort(1).values, y.sort(1).values)


def test_without_a_bias_classes_are_counted_again_by_rows_alone():
    x, _, (seen,), task = scene(4, targets=1)
    bare = {name: value for name, value in seen.update.items() if value.ndim > 1}
    assert labels.again("count", replace(seen, update=bare), task, x[0]) == []
    assert len(labels.again("count_rows", replace(seen, update=bare), task, x[0])) == 1
