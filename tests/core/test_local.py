"""The client rule against plain PyTorch."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from fl_app import models
from fl_app.core.local import LocalRule, Step, finite, local_update

SMOOTH = [
    "lenet",
    "lenet5(activation='sigmoid')",
    "vit(dim=24, depth=1)",
    "resnet10(norm='group')",
    "convnet(width=4, norm='none')",
]


def make(text, batch=3, shape=(3, 32, 32)):
    model = models.build(text, shape, 10, seed=1)
    generator = torch.Generator().manual_seed(2)
    x, y = torch.rand(batch, *shape, generator=generator), torch.arange(batch) % 10
    return model, models.parameters_of(model), x, y


@pytest.mark.parametrize("text", SMOOTH)
def test_gradient_is_what_backward_gives(text):
    model, params, x, y = make(text)
    ours = Step(params, model, x, y).gradient()
    F.cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(ours[name], parameter.grad), name


@pytest.mark.parametrize("text", SMOOTH)
def test_three_ways_to_take_a_gradient_agree(text):
    model, params, x, y = make(text)
    step = Step(params, model, x, y)
    plain, again, each = step.gradient(), step.differentiable_gradient(), step.per_example_gradients()
    for name in params:
        torch.testing.assert_close(again[name], plain[name], rtol=1e-4, atol=1e-5)
        assert each[name].shape == (len(x), *params[name].shape)
        torch.testing.assert_close(each[name].mean(0), plain[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("text", ["lenet", "vit(dim=24, depth=1)"])
def test_the_rule_can_be_differentiated_by_the_input(text):
    model, params, x, y = make(text, batch=1)
    rule = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1)

    def distance(x):
        update = local_update(model, params, x, y, rule, Step.differentiable_gradient)
        return sum((value**2).sum() for value in update.values())

    x = x.double().requires_grad_()
    model.double()
    params = {name: value.double() for name, value in params.items()}
    (slope,) = torch.autograd.grad(distance(x), x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    numeric = (distance(x + 1e-5 * direction) - distance(x - 1e-5 * direction)) / 2e-5
    torch.testing.assert_close((slope * direction).sum(), numeric, rtol=1e-4, atol=1e-10)


def test_delta_is_what_sgd_does_to_the_weights():
    model, params, x, y = make("lenet5", batch=8)
    rule = LocalRule(kind="delta", batch_size=4, steps=5, lr=0.05, examples=8)
    update = local_update(model, params, x, y, rule)
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
    for step in range(5):
        part = slice(0, 4) if step % 2 == 0 else slice(4, 8)
        optimizer.zero_grad()
        F.cross_entropy(trained(x[part]), y[part]).backward()
        optimizer.step()
    for name, parameter in trained.named_parameters():
        torch.testing.assert_close(params[name] + update[name], parameter.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("sgd", {"momentum": 0.9}),
        ("sgd", {"weight_decay": 0.02}),
        ("sgd", {"momentum": 0.7, "weight_decay": 0.02}),
        ("adam", {"weight_decay": 0.02}),
    ],
)
def test_momentum_and_weight_decay_are_those_of_torch(kind, settings):
    model, params, x, y = make("lenet5", batch=8)
    model.double()
    params, x = {name: value.double() for name, value in params.items()}, x.double()
    rule = LocalRule(kind="delta", batch_size=4, steps=6, lr=0.05, examples=8, optimizer=kind, **settings)
    update = local_update(model, params, x, y, rule)
    trained = copy.deepcopy(model)
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](trained.parameters(), lr=0.05, **settings)
    for step in range(6):
        part = slice(0, 4) if step % 2 == 0 else slice(4, 8)
        optimizer.zero_grad()
        F.cross_entropy(trained(x[part]), y[part]).backward()
        optimizer.step()
    plain = local_update(
        model, params, x, y, LocalRule.from_dict(rule.to_dict() | {"local-momentum": 0, "local-weight-decay": 0})
    )
    for name, parameter in trained.named_parameters():
        torch.testing.assert_close(params[name] + update[name], parameter.detach(), rtol=1e-7, atol=1e-9)
        assert not torch.allclose(update[name], plain[name], rtol=1e-3)
    x.requires_grad_()
    again = local_update(model, params, x, y, rule, Step.differentiable_gradient)
    (slope,) = torch.autograd.grad(sum(value.square().sum() for value in again.values()), x)
    assert slope.isfinite().all()
    assert slope.abs().max() > 0


def test_steps_in_an_order_of_their_own_are_steps_on_examples_in_that_order():
    model, params, x, y = make("lenet", batch=4)
    rule = LocalRule(kind="delta", batch_size=2, steps=4, lr=0.5, examples=4, shuffle=True)
    order = torch.tensor([[0, 1], [2, 3], [3, 1], [0, 2]])
    ours = local_update(model, params, x, y, rule, order=order)
    laid_out = local_update(model, params, x[order.flatten()], y[order.flatten()], rule)
    plain = local_update(model, params, x, y, rule)
    assert all(torch.equal(ours[name], laid_out[name]) for name in ours)
    assert not any(torch.allclose(ours[name], plain[name], rtol=1e-4) for name in ours)


def test_the_scale_of_an_update_counts_its_momentum():
    """A model whose gradient does not change with its weights would send exactly -lr * gradients of it."""
    assert LocalRule(kind="delta", steps=3).gradients == 3
    assert LocalRule(kind="delta", steps=3, momentum=0.5).gradients == 1 + 1.5 + 1.75


def test_soft_labels_equal_hard_ones():
    model, params, x, y = make("lenet")
    hard = Step(params, model, x, y).gradient()
    soft = Step(params, model, x, F.one_hot(y, 10).float()).gradient()
    for name in hard:
        torch.testing.assert_close(soft[name], hard[name])


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 2},
        {"examples": 4},
        {"batch_size": 0},
        {"kind": "weights"},
        {"kind": "delta", "lr": 0.0},
        {"kind": "delta", "steps": 0},
        {"kind": "delta", "momentum": 1.0},
        {"kind": "delta", "weight_decay": -1e-3},
        {"kind": "delta", "weight_decay": float("inf")},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"kind": "delta", "optimizer": "adam", "momentum": 0.9},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match=r"must|exactly"):
        LocalRule(**settings)


def test_local_adam_is_that_of_torch_and_can_be_differentiated():
    model, params, x, y = make("lenet", batch=4)
    rule = LocalRule(kind="delta", batch_size=4, steps=5, lr=1e-3, examples=4, optimizer="adam")
    ours = local_update(model, params, x, y, rule)
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(theirs(x), y).backward()
        optimizer.step()
    for name, value in theirs.named_parameters():
        torch.testing.assert_close(ours[name], value.detach() - params[name], rtol=1e-3, atol=1e-6)
    x.requires_grad_()
    update = local_update(model, params, x, y, rule, Step.differentiable_gradient)
    (slope,) = torch.autograd.grad(sum(value.square().sum() for value in update.values()), x)
    assert slope.isfinite().all()
    assert slope.abs().max() > 0
    with pytest.raises(ValueError, match="no local optimizer"):
        LocalRule(optimizer="adam")


@pytest.mark.parametrize(
    ("rule", "number", "wanted"),
    [
        ({"batch_size": 4}, 4, {"batch_size": 4}),
        ({"batch_size": 4}, 10, {"batch_size": 4, "steps": 3, "examples": 10}),
        ({"batch_size": 4}, 3, {"batch_size": 3}),
        ({"batch_size": 4, "steps": 6, "examples": 8}, 12, {"batch_size": 4, "steps": 9, "examples": 12}),
        ({"batch_size": 4, "steps": 6, "examples": 8}, 2, {"batch_size": 2, "steps": 3, "examples": 2}),
        ({"batch_size": 4, "steps": 6, "examples": 8}, 10, None),
        ({"batch_size": 4, "steps": 3, "examples": 8}, 4, None),
    ],
)
def test_steps_follow_from_the_number_of_examples(rule, number, wanted):
    found = LocalRule(kind="delta", lr=0.1, momentum=0.5, **rule).for_examples(number)
    assert found == (wanted and LocalRule(kind="delta", lr=0.1, momentum=0.5, **wanted))
    if found:
        taken = [range(number)[found.batch(step, number)] for step in range(found.steps)]
        each = [sum(place in one for one in taken) for place in range(number)]
        assert set(each) == {round(found.steps / math.ceil(number / found.batch_size))}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_of_any_precision_are_finite_or_not(dtype):
    assert finite(torch.ones(3, dtype=dtype))
    for wrong in (torch.nan, torch.inf, -torch.inf):
        assert not finite(torch.tensor([1.0, wrong], dtype=dtype))
    assert finite(torch.arange(3))
    assert finite(torch.empty(0, dtype=dtype))
