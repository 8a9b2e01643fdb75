"""Attacks on several local steps: clients that shuffle, and clients with Adam."""

import dataclasses

import pytest
import torch

from adversary import AttackError
from adversary.objectives import WrongSigns
from adversary.priors import SameMean
from adversary.search.assumed import Assumed
from adversary.search.observers import Local
from adversary.spaces.epochs import Epochs
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Knowledge
from fl_app.data.batches import step_positions
from helpers.attacks import attack, digits, psnr, seen_of

SHUFFLED = LocalRule(kind="delta", batch_size=1, steps=4, lr=0.03, examples=2, shuffle=True)
SEARCH = "matching(objective=cosine, optimizer=lbfgs(iterations=60), space=pixels(init=uniform, boxed=False), labels=given)"

SIGNS = (
    "matching(objective=wrong_signs, space=pixels(init=uniform), priors=[tv(0.003)], observers=[surrogate(start=0, pace=0)], "
    "optimizer=adam(iterations=200, signed=True, decay=True))"
)


def shuffled(x, y, order, knowledge):
    (seen,), task = seen_of(x, y, SHUFFLED, knowledge=knowledge)
    return dataclasses.replace(seen, update=local_update(task.model, seen.params, x[0], y[0], SHUFFLED, order=order)), task


def test_who_is_told_the_order_rebuilds_more_than_who_assumes_one():
    x, y = digits(1, 2)
    order = torch.tensor([[0], [1], [1], [0]])
    told, task = shuffled(x, y, order, Knowledge(labels=y[0], order=order))
    assert told.knowledge.ledger == ("labels", "batch order")
    assuming = dataclasses.replace(told, knowledge=Knowledge(labels=y[0]))
    assert psnr(attack(SEARCH, [told], task).x, x).mean() > psnr(attack(SEARCH, [assuming], task).x, x).mean() + 3


def test_examples_of_several_epochs_are_paired_within_their_class_and_averaged():
    x, y = digits(1, 3)
    _, task = seen_of(x, y)
    space = Epochs(number=2).bind(task, torch.tensor([[3, 3, 5]]))
    dark, light, middle = (torch.full((1, 28, 28), value) for value in (0.0, 1.0, 0.5))
    # In the second epoch the third example looks like the first one, but is of another class.
    z = {"x": torch.stack([dark, light, middle, light * 0.8, light * 0.6, dark])[None, None]}
    means = space.answer(z)[0, 0].flatten(1).mean(1)
    torch.testing.assert_close(means, torch.tensor([0.3, 0.9, 0.25]))


def test_the_prior_between_epochs_does_not_see_their_order():
    x = torch.rand(1, 1, 3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    prior = SameMean(weight=1.0, epochs=2)
    assert prior.penalty(torch.cat([x, x.flip(2)], 2)).item() < 1e-12
    # Of two epochs the mean squared difference.
    torch.testing.assert_close(prior.penalty(torch.cat([x, x + 0.5], 2)), torch.tensor([[0.25]]))


def test_an_assumed_rule_takes_the_place_of_the_real_one():
    x, y = digits(1, 2)
    rule = dataclasses.replace(SHUFFLED, shuffle=False)
    (seen,), task = seen_of(x, y, dataclasses.replace(rule, momentum=0.9, weight_decay=0.1))
    local = Local(task.model, seen.params, x[0], y[0], rule, Step.gradient, seen.update)
    right = Assumed(momentum=0.9, weight_decay=0.1).update(local, {})
    wrong = Assumed(momentum=0.5).update(local._replace(rule=seen.rule), {})
    assert all(torch.equal(right[name], seen.update[name]) for name in right)
    assert not any(torch.allclose(wrong[name], seen.update[name], rtol=1e-3) for name in wrong)
    assert Assumed(momentum=0.5).update(local._replace(rule=LocalRule(batch_size=2)), {}) is None
    adam = dataclasses.replace(rule, optimizer="adam")  # which has no momentum to set
    decayed = local_update(task.model, seen.params, x[0], y[0], dataclasses.replace(adam, weight_decay=0.1))
    found = Assumed(momentum=0.5, weight_decay=0.1).update(local._replace(rule=adam), {})
    assert all(torch.equal(found[name], value) for name, value in decayed.items())


def test_epochs_need_whole_batches():
    x, y = digits(1, 2)
    (seen,), task = seen_of(x, y, LocalRule(kind="delta", batch_size=1, steps=3, lr=0.1, examples=2))
    with pytest.raises(AttackError, match="epochwise needs whole epochs"):
        attack("epochwise(iterations=2)", [seen], task)


def test_each_epoch_of_a_shuffling_client_holds_each_example_once_in_an_order_of_its_own():
    rule = LocalRule(kind="delta", batch_size=4, steps=6, lr=0.1, examples=8, shuffle=True)
    steps = step_positions(7, 1, 2, rule, 8)
    epochs = [torch.cat(steps[i : i + 2]) for i in (0, 2, 4)]
    assert all(torch.equal(epoch.sort().values, torch.arange(8)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3
    assert all(torch.equal(a, b) for a, b in zip(steps, step_positions(7, 1, 2, rule, 8), strict=True))
    assert step_positions(7, 1, 2, dataclasses.replace(rule, shuffle=False), 8) is None


def test_signs_count_what_is_wrong_by_its_size_and_can_be_descended():
    seen = {"w": torch.tensor([1.0, -1.0, 0.5, -0.5])}
    dummy = torch.tensor([3.0, -0.1, -2.0, -1.0], requires_grad=True)
    loss = WrongSigns()({"w": dummy}, seen, 0.0)
    assert loss.item() == pytest.approx(0.5 / 3)  # one of four is wrong, of half the size
    (slope,) = torch.autograd.grad(loss, dummy)
    assert slope[2] < 0
    assert slope[[0, 1, 3]].eq(0).all()


def test_signs_rebuild_an_image_of_adam_steps():
    x, y = digits(1, 1)
    rule = LocalRule(kind="delta", batch_size=1, steps=5, lr=0.001, examples=1, optimizer="adam")
    seen, task = seen_of(x, y, rule)
    signs = attack(SIGNS, seen, task)
    as_gradient = attack(
        "matching(objective=cosine, observers=[surrogate(start=0, pace=0)], optimizer=lbfgs(iterations=60))", seen, task
    )
    assert torch.equal(signs.y, y)
    assert psnr(signs.x, x).mean() > psnr(as_gradient.x, x).mean() + 3
