"""What is searched for, and what examples it stands for."""

import pytest
import torch
from torch import nn

from adversary import AttackError
from adversary.base import Public
from adversary.spaces.gaussian import LEAST, ClassGaussian, _law
from adversary.spaces.pixels import Pixels
from fl_app.core.observation import Task
from fl_app.core.space import Images

SPACE = Images((1, 2, 2))


class Scaled(nn.Module):
    """A first layer that subtracts a mean and divides by a deviation."""

    def __init__(self):
        super().__init__()
        self.normalize = nn.Module()
        self.normalize.mean, self.normalize.std = torch.full((1, 1, 1), 0.3), torch.full((1, 1, 1), 0.2)


@pytest.mark.parametrize(("model", "mean", "std"), [(Scaled(), 0.3, 0.2), (nn.Identity(), 0.0, 1.0)])
def test_pixels_are_searched_on_the_scale_of_the_model(model, mean, std):
    task, drawn = Task(model, SPACE, 3), torch.Generator().manual_seed(0)
    pixels = Pixels().bind(task)
    z = pixels.draw(400, 2, drawn)
    assert z["x"].shape == (400, 2, 1, 2, 2)
    assert (z["x"].mean().item(), z["x"].std().item()) == pytest.approx((0, 1), abs=0.05)
    z = {"x": z["x"][None]}
    torch.testing.assert_close(pixels.inputs(z), mean + std * z["x"])
    torch.testing.assert_close(pixels.answer(z), mean + std * z["x"])
    boxed = pixels.inputs(pixels.project(z))
    torch.testing.assert_close(boxed, pixels.inputs(z).clamp(0, 1), atol=1e-6, rtol=1e-5)
    assert torch.equal(Pixels(boxed=False).bind(task).project(z)["x"], z["x"])
    assert pixels.penalty(z).tolist() == [[0.0] * 400]
    started = Pixels(init="uniform").bind(task)
    x = started.inputs(started.draw(400, 2, drawn))
    assert (x.min().item(), x.max().item(), x.mean().item()) == pytest.approx((0, 1, 0.5), abs=0.03)


def law_of(learned, label):
    """Mean and covariance of the pixels of a class."""
    return learned["mean"][label], learned["basis"][label] @ learned["basis"][label].T


def test_the_gaussian_of_a_class_is_mostly_its_own(rng):
    spread = torch.tensor([0.3, 0.2, 0.1, 0.05])
    x = torch.cat(
        [0.2 + spread * torch.randn(500, 4, generator=rng), 0.7 + spread.flip(0) * torch.randn(500, 4, generator=rng)]
    )
    y = torch.tensor([0] * 500 + [1] * 498 + [2] * 2)  # of class 2 there are too few
    task = Task(nn.Identity(), SPACE, 3)
    learned = ClassGaussian(components=8).learn(Public(x.view(-1, 1, 2, 2), y), task)
    shapes = {"mean": (4, 4), "basis": (4, 4, 8), "rest": (4, 4)}  # the basis is padded
    assert {name: value.shape for name, value in learned.items()} == shapes
    torch.testing.assert_close(learned["rest"], torch.zeros(4, 4), atol=1e-3, rtol=0)  # nothing is left out
    everybody = x.T.cov()
    torch.testing.assert_close(law_of(learned, 3), (x.mean(0), everybody), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(law_of(learned, 2), law_of(learned, 3))
    for label in (0, 1):
        own = x[y == label]
        torch.testing.assert_close(
            law_of(learned, label), (own.mean(0), 0.9 * own.T.cov() + 0.1 * everybody), atol=1e-5, rtol=1e-4
        )
    few = ClassGaussian(components=2).learn(Public(x.view(-1, 1, 2, 2), y), task)
    values = torch.linalg.eigvalsh(everybody)
    torch.testing.assert_close(few["basis"][3].norm(dim=0), values.flip(0)[:2].sqrt(), atol=1e-5, rtol=1e-4)
    variances = few["basis"][3].square().sum(1) + few["rest"][3].square()
    torch.testing.assert_close(variances, everybody.diagonal(), atol=1e-5, rtol=1e-4)


def test_variables_of_the_gaussian_are_standard_normal():
    task = Task(nn.Identity(), SPACE, 3)
    learned = {"mean": torch.arange(16.0).view(4, 4), "basis": torch.arange(32.0).view(4, 4, 2)}
    learned["rest"] = torch.full((4, 4), 0.5)
    z = {"z": torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]).unsqueeze(0), "rest": torch.full((1, 1, 2, 4), 2.0)}  # two examples
    for classes, which in ((torch.tensor([[2, 0]]), (2, 0)), (None, (3, 3))):
        space = ClassGaussian(components=2).bind(task, classes, learned)
        x = space.inputs(z)
        assert x.shape == (1, 1, 2, 1, 2, 2)
        for place, label in enumerate(which):
            expected = learned["mean"][label] + learned["basis"][label] @ z["z"][0, 0, place] + 2 * (0.5 + LEAST)
            torch.testing.assert_close(x[0, 0, place].flatten(), expected)
        assert torch.equal(space.answer(z), x)
        assert torch.equal(space.project(z)["z"], z["z"])
        assert space.penalty(z).tolist() == [[(1 + 4 + 0 + 1 + 8 * 4) / 2]]
        torch.testing.assert_close(space.residuals(z).square().sum(-1), space.penalty(z))
    drawn = space.draw(300, 5, torch.Generator().manual_seed(0))["z"]
    assert drawn.shape == (300, 5, 2)
    assert drawn.std().item() == pytest.approx(0.1, rel=0.05)
    with pytest.raises(AttackError, match="there are none here"):
        ClassGaussian().bind(task, None, {})


@pytest.mark.parametrize("examples", [6, 40])
def test_the_law_of_examples_that_span_little_is_their_covariance(examples):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(examples, 3, generator=rng) @ torch.randn(3, 10, generator=rng)
    law = _law(x, 8)
    torch.testing.assert_close(law.mean, x.mean(0))
    torch.testing.assert_close(law.basis @ law.basis.T + law.rest.square().diag(), x.T.cov(), rtol=1e-3, atol=1e-4)
    assert law.basis.shape == (10, 8)
    assert (law.basis.norm(dim=0)[3:] < 1e-2).all()
