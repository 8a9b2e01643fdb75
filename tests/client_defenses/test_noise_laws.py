"""What defenses say of their own noise, and what is left of that in a chain."""

import pytest
import torch

from client_defenses import Memory, build
from client_defenses.tools.noise import Noise
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError

LAWS = {
    "dp_gaussian(scale=0.2, clip=3.0)": Noise(scale=0.2, clip=3.0),
    "dp_laplace(scale=0.2, clip=3.0)": Noise(kind="laplace", scale=0.2, clip=3.0),
    "dp_sgd(noise=0.5, clip=3.0)": Noise(scale=1.5, clip=3.0, summed=True),
    "ldpm(noise=0.5, clip=3.0)": Noise(scale=3.0, clip=3.0, summed=True),
    "dp_gaussian(scale=0.0)": None,
    "dp_laplace(scale=0.0)": None,
    "dp_sgd(noise=0.0)": None,
    "ldpm(noise=0.0)": None,
    "ppfa(budget=1.0)": None,
    "prune": None,
    # What follows only processes what was sent.
    "dp_gaussian(scale=0.2, clip=3.0) + sign": Noise(scale=0.2, clip=3.0),
    "sign + dp_gaussian": None,
    "dp_gaussian + mixup": None,  # looks at the data again
}


@pytest.mark.parametrize("text", LAWS)
def test_the_law_of_a_defense_and_of_a_chain(text):
    assert build(text).noise_law() == LAWS[text]


def test_the_noise_multiplier_of_a_chain_is_that_of_its_only_promise():
    assert build("dp_sgd(noise=0.5)").noise_multiplier() == 0.5
    assert build("dp_sgd(noise=0.5) + prune").noise_multiplier() == 0.5
    for other in ("prune + dp_sgd", "dp_sgd + mixup", "dp_sgd + dp_gaussian", "prune", "prune + sign"):
        assert build(other).noise_multiplier() is None, other


def test_noise_is_added_to_what_the_first_part_says(rng):
    model = torch.nn.Linear(4, 3)
    params = {name: value.detach() for name, value in model.named_parameters()}
    step = Step(params, model, torch.rand(5, 4, generator=rng), torch.arange(5) % 3)
    for text in ("dp_gaussian(scale=0.2, clip=0.1)", "dp_gaussian(scale=0.2, clip=0.1) + sign"):
        found = build(text).before_noise(step, Memory.fresh(0))
        size = sum(value.square().sum() for value in found.values()).sqrt()
        assert size.item() == pytest.approx(0.1, rel=1e-4)
    plain = build("mask").before_noise(step, Memory.fresh(0))
    whole = build("mask").expected(step.gradient())
    assert all(torch.allclose(value, whole[name]) for name, value in plain.items())


@pytest.mark.parametrize("text", ["dp_sgd", "ldpm"])
def test_before_its_noise_a_sum_is_the_mean_without_noise_times_the_batch(text):
    model = models.build("lenet", (1, 16, 16), 10)
    x = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    step = Step(models.parameters_of(model), model, x, torch.arange(3))
    quiet = build(f"{text}(noise=0.0, clip=0.5)").protect(step, Memory.fresh(1))
    before = build(f"{text}(noise=2.0, clip=0.5)").before_noise(step, Memory.fresh(1))
    for name, value in before.items():
        classes = 10 if text == "ldpm" and name.startswith("fc.") else 1  # its class layer is scaled by their number
        torch.testing.assert_close(value * classes / 3, quiet[name], rtol=1e-4, atol=1e-6)
    mixing = models.build("convnet(width=4)", (3, 9, 9), 10)
    mixed = Step(models.parameters_of(mixing), mixing, torch.rand(2, 3, 9, 9), torch.arange(2))
    with pytest.raises(SpecError, match=f"{text} needs a gradient for each example"):
        build(text).before_noise(mixed, Memory.fresh(1))


def test_noise_is_as_strong_as_its_scale_in_either_unit():
    assert [Noise(scale=0.2).strength, Noise(relative=0.3).strength, Noise().strength] == [0.2, 0.3, 0]


@pytest.mark.parametrize(
    ("text", "multiplier"),
    [
        ("dp_sgd(noise=0.5) + prune + sign", 0.5),
        ("dp_sgd(noise=0.5) + sign", 0.5),
        ("prune + sign", None),
        ("dp_sgd(noise=0.5) + dp_gaussian(scale=3.0, clip=0.5)", None),  # two promises are no single one
    ],
)
def test_a_chain_promises_what_its_first_part_does_if_no_other_promises_anything(text, multiplier):
    assert build(text).noise_multiplier() == multiplier
