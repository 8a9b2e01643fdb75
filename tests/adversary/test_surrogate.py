"""Several local steps as one gradient at surrogate weights."""

import torch

import adversary
from adversary.search.observers import Local
from adversary.search.surrogate import POSITION, Surrogate
from fl_app.core.local import LocalRule, Step
from helpers.attacks import attack, digits, psnr, seen_of

RULE = LocalRule(kind="delta", batch_size=1, steps=4, lr=0.3, examples=2, weight_decay=0.1)


def test_the_update_is_minus_the_gradient_between_the_first_weights_and_the_last():
    x, y = digits(1, 2)
    (seen,), task = seen_of(x, y, RULE)
    local = Local(task.model, seen.params, x[0], y[0], RULE, Step.gradient, seen.update)
    observer = Surrogate(pace=0.01)
    found = observer.update(local, {POSITION: torch.tensor([25.0])})
    between = {name: 0.75 * value + 0.25 * (value + seen.update[name]) for name, value in seen.params.items()}
    gradient = Step(between, task.model, x[0], y[0]).gradient()
    for name, value in found.items():
        torch.testing.assert_close(value, -gradient[name] - 0.1 * between[name])
    assert observer.update(local._replace(rule=LocalRule(batch_size=2)), {}) is None  # a gradient is no change of weights


def test_the_position_starts_in_the_middle_and_stays_on_the_way():
    observer = Surrogate(pace=0.01)
    x, y = digits(1, 2)
    (seen,), task = seen_of(x, y, RULE)
    assert (observer.draw(seen, task)[POSITION] * observer.pace).item() == 0.5
    kept = observer.project({POSITION: torch.tensor([-1.0, 30.0, 500.0])})[POSITION]
    torch.testing.assert_close(kept * observer.pace, torch.tensor([0.0, 0.3, 1.0]))
    assert observer.draw(seen, task).keys() == {POSITION}
    assert Surrogate(pace=0).draw(seen, task) == {}


def test_surrogate_weights_tell_more_than_the_first_weights_and_cost_the_same_for_any_number_of_steps():
    x, y = digits(2, 1)
    rule = LocalRule(kind="delta", batch_size=1, steps=5, lr=0.01, examples=1)
    seen, task = seen_of(x, y, rule)
    text = "matching(objective=cosine, space=pixels(init=uniform), observers=[surrogate({})], optimizer=lbfgs(iterations=100))"
    between, first = (attack(text.format(settings), seen, task) for settings in ("", "start=0, pace=0"))
    assert psnr(between.x, x).mean() > psnr(first.x, x).mean() + 1
    sme = adversary.build("sme")
    assert sme.cost(1, rule) == sme.cost(1, LocalRule(batch_size=1))
    assert adversary.build("cosine_lbfgs").cost(1, rule) == 5 * sme.cost(1, rule)
