"""What `standard` goes by: which entries count, whether they are enough, and how far an answer explains them."""

from dataclasses import replace

import pytest
import torch

import client_defenses
from adversary.base import Guess
from adversary.entries import Ignoring, Masked
from adversary.evidence import CERTAIN, Evidence, determined, measured
from adversary.networks import CINetLBFGS
from adversary.objectives import Cosine, Relative
from adversary.search.matching import Matching
from adversary.spaces.gaussian import ClassGaussian
from adversary.standard import Standard
from client_defenses import Memory
from fl_app.core.local import Step
from fl_app.core.observation import Knowledge
from helpers.attacks import digits, seen_of

PRUNED = "prune(ratio=0.9)"


@pytest.fixture
def pruned():
    x, y = digits(1, 1)
    (seen,), task = seen_of(x, y)
    step = Step(seen.params, task.model, x[0], y[0])
    update = client_defenses.build(PRUNED).protect(step, Memory.fresh(0))
    return x[0], y[0], replace(seen, update=update, knowledge=Knowledge(defense=PRUNED)), task


def guess(x, y):
    return Guess(x, y, torch.zeros(()))


def test_the_truth_explains_a_pruned_update_to_who_knows_that_it_is_pruned(pruned):
    x, y, seen, task = pruned
    told = Evidence.known_to(Standard().members(seen, task, 600).values(), seen, task)
    assert isinstance(told.entries, Masked)
    found = told.of(guess(x, y))
    assert found.certain
    assert found.distance == pytest.approx(0, abs=1e-6)
    naive = Evidence.known_to([], seen, task).of(guess(x, y))
    assert not naive.certain
    assert naive.distance > 0.01


def test_the_wrong_image_explains_it_to_nobody(pruned):
    x, y, seen, task = pruned
    told = Evidence.known_to(Standard().members(seen, task, 600).values(), seen, task)
    wrong = told.of(guess(1 - x, y))
    assert not wrong.certain
    assert wrong.distance > 0.01
    assert told.of(guess(torch.full_like(x, torch.nan), y)).distance == 2


def test_how_many_numbers_an_update_says():
    """Entries other than zero; of a matrix (m, n) of rank r no more than r (m + n - r)."""
    rng = torch.Generator().manual_seed(0)
    rank_one = torch.outer(torch.randn(5, generator=rng), torch.randn(7, generator=rng))
    for update, numbers in (
        ({"a": torch.ones(10)}, 10),
        ({"a": torch.tensor([0.0, 1.0, 2.0]), "b": torch.zeros(4)}, 2),
        ({"a": rank_one}, 11),
        ({"a": torch.randn(5, 7, generator=rng)}, 35),
        ({"a": rank_one * (torch.arange(7) == 0), "b": torch.ones(3)}, 8),
        ({"a": torch.ones(2, 3, 4)}, 24),
    ):
        assert determined(update, numbers)
        assert not determined(update, numbers + 1)


def test_a_batch_of_colour_images_has_more_pixels_than_lenet_says_numbers():
    """Measured on LeNet: of 4 images a search in pixels explains the update and is wrong, of one it is right."""
    for examples, enough in ((1, True), (3, True), (4, False), (8, False)):
        x = torch.rand(1, examples, 3, 32, 32, generator=torch.Generator().manual_seed(examples))
        (seen,), task = seen_of(x, torch.arange(examples)[None])
        assert Evidence.known_to([], seen, task).determined is enough


def test_one_that_is_not_determined_is_not_certain_however_near(pruned):
    x, y, seen, task = pruned
    keep = {name: value.clone() for name, value in seen.update.items()}
    for name in list(keep)[1:]:
        keep[name].zero_()
    found = Evidence(replace(seen, update=keep), task, Masked(objective=Cosine())).of(guess(x, y))
    assert found.distance < CERTAIN
    assert not found.certain


def test_who_gave_an_answer_is_noted(pruned):
    x, y, seen, task = pruned
    evidence = Evidence.known_to([], seen, task)
    kinds = {None: (False, False), Matching(space=ClassGaussian()): (True, False), CINetLBFGS(): (False, True)}
    for attack, (likely, drawn) in kinds.items():
        found = evidence.of(guess(x, y), attack)
        assert (found.likely, found.drawn) == (likely, drawn)


def test_a_measure_on_the_entries_of_another():
    nested = Ignoring(objective=Masked(objective=Cosine()), layers=("fc",))
    assert measured(nested, Relative()) == Ignoring(objective=Masked(objective=Relative()), layers=("fc",))
    assert measured(Cosine(), Relative()) == Relative()


def test_what_counts_is_what_the_first_who_leaves_entries_out_looks_at(pruned):
    _, _, seen, task = pruned
    without = Ignoring(objective=Cosine(), layers=("last",))
    members = [Matching(objective=Relative()), Matching(objective=without), Matching(objective=Masked(objective=Cosine()))]
    entries = Evidence.known_to(members, seen, task).entries
    assert isinstance(entries, Ignoring)
    assert entries.layers != ("last",), "fitted to the update"
    assert Evidence.known_to([Matching(objective=Relative())], seen, task).entries == Cosine()
