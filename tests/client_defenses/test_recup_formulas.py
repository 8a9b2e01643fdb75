"""RecUP-FL against the same written out: regressions in the other form, slopes by autograd, steps one by one."""

import pytest
import torch

import client_defenses
from client_defenses import Memory
from client_defenses.recup import RIDGE, RecUP, Zoo, substitutes
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.table import Column, Rows

ROWS = Rows((Column("age"), Column("sex", ("f", "m")), Column("job", ("a", "b", "c"))))


def step_of(examples=4, classes=3):
    rng = torch.Generator().manual_seed(2)
    model = models.build("mlp(hidden=[5])", ROWS.shape, classes, seed=1)
    y = torch.randint(classes, (examples,), generator=rng)
    return Step(models.parameters_of(model), model, ROWS.noise(examples, rng), y)


def flat(grads):
    return torch.cat([value.flatten() for value in grads.values()])


def test_where_the_class_is_hidden_each_example_is_tried_with_each_class():
    step = step_of()
    tried, shares = RecUP()._counterfactuals(step)
    for label in range(3):
        assert shares[label].item() == pytest.approx((step.y == label).double().mean().item())
        for i in range(4):
            one = Step(step.params, step.model, step.x[i : i + 1], torch.tensor([label])).gradient()
            torch.testing.assert_close(tried[label, i], flat(one), rtol=1e-4, atol=1e-6)
    assert not tried.requires_grad
    images = models.build("lenet", (1, 8, 8), 3, seed=0)
    seen = Step(models.parameters_of(images), images, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    assert RecUP()._counterfactuals(seen)[0].shape[:2] == (3, 2)


@pytest.mark.parametrize("values", [2, 3])
def test_substitutes_are_ridge_regressions_on_halves_of_the_entries(values, rng):
    """In primal form: of the differences between the values of each example, on what values these are."""
    tried = torch.randn(values, 4, 30, generator=rng) + 5 * torch.randn(1, 4, 1, generator=rng)
    found = substitutes(tried, 5, Memory.fresh(8))
    draws = Memory.fresh(8).rng
    spread = (tried - tried.mean(0)).double().reshape(values * 4, 30)
    wanted = torch.cat([torch.eye(values)[value].expand(4, values) for value in range(values)]).double()
    wanted = wanted - wanted.mean(0)
    for k in range(5):
        kept = torch.rand(30, generator=draws) < 0.5
        seen = spread[:, kept]
        ridge = RIDGE * seen.square().sum(1).mean()
        primal = torch.linalg.solve(seen.T @ seen + ridge * torch.eye(int(kept.sum())), seen.T @ wanted)
        torch.testing.assert_close(found.weights[k][:, kept].double(), primal.T, rtol=1e-4, atol=1e-5)
        assert not found.weights[k][:, ~kept].any()
    torch.testing.assert_close(found.middle, tried.reshape(-1, 30).mean(0))
    assert substitutes(torch.zeros(2, 3, 4), 2, Memory.fresh(1)).weights.abs().max() == 0


def uphill(zoo, k, at, shares):
    """The gradient of the cross-entropy, by autograd."""
    at = at.clone().requires_grad_()
    logits = zoo.weights[k] @ (at - zoo.middle)
    (found,) = torch.autograd.grad(-(shares * logits.log_softmax(0)).sum(), at)
    return found


def zoo_of(rng, models=3, values=3, size=20):
    return Zoo(torch.randn(models, values, size, generator=rng), torch.randn(size, generator=rng))


def test_a_substitute_is_led_astray_along_its_cross_entropy(rng):
    zoo, at, shares = zoo_of(rng), torch.randn(20, generator=rng), torch.tensor([0.2, 0.5, 0.3])
    for k in range(3):
        torch.testing.assert_close(zoo.slope(k, at, shares), uphill(zoo, k, at, shares), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("eps", "steps"), [(0.5, 1), (0.5, 7), (3.0, 4)])
def test_each_step_goes_up_for_those_at_hand_and_for_the_one_kept_back(rng, eps, steps):
    zoo, at, shares = zoo_of(rng), torch.randn(20, generator=rng), torch.tensor([0.2, 0.5, 0.3])
    found = RecUP(eps=eps, steps=steps, models=3)._perturbation(at, zoo, shares, Memory.fresh(4))
    draws, radius, delta = Memory.fresh(4).rng, eps * at.norm(), torch.zeros(20)
    for _ in range(steps):
        back = int(torch.randint(3, (), generator=draws))
        mean = sum(uphill(zoo, k, at + delta, shares) for k in range(3) if k != back) / 2
        mean = mean / mean.norm()
        ahead = uphill(zoo, back, at + delta + 2 * radius / steps * mean, shares)
        both = mean + ahead / ahead.norm()
        delta = delta + 2 * radius / steps * both / both.norm()
        if delta.norm() > radius:
            delta = delta * radius / delta.norm()
    torch.testing.assert_close(found, delta, rtol=1e-3, atol=1e-3)
    assert found.norm() <= radius * 1.0001
    still = Zoo(torch.zeros(3, 3, 20), torch.zeros(20))
    assert not RecUP(models=3)._perturbation(at, still, shares, Memory.fresh(4)).any()


@pytest.mark.parametrize("attribute", ["", "job"])
def test_what_is_sent_is_the_gradient_and_the_perturbation(attribute):
    step = step_of()
    defense = client_defenses.build(f"recup(eps=0.7, models=3, steps=4, attribute='{attribute}')").within(ROWS)
    grads = {name: value.to(torch.float64 if value.ndim == 1 else value.dtype) for name, value in step.gradient().items()}
    sent = defense.on_gradient(grads, step, Memory.fresh(5))
    memory, plain = Memory.fresh(5), flat(step.gradient())
    tried, shares = defense._counterfactuals(step)
    moved = plain + defense._perturbation(plain, substitutes(tried, 3, memory), shares, memory)
    torch.testing.assert_close(torch.cat([value.flatten().float() for value in sent.values()]), moved)
    assert {name: (value.shape, value.dtype) for name, value in sent.items()} == {
        name: (value.shape, value.dtype) for name, value in grads.items()
    }
    quiet = client_defenses.build("recup(eps=0)")
    assert quiet.on_gradient(grads, step, Memory.fresh(5)) is grads


def test_the_place_of_an_attribute_is_looked_up_by_its_name():
    defense = client_defenses.build("recup(attribute=job)").within(ROWS)
    assert defense.block == (3, 6)
    none = RecUP()
    assert none.within(ROWS) is none
