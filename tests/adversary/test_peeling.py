"""Peeling: features of one image in closed form, exactly where no position is in doubt, and the image that has them."""

import pytest
import torch
from torch import nn

from adversary import AttackError
from adversary.exact.features import input_before, inputs_of
from adversary.priors import colour_variation
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from helpers.attacks import attack, digits, psnr, seen_of


def small(pool, rule):
    """Clients with one smooth image each and a network of two convolutions."""
    torch.manual_seed(0)
    front = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 16, 3), nn.ReLU(), nn.MaxPool2d(pool), nn.Flatten()]
    model = nn.Sequential(*front, nn.Linear(16 * (6 // pool) ** 2, 5))
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
    x, _, seen, task = small(pool, LocalRule(batch_size=1))
    found = input_before(seen[0].update, seen[0].params, task)
    (true,) = inputs_of(task.model, seen[0].params, x[:1], ["2"])
    assert found.layer == "2"
    assert (found.value - true).norm() < error * true.norm()


def test_images_are_rebuilt_from_several_steps_with_momentum():
    x, y, seen, task = small(2, LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1, momentum=0.9))
    guess = attack("peeling(passes=4, iterations=150, seeds=2, tv=0.1)", seen, task)
    assert torch.equal(guess.y[:, 0], y)
    grey = x.mean((1, 2, 3), keepdim=True).expand_as(x)
    assert psnr(guess.x, x[:, None]).mean() > psnr(grey[:, None], x[:, None]).mean() + 2


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
