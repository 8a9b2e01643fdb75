"""Peeling: features of one image in closed form, exactly where no position is in doubt, and the image that has them."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from adversary import AttackError
from adversary.exact.features import input_before, inputs_of
from adversary.exact.steps import steps_of
from adversary.priors import colour_variation
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from helpers.attacks import attack, digits, psnr, seen_of


def small(pool, rule, hidden=()):
    """Clients with one smooth image each and a network of two convolutions, with layers of hidden neurons behind them."""
    torch.manual_seed(0)
    front = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 16, 3), nn.ReLU(), nn.MaxPool2d(pool), nn.Flatten()]
    widths = [16 * (6 // pool) ** 2, *hidden]
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    model = nn.Sequential(*front, *layers, nn.Linear(widths[-1], 5))
    y = torch.tensor([2, 4])
    x = nn.functional.interpolate(torch.rand(2, 1, 3, 3), size=(8, 8), mode="bilinear", align_corners=True)
    params = {name: value.detach() for name, value in model.named_parameters()}
    seen = [
        Observation(
            params=params,
            update=local_update(model, params, x[i : i + 1], y[i : i + 1], rule),
            rule=rule,
            num_examples=1,
            server_round=1,
            client=i,
        )
        for i in range(2)
    ]
    return x, y, seen, Task(model, Images((1, 8, 8)), 5)


@pytest.mark.parametrize(("pool", "error"), [(1, 1e-3), (2, 0.1)])
def test_what_enters_the_last_convolution_is_found(pool, error):
    x, y, seen, task = small(pool, LocalRule(batch_size=1))
    found = input_before(seen[0], y[:1], task)
    (true,) = inputs_of(task.model, seen[0].params, x[:1], ["2"])
    assert found.layer == "2"
    assert (found.value - true).norm() < error * true.norm()


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.9, 0.0), (0.0, 0.01)])
def test_two_local_steps_are_told_apart(momentum, weight_decay):
    rule = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1, momentum=momentum, weight_decay=weight_decay)
    x, y, seen, task = small(2, rule, hidden=[20])
    for i, one in enumerate(seen):
        first, second = steps_of(one, y[i : i + 1], "6", task)
        grads = local_update(task.model, one.params, x[i : i + 1], y[i : i + 1], LocalRule(batch_size=1))
        after = {name: value - 0.1 * (grads[name] + weight_decay * value) for name, value in one.params.items()}
        then = local_update(task.model, after, x[i : i + 1], y[i : i + 1], LocalRule(batch_size=1))
        for taken, params, gradient in ((first, one.params, grads), (second, after, then)):
            (true,) = inputs_of(task.model, params, x[i : i + 1], ["6"])
            assert (taken.entered - true[0]).norm() < 1e-3 * true.norm()
            slope = gradient["6.bias"] @ params["6.weight"]
            assert (taken.slope - slope).norm() < 1e-3 * slope.norm()
        assert first.share == pytest.approx((1 + momentum) / (2 + momentum))


def test_steps_that_nothing_explains_are_not_told_apart():
    rule = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1, momentum=0.9)
    _, y, seen, task = small(2, rule, hidden=[20])
    assert steps_of(replace(seen[0], rule=replace(rule, lr=0.3)), y[:1], "6", task) is None
    assert steps_of(replace(seen[0], rule=replace(rule, momentum=0.0, optimizer="adam")), y[:1], "6", task) is None


def test_updates_that_say_nothing_are_refused_and_noisy_ones_are_not():
    for rule in (LocalRule(batch_size=1), LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1)):
        _, y, seen, task = small(2, rule, hidden=[20])
        nothing = {name: torch.zeros_like(value) for name, value in seen[0].update.items()}
        with pytest.raises(AttackError, match="nowhere above zero"):
            input_before(replace(seen[0], update=nothing), y[:1], task)
        noisy = {name: value + torch.randn_like(value) for name, value in seen[0].update.items()}
        assert input_before(replace(seen[0], update=noisy), y[:1], task).value.isfinite().all()


def test_features_and_images_of_several_steps_with_momentum():
    x, y, seen, task = small(2, LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1, momentum=0.9))
    for i in range(2):
        (true,) = inputs_of(task.model, seen[i].params, x[i : i + 1], ["2"])
        assert (input_before(seen[i], y[i : i + 1], task).value - true).norm() < 0.25 * true.norm()
    guess = attack("peeling(iterations=150, seeds=2, tv=0.1)", seen, task)
    assert torch.equal(guess.y[:, 0], y)
    grey = x.mean((1, 2, 3), keepdim=True).expand_as(x)
    assert psnr(guess.x, x[:, None]).mean() > psnr(grey[:, None], x[:, None]).mean() + 6


def test_what_it_cannot_peel_is_refused():
    with pytest.raises(AttackError, match="no convolution, ReLU and max pooling"):
        attack("peeling", *seen_of(*digits(1, 1)))
    with pytest.raises(AttackError, match="one image, not of 2"):
        attack("peeling", *seen_of(*digits(1, 2), model_text="lenet5"))


def test_colours_vary_where_channels_differ():
    grey = torch.rand(1, 1, 1, 1, 4, 4).expand(1, 1, 1, 3, 4, 4)
    assert colour_variation(grey) == 0
    assert colour_variation(torch.rand(1, 1, 1, 3, 4, 4)) > 0.1
    assert colour_variation(torch.rand(1, 1, 1, 1, 4, 4)) == 0
