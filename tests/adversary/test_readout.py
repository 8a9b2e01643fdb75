"""What linear layers and patch embeddings give away in closed form, with a certificate that tells exact from mixed."""

import pytest
import torch

from adversary import AttackError
from adversary.exact.features import inputs_of
from adversary.exact.readout import features_before_last, read_out, softmax_inputs
from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from fl_app.scoring.matching import match
from helpers.attacks import attack, digits, psnr, seen_of


@pytest.mark.parametrize("model", ["mlp", "mlp(activation='sigmoid')", "linear"])
def test_one_image_is_exact_and_certified(model):
    x, y = digits(2, 1)
    guess = attack("readout", *seen_of(x, y, model_text=model))
    assert psnr(guess.x, x).min() > 100
    assert (guess.loss == 0).all()
    assert torch.equal(guess.y, y)


def test_softmax_regression_gives_a_batch_of_distinct_classes():
    x, y = digits(1, 60)
    first = [int((y[0] == label).nonzero()[0]) for label in (0, 1, 2, 4, 7)]
    x, y = x[:, first], y[:, first]
    guess = attack("readout", *seen_of(x, y, model_text="linear"))
    assert guess.loss == 0
    assert psnr(guess.x[:, match(guess.x[0], x[0])], x).min() > 60


def test_a_neuron_that_one_example_switches_on_shows_it():
    rng = torch.Generator().manual_seed(0)
    inputs, slopes = torch.rand(3, 20, generator=rng), torch.zeros(8, 3)
    slopes[0, 0], slopes[1, 0], slopes[2, 1], slopes[3:] = 0.5, -0.2, 0.3, torch.rand(5, 3, generator=rng)
    read = read_out(slopes @ inputs, slopes.sum(1), 3)
    assert torch.allclose(read.inputs[0].float(), inputs[0], atol=1e-5)
    assert read.certified.tolist() == [True, False, False]  # two neurons agree on the first alone


def test_a_black_example_is_one_too():
    rng = torch.Generator().manual_seed(0)
    inputs = torch.stack([torch.zeros(20), torch.rand(20, generator=rng)])
    slopes = torch.tensor([[0.5, 0.0], [0.3, 0.0], [0.0, 0.6], [0.0, 0.2], [0.0, -0.2]])
    read = read_out(slopes @ inputs, slopes.sum(1), 2)
    assert read.certified.all()
    torch.testing.assert_close(read.inputs.float(), inputs.flip(0))  # three neurons before two


def test_a_neuron_that_learned_nearly_nothing_is_not_read():
    inputs = torch.rand(2, 20, generator=torch.Generator().manual_seed(0))
    slopes = torch.tensor([[0.5, 0.0], [0.0, 0.3], [0.0, 0.6], [0.2, 0.0], [1e-6, 0.0], [1e-6, 0.0], [1e-6, 0.0]])
    weight = slopes @ inputs
    weight[4:] = 3e-6  # rounding, on which several agree
    read = read_out(weight, slopes.sum(1), 3)
    assert len(read.inputs) == 2
    assert torch.cdist(inputs, read.inputs.float()).amin(1).max() < 1e-3


def test_half_precision_is_told_from_a_mixture():
    """A gradient of one example in bfloat16 is of rank one up to its rounding, one of two is not."""
    inputs = torch.rand(2, 40, generator=torch.Generator().manual_seed(0))
    slopes = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
    one, both = ((slopes[:, :number] @ inputs[:number], slopes[:, :number].sum(1)) for number in (1, 2))
    assert read_out(*(value.bfloat16() for value in one), 1).certified.all()
    assert not read_out(*(value.bfloat16() for value in both), 1).certified.any()
    weights, biases, y = torch.randn(30, 40), torch.zeros(30), torch.tensor([3, 5])
    wrong = softmax_inputs(*(value.bfloat16() for value in both), weights, biases, y)
    assert not wrong.certified.any()  # no inputs of these classes have that gradient


def test_two_examples_that_share_no_neuron_are_both_read():
    inputs = torch.rand(2, 20, generator=torch.Generator().manual_seed(0))
    slopes = torch.tensor([[0.5, 0.0], [-0.2, 0.0], [0.0, 0.3], [0.0, 1.0], [0.0, 0.7]])
    read = read_out(slopes @ inputs, slopes.sum(1), 2)
    assert torch.allclose(read.inputs.float(), inputs.flip(0), atol=1e-5)  # three neurons agree on the second
    assert read.certified.all()
    assert len(read_out(slopes @ inputs, slopes.sum(1), 1).inputs) == 1
    assert read_out(slopes @ inputs, slopes.sum(1), 1).certified.tolist() == [False]
    assert read_out(slopes[:2] @ inputs, slopes[:2].sum(1), 2).certified.tolist() == [True]  # only the first is there


def test_features_before_the_last_layer_of_any_model():
    x, y = digits(1, 1)
    seen, task = seen_of(x, y, model_text="lenet5")
    (true,) = inputs_of(task.model, seen[0].params, x[0], ["fc3"])
    read = features_before_last(seen[0].update, 10, 1)
    assert torch.allclose(read.inputs.float(), true, atol=1e-4)
    assert read.certified.all()
    with pytest.raises(AttackError, match="the last layer has no bias"):
        features_before_last({"fc3.weight": seen[0].update["fc3.weight"]}, 10, 1)


def patched(examples, normalize=None):
    x, y = digits(1, examples)
    model = models.build("vit(dim=96, depth=2)", (1, 28, 28), 10, seed=1, normalize=normalize)
    params, rule = models.parameters_of(model), LocalRule(batch_size=examples)
    update = local_update(model, params, x[0], y[0], rule)
    seen = Observation(params=params, update=update, rule=rule, num_examples=examples, server_round=1)
    return x, y, [seen], Task(model, Images((1, 28, 28)), 10)


@pytest.mark.parametrize("normalize", [None, ([0.13], [0.3])])
def test_positions_give_the_patches_of_one_image(normalize):
    x, y, seen, task = patched(1, normalize)
    guess = attack("patches", seen, task)
    assert psnr(guess.x, x).min() > 60
    assert guess.loss < 1e-4
    assert torch.equal(guess.y, y)


def test_the_residual_tells_a_mixture_from_an_image():
    _, _, seen, task = patched(2)
    assert attack("patches", seen, task).loss > 1e-2


def test_what_cannot_be_read_is_refused():
    with pytest.raises(AttackError, match="reads features and no image"):
        attack("readout", *seen_of(*digits(1, 1), model_text="lenet5"))
    with pytest.raises(AttackError, match="no patches with learned positions"):
        attack("patches", *seen_of(*digits(1, 1), model_text="lenet5"))
    _, _, seen, task = patched(1)
    del seen[0].update["position"]
    with pytest.raises(AttackError, match="or their gradient was not sent"):
        attack("patches", seen, task)


def test_a_batch_behind_sigmoids_is_unmixed_and_scaled():
    x, y = digits(1, 4, start=40)
    guess = attack("cocktail_party(iterations=300)", *seen_of(x, y, model_text="mlp(activation='sigmoid')"))
    order = match(guess.x[0], x[0])
    mean = x.mean(1, keepdim=True).expand_as(x)
    assert psnr(guess.x[:, order], x).mean() > psnr(mean, x).mean() + 2
    assert (guess.loss > 0).all()  # no proof


def test_more_patches_than_dimensions_are_refused():
    x, y = digits(1, 1)
    with pytest.raises(AttackError, match="49 patches are more than the 16 dimensions of a token"):
        attack("patches", *seen_of(x, y, model_text="vit(dim=16, depth=1, heads=2, patch=4)"))
