"""RecUP-FL: a bounded perturbation that leads linear readers of an attribute astray."""

import pytest
import torch

import client_defenses
from client_defenses import Memory, contracts
from client_defenses.recup import substitutes
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.space import Images
from fl_app.core.spec import SpecError
from fl_app.core.table import Column, Rows

ROWS = Rows((Column("age"), Column("sex", ("f", "m")), Column("job", ("a", "b", "c"))))


def step_of(examples=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    model = models.build("mlp(hidden=[16])", ROWS.shape, 2, seed=1)
    y = torch.randint(2, (examples,), generator=rng)
    return Step(models.parameters_of(model), model, ROWS.noise(examples, rng), y)


def flat(grads):
    return torch.cat([value.flatten() for value in grads.values()])


def test_at_no_strength_it_is_the_gradient():
    contracts.changes_nothing(client_defenses.build("recup(eps=0)"))


@pytest.mark.parametrize("eps", [0.1, 1.0])
@pytest.mark.parametrize("attribute", ["", "attribute=sex, "])
def test_what_is_added_is_as_large_as_was_said(eps, attribute):
    defense, step = client_defenses.build(f"recup({attribute}eps={eps})").within(ROWS), step_of()
    plain, sent = (flat(one) for one in (step.gradient(), defense.protect(step, Memory.fresh(3))))
    assert (sent - plain).norm() <= eps * plain.norm() * 1.0001
    assert (sent - plain).norm() >= eps * plain.norm() * 0.5


def test_a_reader_that_it_never_saw_is_led_astray():
    """Of passengers who are all of one sex, a linear model with draws of its own believes in the other one."""
    step = step_of()
    x = step.x.clone()
    x[:, ROWS.places["sex"]] = torch.tensor([1.0, 0.0])
    step = step._replace(x=x)
    defense = client_defenses.build("recup(attribute=sex, eps=1.0)").within(ROWS)
    tried, shares = defense._counterfactuals(step)
    assert shares.tolist() == [1, 0]
    zoo = substitutes(tried, 3, Memory.fresh(77))
    plain, sent = flat(step.gradient()), flat(defense.protect(step, Memory.fresh(3)))
    for k in range(3):
        before, after = (zoo.weights[k] @ (one - zoo.middle) for one in (plain, sent))
        assert before.argmax() == 0
        assert after.argmax() == 1


def test_counterfactuals_are_the_gradients_of_rows_with_another_value():
    step, defense = step_of(), client_defenses.build("recup(attribute=job)").within(ROWS)
    tried, shares = defense._counterfactuals(step)
    assert tried.shape[:2] == (3, 6)
    assert torch.allclose(shares, step.x[:, ROWS.places["job"]].mean(0))
    x = step.x.clone()
    x[2, ROWS.places["job"]] = torch.tensor([0.0, 1.0, 0.0])
    one = Step(step.params, step.model, x[2:3], step.y[2:3]).gradient()
    assert torch.allclose(tried[1, 2], flat(one), atol=1e-6)


def test_its_attribute_must_be_a_column():
    defense = client_defenses.build("recup(attribute=sex)")
    with pytest.raises(SpecError, match="these examples have no attributes"):
        defense.within(Images((1, 4, 4)))
    with pytest.raises(ValueError, match="no column of categories 'age'; valid: job, sex"):
        client_defenses.build("recup(attribute=age) + prune").within(ROWS)
    with pytest.raises(SpecError, match="does not know the place"):
        defense.protect(step_of(), Memory.fresh(0))
