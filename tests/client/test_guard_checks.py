"""The guard's checks as functions of weights and gradients: honest networks are far from crafted ones."""

import math

import pytest
import torch

from client_defenses.tools.per_example import clipped_sum
from fl_app import models
from fl_app.client.guard.architecture import agreed, front_neurons, rank
from fl_app.client.guard.examples import example_checks, snr, solo_share
from fl_app.client.guard.watch import Watch, noted_gradient
from fl_app.client.guard.weights import aligned, balance, duplicates, likely_aligned, sketch, transmit, weight_checks
from fl_app.core.local import Step
from fl_app.experiment.guards import build
from fl_app.models import parameters_of
from helpers.crafted import fishing_class, fishing_feature, imprint_front, loki_front, traps

HONEST = ("lenet5", "lenet", "mlp", "convnet(width=2)", "resnet10(width=2)", "vit(dim=12, depth=1)", "linear")
REFUSE = build("refuse")


def net(name="lenet5", shape=(1, 28, 28), seed=0):
    model = models.build(name, shape, 10, seed=seed)
    return model, parameters_of(model)


def batch(number=24, shape=(1, 28, 28), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(number, *shape, generator=generator), torch.arange(number) % 10


def repeated(rows):
    return duplicates(rows, sketch(rows))


def refused(measured):
    return {one.name for one in REFUSE.findings(measured) if one.refused}


@pytest.mark.parametrize("name", HONEST)
def test_honest_networks_as_they_are_made_are_not_even_near_a_limit(name):
    model, params = net(name)
    _, notes = noted_gradient(Step(params, model, *batch()))
    measured = {**weight_checks(params), "pixels": front_neurons(params, 784), **example_checks(notes)}
    assert not REFUSE.findings(measured), measured


def test_each_crafted_server_is_refused_by_its_weights_alone():
    _, params = net()
    assert refused(weight_checks(fishing_class(params))) == {"empty_rows", "bias"}
    assert refused(weight_checks(fishing_feature(params))) == {"empty_rows", "peak"}
    assert refused(weight_checks({**params, "fc1.weight": traps(params["fc1.weight"])})) == {"balance"}
    assert refused(weight_checks(imprint_front(params, 784))) == {"duplicates", "aligned"}
    assert refused(weight_checks(loki_front(params, 1, 784))) == {"duplicates", "aligned", "transmit"}
    assert refused({"pixels": front_neurons(imprint_front(params, 784), 784)}) == {"pixels"}
    assert refused({"pixels": front_neurons(loki_front(params, 1, 784), 784)}) == {"pixels"}


def test_fishing_shows_in_the_gradients_of_examples():
    """Whatever the loss does: one example sends all of the gradient, the others' losses are no smaller."""
    model, params = net()
    x, y = batch()
    y = y.clamp(min=1)
    y[5] = 0  # the only one of the class that is fished for
    _, notes = noted_gradient(Step(fishing_class(params), model, x, y))
    measured = example_checks(notes, earlier=[2.3])
    assert measured["excess"] > 1e3
    assert measured["d_snr"] > 1e3
    assert "excess" in refused(measured)


def test_one_hard_example_is_no_fishing():
    """A network that fits all examples but one: D-SNR is large, and all of it is explained by the loss."""
    model, params = net()
    x, y = batch(8)
    params["fc3.weight"] = 300 * params["fc3.weight"]  # sure of what it says
    with torch.no_grad():
        logits = torch.func.functional_call(model, params, (x,))
    y = logits.argmax(1)
    y[3] = logits[3].argmin()
    _, notes = noted_gradient(Step(params, model, x, y))
    measured = example_checks(notes, earlier=[50.0])
    assert measured["d_snr"] > 20
    assert measured["excess"] < 5


def test_trap_weights_show_in_neurons_that_one_example_alone_reaches():
    model, params = net("lenet5")
    x, y = batch(32)
    delta = torch.zeros(32, 100)
    delta[torch.arange(32), torch.arange(32)] = 1.0  # 32 neurons with an example each, the others are not reached
    assert solo_share(delta) == 1.0
    delta[:, :8] = 1.0
    assert solo_share(delta) == pytest.approx(24 / 32)
    assert solo_share(torch.zeros(4, 4)) == 0.0
    assert solo_share(torch.eye(32)[:, :4]) == 4 / 32  # four neurons are left of a layer: few examples are alone on them
    _, notes = noted_gradient(Step(params, model, x, y))
    assert example_checks(notes)["solo"] < 0.1
    assert "solo" not in example_checks(noted_gradient(Step(params, model, x[:8], y[:8]))[1])  # too few to tell


def test_dominance_is_of_the_gradients_of_single_examples():
    """Against gradients that are taken one by one, on the layers that see one vector of each example."""
    model, params = net()
    x, y = batch(6)
    _, notes = noted_gradient(Step(params, model, x, y))
    alone = [Step(params, model, x[i : i + 1], y[i : i + 1]).gradient() for i in range(6)]
    for one in [layer for layer in notes.layers if layer.layer.startswith("fc")]:
        found = one.inputs * one.slopes
        true = torch.stack([grads[f"{one.layer}.weight"].norm() for grads in alone]) / 6
        assert torch.allclose(found, true, rtol=1e-4)
    # The sum of all is the gradient, also by the formulas of per-example clipping.
    total = clipped_sum(Step(params, model, x, y), 1e9)
    assert torch.allclose(total["fc1.weight"] / 6, noted_gradient(Step(params, model, x, y))[0]["fc1.weight"], atol=1e-6)


@pytest.mark.parametrize("name", HONEST)
def test_a_watched_gradient_is_the_gradient_bit_for_bit(name):
    model, params = net(name)
    step, watch = Step(params, model, *batch(4)), Watch()
    watched = watch(step)
    grads, plain = watched.gradient(), step.gradient()
    assert all(torch.equal(grads[key], plain[key]) for key in plain)
    assert watch(step) is step  # the first one alone
    assert watch.notes().loss == pytest.approx(torch.nn.functional.cross_entropy(model(step.x), step.y).item())
    unused = Watch()
    unused(step)  # a defense that takes its gradient otherwise
    assert unused.notes().loss == watch.notes().loss


def test_rows_by_hand():
    eye = torch.eye(4)
    assert transmit(eye) == math.inf
    assert transmit(torch.ones(2, 5)) == 0.25
    assert transmit(torch.zeros(2, 5)) == 0.0
    assert transmit(torch.ones(2, 3)) == 0.0  # too few weights to tell
    assert repeated(eye) == 0.0
    assert repeated(torch.cat([eye, -2 * eye])) == pytest.approx(4 / 7)
    assert repeated(torch.zeros(3, 4)) == 0.0
    assert aligned(torch.ones(3, 4)) > 1e5
    assert aligned(torch.diag(torch.tensor([3.0, 1.0, 1.0]))) == pytest.approx(4.5, rel=1e-2)
    assert aligned(torch.zeros(3, 4)) == 0.0
    generator = torch.Generator().manual_seed(0)
    for size in (40, 400, 4000):
        assert balance(torch.randn(200, size, generator=generator)) < 0.2
        for factor in (0.5, 0.95, 1.0):
            assert balance(traps(torch.zeros(50, size), factor)) == 1.0
            assert balance(traps(torch.zeros(50, size + 1), factor)) == 1.0
    assert balance(torch.zeros(50, 40)) == 0.0
    assert balance(torch.tensor([1.0, -1.0]).repeat(50, 4)) == 0.0  # too few weights to tell


def test_weights_that_are_not_finite_or_of_no_known_layer():
    assert refused(weight_checks({"w": torch.tensor([1.0, math.nan])})) == {"not_finite"}
    _, params = net()
    assert refused(weight_checks({**params, "fc1.weight": 1e38 * params["fc1.weight"].sign()})) == {"not_finite"}
    assert weight_checks({"w": torch.ones(3), "count": torch.tensor(3)}) == {}
    assert weight_checks({}) == {}
    assert refused({"d_snr": math.nan}) == set()  # off
    assert refused({"loss": math.nan}) == {"loss"}


def test_losses_are_compared_with_a_guess_and_with_earlier_rounds():
    model, params = net()
    _, notes = noted_gradient(Step(params, model, *batch()))
    assert example_checks(notes)["loss"] == pytest.approx(1.0, abs=0.05)
    assert example_checks(notes, [notes.loss / 100])["loss"] == example_checks(notes)["loss"]
    assert example_checks(notes, [1.0, 10 * notes.loss])["loss"] == pytest.approx(0.1)
    assert example_checks(notes._replace(loss=math.nan))["loss"] == math.inf


def test_an_architecture_is_what_its_weights_are_not_what_it_is_called():
    _, params = net("lenet5")
    assert agreed(params, ["linear", "lenet5"], (1, 28, 28), 10)
    assert not agreed(params, ["linear", "resnet10(width=2)"], (1, 28, 28), 10)
    assert not agreed(imprint_front(params, 784), ["lenet5"], (1, 28, 28), 10)
    assert front_neurons(params, 784) == 0
    for name in ("linear", "mlp"):
        plain = net(name)[1]
        assert front_neurons(plain, 784) == 0  # reads pixels, but in front of nothing
        assert front_neurons(imprint_front(plain, 784), 784) == 50


def test_equations_for_each_unknown():
    """R-GAP: softmax regression on 784 pixels has 7840 entries and 10 outputs for 784 unknowns at batch 1."""
    model, params = net("linear")
    for size in (1, 32):
        _, notes = noted_gradient(Step(params, model, *batch(size)))
        assert rank(params, notes) == pytest.approx((7840 / size + 10) / 784)


def test_near_duplicates_are_found_among_others():
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(300, generator=generator)
    copies = one * torch.linspace(-2, 2, 40)[:, None] + 1e-3 * torch.randn(40, 300, generator=generator)
    assert repeated(copies) > 0.9
    assert repeated(torch.randn(40, 300, generator=generator)) == 0
    assert repeated(torch.cat([copies, torch.randn(40, 300, generator=generator)])) == pytest.approx(0.5, abs=0.1)


def test_a_layer_with_one_direction_is_looked_at_itself():
    """Whatever the secret directions: more than the limit of 20 is never taken for less."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(60, 200, generator=generator)
    assert likely_aligned(spread, sketch(spread)) < 0.5
    line = torch.outer(torch.randn(60, generator=generator), torch.randn(200, generator=generator))
    for share in (0.01, 0.1, 0.2):
        rows = line + share * spread
        assert likely_aligned(rows, sketch(rows)) == aligned(rows) > 20
    assert likely_aligned(torch.zeros(3, 4), sketch(torch.zeros(3, 4))) == 0.0


def test_gradients_that_overflow_are_conspicuous():
    assert snr([0.0, 0.0]) == 0.0
    assert snr([1.0, 3.0, 1.0]) == 1.5
    assert snr([1.0, 0.0]) == snr([1.0, math.inf]) == snr([math.nan, 1.0]) == math.inf
