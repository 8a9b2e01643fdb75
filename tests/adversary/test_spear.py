"""SPEAR: whole batches exactly, with a proof; what it refuses, and what it does with features."""

import pytest
import torch
from torch import nn

import adversary
from adversary import AttackError, Public
from adversary.exact.decompose import Layer, decompose
from adversary.exact.features import inputs_of
from adversary.exact.layers import first_gated, first_linear, pixels_into
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from fl_app.scoring.matching import match
from helpers.attacks import attack, digits, psnr, seen_of


def scene(examples, model_text="mlp", dtype=torch.float32, normalize=([0.13], [0.3])):
    x, y = digits(1, examples, start=300)
    model = models.build(model_text, (1, 28, 28), 10, seed=2, normalize=normalize).to(dtype)
    params, rule = models.parameters_of(model), LocalRule(batch_size=examples)
    update = local_update(model, params, x[0].to(dtype), y[0], rule)
    seen = Observation(params=params, update=update, rule=rule, num_examples=examples, server_round=1)
    return x[0], y[0], seen, Task(model, Images((1, 28, 28)), 10)


@pytest.mark.parametrize(
    ("examples", "dtype", "least"),
    [(1, torch.float32, 100), (2, torch.float32, 90), (8, torch.float64, 150), (20, torch.float32, 90)],
)
def test_a_whole_batch_and_its_classes_are_found_and_proved(examples, dtype, least):
    x, y, seen, task = scene(examples, dtype=dtype)
    guess = attack("spear", [seen], task)
    order = match(guess.x[0].float(), x)
    assert guess.loss == 0
    assert psnr(guess.x[:, order].double(), x[None].double().to(dtype)).min() > least
    assert torch.equal(guess.y[0][order], y)


def test_a_spoiled_update_is_not_proved():
    _, _, seen, task = scene(4)
    for value in seen.update.values():
        value += 0.05 * value.abs().mean() * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    assert attack("spear(draws=500)", [seen], task).loss > 0


def test_a_little_noise_is_bridged_by_a_tolerance():
    x, _, seen, task = scene(4)
    for value in seen.update.values():
        value += 1e-4 * value.abs().mean() * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    guess = attack("spear(tolerance=0.001)", [seen], task)
    assert guess.loss == 0
    assert psnr(guess.x[:, match(guess.x[0], x)], x[None]).min() > 40


def test_an_example_that_occurs_twice_is_found_once_and_counted_so():
    x, y, seen, task = scene(4)
    x[3], y[3] = x[2], y[2]
    seen.update.update(local_update(task.model, seen.params, x, y, seen.rule))
    guess = attack("spear", [seen], task)
    assert guess.loss == pytest.approx(0.25)
    assert (guess.x[0, 3] == 0.5).all()


def test_features_are_exact_where_convolutions_lie_in_front():
    x, y, seen, task = scene(4, "lenet5")
    layer = first_gated(task, seen.params, seen.update)
    assert layer == "net.fc1"
    assert pixels_into(task, seen.params, layer) is None
    parts = [seen.params, seen.update]
    found = decompose(
        Layer(*(part[f"{layer}.{kind}"] for part in parts for kind in ("weight", "bias"))),
        4,
        torch.Generator().manual_seed(0),
        draws=2000,
    )
    (true,) = inputs_of(task.model, seen.params, x, [layer])
    assert found.gamma == 1
    assert torch.cdist(found.inputs.float(), true).min(0).values.max() < 1e-4 * true.norm(dim=1).max()
    test = data.load("mnist").test
    public = Public(*test.at(slice(0, 600)))
    ready = adversary.build("spear(public=True, iterations=30)")
    guess = ready.taught(ready.learn(task, seen, public, torch.Generator()))([seen], task, 0)
    order = match(guess.x[0], x)
    assert torch.equal(guess.y[0][order], y)
    mean = public.x.mean(0).expand_as(x)
    assert psnr(guess.x[:, order], x[None]).mean() > psnr(mean[None], x[None]).mean() + 3


def test_the_layers_it_needs_are_looked_for():
    with pytest.raises(AttackError, match="no linear layer with a ReLU behind it"):
        attack("spear", *seen_of(*digits(1, 2), model_text="mlp(activation='sigmoid')"))
    with pytest.raises(AttackError, match="up to 32 examples, not of 40: use cocktail_party"):
        attack("spear", *seen_of(*digits(1, 40), model_text="mlp"))
    with pytest.raises(AttackError, match="no linear layer with a bias"):
        first_linear(nn.Conv2d(1, 1, 1), {})


def test_the_cost_is_that_of_the_search_for_images():
    rule = LocalRule(batch_size=4)
    assert adversary.build("spear(iterations=7, seeds=3)").cost(4, rule) == 7 * 3 * 4
    ready = adversary.build("spear(iterations=7, seeds=3, public=True)")
    assert ready.cost(4, rule) == 7 * 4  # from one start
    assert ready.trained
    assert not adversary.build("spear").trained
    peeling = adversary.build("peeling(iterations=10, seeds=2)")
    assert peeling.cost(1, rule) == 5010
    assert peeling.shortened(3) == adversary.build("peeling(iterations=3, seeds=2)")
