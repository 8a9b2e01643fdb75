"""Models: shapes, the papers' variations, and that building one touches nothing else."""

import pytest
import torch
from torch import nn

from fl_app import models
from fl_app.core.spec import SpecError

IMAGE_MODELS = sorted(set(models.MODELS) - set(models.TEXT))


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)], ids=str)
def test_every_model_maps_images_to_classes(name, shape):
    model = models.build(name, shape, 7)
    assert model(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("text", "shape", "parameters"),
    [
        # DLG's LeNet: 3 * 12 * 25 + 12, twice 12 * 12 * 25 + 12, 768 * 10 + 10
        ("lenet", (3, 32, 32), 912 + 2 * 3612 + 7690),
        ("lenet5", (1, 28, 28), 61706),  # the number in every textbook
        ("resnet18", (3, 32, 32), 11173962),  # the usual CIFAR ResNet-18
        ("resnet34", (3, 32, 32), 21282122),
        ("resnet18", (3, 224, 224), 11181642),
    ],
)
def test_parameter_counts(text, shape, parameters):
    assert sum(value.numel() for value in models.build(text, shape, 10).parameters()) == parameters


def test_lenet_has_the_uniform_init_of_dlg():
    values = torch.cat([value.flatten() for value in models.build("lenet", (3, 32, 32), 10).parameters()])
    assert values.abs().max() <= 0.5
    assert abs(values.var().item() - 1 / 12) < 0.002


@pytest.mark.parametrize("name", ["resnet18", "convnet"])
def test_activation_and_norm_are_replaced(name):
    kinds = {type(m) for m in models.build(f"{name}(activation='sigmoid', norm='group')", (3, 32, 32), 10).modules()}
    assert nn.Sigmoid in kinds
    assert nn.GroupNorm in kinds
    assert not kinds & {nn.ReLU, nn.BatchNorm2d}


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_models_have_no_state_beside_parameters(name):
    """Buffers would have to be sent, and so would leak; in-place ReLUs would break double backward."""
    model = models.build(name, (3, 32, 32), 10)
    assert not list(model.buffers())
    assert not any(getattr(module, "inplace", False) for module in model.modules())


def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = (models.parameters_of(models.build("lenet5", (1, 28, 28), 10, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_normalisation_is_a_layer():
    bare = models.build("lenet5", (3, 32, 32), 10)
    layered = models.build("lenet5", (3, 32, 32), 10, normalize=([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    x = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    assert torch.equal(layered(x), bare((x - mean) / std))


@pytest.mark.parametrize(
    ("text", "shape"),
    [("lenet5", (1, 8, 8)), ("convnet", (3, 8, 8)), ("vit(patch=5)", (3, 32, 32)), ("vit(heads=7)", (3, 32, 32))],
)
def test_impossible_sizes_are_refused(text, shape):
    with pytest.raises(SpecError, match=r"needs images|multiple"):
        models.build(text, shape, 10)
