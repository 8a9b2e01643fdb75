"""What attackers tell of a linear layer, and images with given features: against autograd and by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adversary import AttackError, Public
from adversary.exact.features import _any_features, _before, earliest, inputs_of
from adversary.exact.images import ImageSearch, learned_map, rebuilt
from adversary.exact.layers import Flow, Pixels, classes_of, first_gated, first_linear, flow, padded, pixels_into
from adversary.exact.steps import _behind, _Head, _least, _shares, _starts, single
from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Task
from fl_app.core.space import Images

SHAPE, CLASSES = (1, 6, 6), 4


def scene(text="mlp(hidden=[9, 7])", examples=5, **more):
    model = models.build(text, SHAPE, CLASSES, seed=1, **more)
    x = torch.rand(examples, *SHAPE, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(examples) % CLASSES, models.parameters_of(model), Task(model, Images(SHAPE), CLASSES)


def test_what_enters_and_leaves_a_layer_and_the_gradient_by_it():
    x, y, params, task = scene()
    found = flow(task.model, params, "fc2", x, y)
    inputs = F.linear(x.flatten(1), params["fc1.weight"], params["fc1.bias"]).relu()
    outputs = F.linear(inputs, params["fc2.weight"], params["fc2.bias"]).requires_grad_()
    logits = F.linear(outputs.relu(), params["head.weight"], params["head.bias"])
    (slopes,) = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), outputs)
    for mine, theirs in zip(found, (inputs, outputs.detach(), slopes), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert not mine.requires_grad
    given = flow(task.model, params, "fc2", x, y, inputs + 1)
    torch.testing.assert_close(given.inputs, inputs + 1)
    torch.testing.assert_close(given.outputs, outputs + params["fc2.weight"].sum(1))
    layer = task.model.get_submodule("fc2")
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks


@pytest.mark.parametrize(
    ("outputs", "slopes", "gated"),
    [
        ([-1.0, 2.0, 3.0], [0.0, 0.1, 0.2], True),
        ([-1.0, 2.0, 3.0], [0.3, 0.1, 0.2], False),  # a negative output has a gradient
        ([-1.0, 2.0, 3.0], [0.0, 0.0, 0.2], False),  # a half of the positive ones has none
        ([1.0, 2.0, 3.0], [0.3, 0.1, 0.2], False),  # nothing was negative, so nobody knows
        ([-1.0, 0.0, 3.0], [0.0, 0.1, 0.2], True),
    ],
)
def test_a_relu_is_known_by_the_gradients_of_negative_outputs(outputs, slopes, gated):
    assert Flow(torch.empty(0), torch.tensor(outputs), torch.tensor(slopes)).gated is gated


def test_layers_are_found_in_the_order_of_the_model():
    _, _, params, task = scene("mlp(hidden=[9, 7])")
    assert first_linear(task.model, params) == first_gated(task, params, params) == "fc1"
    later = {name: value for name, value in params.items() if name != "fc1.bias"}
    assert first_linear(task.model, later) == "fc2"
    assert first_linear(task.model, {name: value for name, value in later.items() if name != "fc2.weight"}) == "head"
    _, _, params, task = scene("mlp(hidden=[9], activation='sigmoid')")
    with pytest.raises(AttackError, match="no linear layer with a ReLU"):
        first_gated(task, params, params)


def test_a_layer_reads_the_image_through_what_is_done_to_each_pixel():
    x, y, params, task = scene(normalize=([0.3], [0.5]))
    pixels = pixels_into(task, params, "net.fc1")
    torch.testing.assert_close(pixels.shift, torch.full((36,), -0.6).double())
    torch.testing.assert_close(pixels.scale, torch.full((36,), 2.0).double())
    entered = flow(task.model, params, "net.fc1", x, y).inputs
    torch.testing.assert_close(pixels.image(entered.double(), SHAPE), x.double())
    assert pixels_into(task, params, "net.fc2") is None
    assert pixels_into(Task(nn.Sequential(nn.Sigmoid(), task.model), task.space, CLASSES), _inside(params), "1.net.fc1") is None
    still = nn.Sequential(nn.Threshold(2.0, 0.5), task.model)  # whatever the image is, it reads grey
    assert pixels_into(Task(still, task.space, CLASSES), _inside(params), "1.net.fc1") is None


def _inside(params):
    return {f"1.{name}": value for name, value in params.items()}


def test_images_follow_from_inputs_pixel_by_pixel():
    pixels = Pixels(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.5]))
    assert pixels.image(torch.tensor([[3.0, 3.0], [1.0, 2.5]]), (2, 1, 1)).tolist() == [[[[1.0]], [[2.0]]], [[[0.0]], [[1.0]]]]


def test_examples_that_were_not_found_are_grey():
    assert padded(torch.tensor([[1.0], [0.2]]), 3).tolist() == [[1.0], [pytest.approx(0.2)], [0.5]]


@pytest.mark.parametrize("text", ["mlp(hidden=[9, 7])", "lenet5"])
def test_the_class_of_an_example_follows_from_its_gradient_by_a_layer(text):
    shape = (1, 16, 16)
    model = models.build(text, shape, CLASSES, seed=1)
    x, y = torch.rand(6, *shape, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 0, 2, 1, 1, 3])
    params, task = models.parameters_of(model), Task(model, Images(shape), CLASSES)
    layer = first_linear(model, params)
    found = flow(model, params, layer, x, y)
    assert classes_of(task, params, layer, found.inputs, 0.01 * found.slopes).tolist() == y.tolist()


def test_a_gradient_is_one_step():
    x, y, params, task = scene(examples=1)
    taken = single(local_update(task.model, params, x, y, LocalRule(batch_size=1)), "fc2", params)
    found = flow(task.model, params, "fc2", x, y)
    torch.testing.assert_close(taken.entered, found.inputs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(taken.slope, found.slopes[0] @ params["fc2.weight"])
    assert taken.share == 1
    nothing = single({"fc2.weight": torch.zeros(7, 9), "fc2.bias": torch.zeros(7)}, "fc2", params)
    assert not nothing.entered.any()


def test_the_network_behind_a_layer_hears_nothing_of_the_image():
    x, y, params, task = scene()
    head = _Head(task, "fc2")
    own = {f"model.{name}": value.double() for name, value in params.items()}
    entered = flow(task.model, params, "fc2", x, y).inputs.double()
    logits = torch.func.functional_call(head, own, (entered,))
    torch.testing.assert_close(logits, torch.func.functional_call(task.model, params, (x,)).double(), rtol=1e-4, atol=1e-5)
    assert _behind(head, own, entered, y) == [f"model.{name}" for name in params if not name.startswith("fc1")]
    assert not task.model.get_submodule("fc2")._forward_pre_hooks


def test_steps_share_the_update_by_momentum():
    """Of three steps with momentum 1/2 the first counts 1 + 1/2 + 1/4, the second 1 + 1/2, the last 1."""
    rule = LocalRule(kind="delta", batch_size=1, steps=3, lr=0.1, examples=1, momentum=0.5)
    assert _shares(rule) == pytest.approx([1.75 / 4.25, 1.5 / 4.25, 1 / 4.25])
    assert _shares(LocalRule(batch_size=1)) == [1]


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_a_search_starts_at_the_ends_of_what_is_nowhere_negative(scale):
    rows = scale * torch.tensor([[1.0, 1.0, 1.0, 1e-6], [-1.0, 0.0, 2.0, 1e-5]], dtype=torch.float64)  # the last is rounding
    mean = torch.tensor([2.0, 0.0], dtype=torch.float64)
    # Across is (0, 2): inputs 2 + s (-2, 0, 4) are nowhere negative for s from -0.5 to 1.
    starts = torch.stack(_starts(mean, rows, 2)).view(-1, 2, 2)
    assert len(starts) == 18
    ends = starts[:, :, 1] / 2
    pairs = {(round(first, 6), round(last, 6)) for first, last in ends.tolist()}
    inward = (1.0, 0.8, 0.6)
    assert pairs == {pair for low in inward for high in inward for pair in ((-0.5 * low, high), (high, -0.5 * low))}
    assert (starts[:, :, 0] == 2).all()
    three = torch.stack(_starts(mean, rows, 3)).view(-1, 3, 2)
    torch.testing.assert_close(three[:, 1], (three[:, 0] + three[:, 2]) / 2)
    # Where no entry bounds the mixtures, all steps start at the mean.
    (start,) = _starts(mean, torch.tensor([[1.0, 1.0], [1.0, 2.0]], dtype=torch.float64), 2)
    assert start.tolist() == [2, 0, 2, 0]


def test_the_least_remainder_of_a_curved_problem_is_found():
    def rosenbrock(z):
        return torch.stack([1 - z[0], 10 * (z[1] - z[0] ** 2)])

    found, distance = _least(rosenbrock, torch.tensor([-1.2, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found, torch.ones(2, dtype=torch.float64), rtol=1e-3, atol=1e-3)
    assert distance < 1e-3

    def apart(z):  # no point has both at zero, and the third coordinate changes nothing
        return torch.stack([z[0] - 1, z[0] + 1, 2 * z[1]])

    found, distance = _least(apart, torch.tensor([5.0, 3.0, 7.0], dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 7.0], dtype=torch.float64), rtol=0, atol=1e-2)
    assert distance == pytest.approx(2**0.5, rel=1e-3)
    start = torch.tensor([0.0], dtype=torch.float64)
    assert _least(lambda z: z.abs().sqrt() + 1, start)[0] is start  # its slope there is not finite


def test_one_step_of_a_search_solves_a_linear_problem(monkeypatch):
    monkeypatch.setattr("adversary.exact.steps.ITERATIONS", 1)
    matrix = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    found, distance = _least(lambda z: matrix @ z - matrix.sum(1), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(found, torch.ones(2, dtype=torch.float64), rtol=0, atol=0.01)
    assert distance == pytest.approx((matrix @ found - matrix.sum(1)).norm().item())


def test_features_are_expected_around_the_mean_of_those_behind_them():
    law = _any_features(torch.Size((2, 3)), torch.tensor([1.0, 3.0]))
    assert law.mean.tolist() == [2.0] * 6
    torch.testing.assert_close(law.basis, 40**0.5 * torch.eye(6))  # eight times the mean square, which is 5


@pytest.mark.parametrize("pool", [1, 2, 3])
def test_the_convolution_before_a_layer_is_known_by_its_pooling(pool, monkeypatch):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(pool)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * (6 // pool) ** 2, CLASSES))
    params, task = models.parameters_of(model), Task(model, Images(SHAPE), CLASSES)
    name, block = _before("6", params, task)
    assert (name, block.size, block.shape) == ("2", pool, (2, 6, 6))
    assert earliest(params, params, task) == "2"
    x = torch.rand(3, *SHAPE)
    before, after = inputs_of(model, params, x, ["2", "6"])
    torch.testing.assert_close(block.pooled(before).flatten(1), after)
    assert not model[2]._forward_pre_hooks
    monkeypatch.setattr("adversary.exact.features.MOST_UNKNOWNS", 71)  # it has 72
    with pytest.raises(AttackError, match="no convolution, ReLU and max pooling"):
        _before("6", params, task)


def test_an_image_search_takes_signed_steps_down_its_loss():
    """Relative squared distance of the features, and the two variations, each with its weight."""
    x, _, params, task = scene("lenet", examples=2)
    layer = first_linear(task.model, params)
    (wanted,) = inputs_of(task.model, params, x.flip(0), [layer])
    search = ImageSearch(iterations=1, lr=20.0, tv=0.3, colour=0.0)  # the last iteration: a thousandth of that
    moved = search.run(wanted.flatten(1).detach(), x, task, params, layer)
    leaf = x.clone().requires_grad_()
    (ours,) = inputs_of(task.model, params, leaf, [layer])
    loss = ((ours - wanted).flatten(1).square().sum(1) / wanted.flatten(1).square().sum(1)).sum()
    across, down = leaf.diff(dim=3).abs().mean((1, 2, 3)), leaf.diff(dim=2).abs().mean((1, 2, 3))
    (slope,) = torch.autograd.grad(loss + 0.3 * (across + down).sum(), leaf)
    torch.testing.assert_close(moved, (x - 0.02 * slope.sign()).clamp(0, 1))


def test_features_lead_to_images_by_a_map_of_public_ones():
    x, _, params, task = scene("lenet", examples=300)
    layer = first_linear(task.model, params)
    learned = learned_map(task, params, layer, Public(x, torch.zeros(300)))
    features = inputs_of(task.model, params, x, [layer])[0].flatten(1).detach()
    torch.testing.assert_close(learned["scale"], features.std(0).clamp_min(1e-6))
    still = ImageSearch(iterations=1, lr=1e-9)
    images = rebuilt(features[:3], layer, task, params, learned, still, torch.empty(0))
    mean = x.mean(0).expand_as(images)
    assert (images - x[:3]).square().mean() < 0.5 * (mean - x[:3]).square().mean()
    by_hand = (features[:3] / learned["scale"] - learned["middle"]) @ learned["map"] + learned["mean"]
    torch.testing.assert_close(images, by_hand.view(3, *SHAPE).clamp(0, 1), rtol=0, atol=1e-6)


def test_a_map_from_places_of_a_convolution_is_flat():
    x, _, params, task = scene("lenet", examples=30)
    learned = learned_map(task, params, "conv2", Public(x, torch.zeros(30)))
    (maps,) = inputs_of(task.model, params, x, ["conv2"])
    assert maps.ndim == 4
    assert learned["scale"].shape == learned["middle"].shape == maps[0].flatten().shape


def test_features_that_are_always_zero_say_nothing_of_images():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, CLASSES))
    params, task = models.parameters_of(model), Task(model, Images(SHAPE), CLASSES)
    params["0.bias"][1] = -100.0
    x = torch.rand(50, *SHAPE)
    learned = learned_map(task, params, "3", Public(x, torch.zeros(50)))
    assert all(value.isfinite().all() for value in learned.values())
    assert not learned["map"][16:].any()


def test_lenet5_is_small_enough_to_be_taken_apart():
    model = models.build("lenet5", (1, 28, 28), 10, seed=0)
    params = models.parameters_of(model)
    assert _before("fc1", params, Task(model, Images((1, 28, 28)), 10))[0] == "conv2"


def test_images_from_noise_are_the_mean_over_seeds():
    x, _, params, task = scene("lenet", examples=2)
    layer = first_linear(task.model, params)
    features = inputs_of(task.model, params, x, [layer])[0].flatten(1).detach()
    noise = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(3))
    images = rebuilt(features, layer, task, params, {}, ImageSearch(iterations=1, lr=1e-9), noise)
    torch.testing.assert_close(images, torch.stack([noise[0::2].mean(0), noise[1::2].mean(0)]), rtol=0, atol=1e-6)
