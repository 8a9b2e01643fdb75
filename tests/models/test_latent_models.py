"""Where latent perturbation cuts a model, the paper's network and its decoder."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from client_defenses import Memory
from client_defenses.latent_perturbation import LatentPerturbation
from client_defenses.tools.cut import cut_layer, passed
from client_defenses.tools.decoder import Decoder
from fl_app import models
from fl_app.core.spec import SpecError
from helpers.engines import same
from helpers.latent import step_of


@pytest.fixture
def step(rng):
    return step_of("lenet", rng)


@pytest.mark.parametrize(("shape", "latent", "last"), [((3, 32, 32), 10, 4), ((3, 28, 28), 9, 2), ((1, 28, 28), 9, 2)], ids=str)
def test_table_one(shape, latent, last, rng):
    model = models.build("latent_net", shape, 10)
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [64, 128, 128] + [256] * 6
    assert all(layer.kernel_size == (3, 3) and layer.stride == (1, 1) for layer in convolutions)
    assert not any(isinstance(layer, nn.modules.batchnorm._NormBase) for layer in model.modules())
    assert (model.predictor.fc.in_features, model.predictor.fc.out_features) == (2304, 10)
    widths = [shape[0], 64, 128, 128] + [256] * 6
    expected = sum(9 * a * b + b for a, b in pairwise(widths)) + 2304 * 10 + 10
    assert sum(value.numel() for value in model.parameters()) == expected
    kinds = [type(layer).__name__ for layer in model.encoder]
    assert kinds == ["Conv2d", "ReLU"] * 6 + ["MaxPool2d"] + ["Conv2d", "ReLU"] * 3
    x = torch.rand(1, *shape, generator=rng)
    assert model.encoder(x).shape == (1, 256, latent, latent)
    assert model(x).shape == (1, 10)
    decoder = Decoder((256, latent, latent), shape)
    layers = [layer for layer in decoder.modules() if isinstance(layer, nn.ConvTranspose2d)]
    assert [(one.out_channels, one.kernel_size[0], one.stride[0]) for one in layers] == [
        (256, 3, 1),
        (256, 4, 1),
        (shape[0], last, 2),
    ]
    assert decoder(model.encoder(x)).shape == (1, *shape)
    assert cut_layer(model, models.parameters_of(model), x) == "encoder"


@pytest.mark.parametrize(
    ("latent", "kernels", "stride"),
    [
        ((2, 3, 3), [3, 4, 5], 1),
        ((2, 7, 7), [3, 4, 1], 1),
        ((2, 8, 8), [3, 3, 5], 1),
        ((2, 14, 14), [3, 3, 1], 1),
        ((2, 1, 1), [3, 4, 2], 2),
    ],
    ids=str,
)
def test_the_last_layer_of_a_decoder_makes_the_size_right(latent, kernels, stride):
    """Two layers let it grow by 5, unless it would become too large: then they keep its size."""
    layers = [layer for layer in Decoder(latent, (1, 12, 12)).modules() if isinstance(layer, nn.ConvTranspose2d)]
    assert [layer.kernel_size[0] for layer in layers] == kernels
    assert layers[-1].stride[0] == stride
    assert [(layer.out_channels, layer.bias is None) for layer in layers] == [(32, True), (32, True), (1, False)]


@pytest.mark.parametrize(
    "output", [lambda x: (x,), lambda x: x[:, 0], lambda x: x[:1]], ids=["no tensor", "no rows", "one row"]
)
def test_a_layer_without_a_row_for_each_example_can_take_no_noise(output):
    class Inner(nn.Module):
        def forward(self, x):
            return output(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.fc = Inner(), nn.Linear(4, 3)

        def forward(self, x):
            self.inner(x)
            return self.fc(x)

    model = Outer()
    with pytest.raises(SpecError, match="'inner' gives no tensor with a row for each example"):
        passed(model, models.parameters_of(model), torch.rand(2, 4), "inner", lambda z: z)


@pytest.mark.parametrize("latent", [(3, 1, 1), (4, 2, 5), (2, 9, 10), (2, 12, 12), (2, 20, 15), (7,), (3, 4)], ids=str)
def test_a_decoder_fits_any_latent(latent, rng):
    assert Decoder(latent, (2, 12, 13))(torch.rand(2, *latent, generator=rng)).shape == (2, 2, 12, 13)


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("latent_net(width=2)", "encoder"),
        ("lenet", "act3"),
        ("lenet5", "act2"),
        ("resnet10", "layer4"),
        ("convnet(width=2)", "act8"),
        ("vit(dim=6, depth=2, patch=6)", "norm"),
    ],
)
def test_where_our_models_are_cut(text, layer, rng):
    step = step_of(text, rng, (1, 18, 18), 3)
    assert cut_layer(step.model, step.params, step.x) == f"net.{layer}"
    auto = LatentPerturbation().protect(step, Memory.fresh(0))
    assert all(value.isfinite().all() for value in auto.values())
    assert same(auto, LatentPerturbation(layer=layer).protect(step, Memory.fresh(0)))
    assert not any(module._forward_hooks for module in step.model.modules())


def test_layers_that_cannot_be_cut_are_refused(step, rng):
    with pytest.raises(SpecError, match=r"no layer 'act9'; .*valid: auto, net, net.act1, net.act2, net.act3, net.conv1"):
        LatentPerturbation(layer="act9").protect(step, Memory.fresh(0))
    with pytest.raises(SpecError, match="no hidden layer"):
        LatentPerturbation().protect(step_of("linear", rng), Memory.fresh(0))
    with pytest.raises(SpecError, match="runs 2 times"):
        LatentPerturbation(layer="layer1.0.relu").protect(step_of("resnet10", rng), Memory.fresh(0))
    with pytest.raises(SpecError, match="integers"):
        LatentPerturbation().protect(step._replace(x=torch.ones(2, 1, 12, 12, dtype=torch.int64)), Memory.fresh(0))
    with pytest.raises(SpecError, match="at least 9 x 9"):
        models.build("latent_net", (3, 8, 32), 10)
    vectors = nn.Sequential(nn.Flatten(), nn.Linear(144, 7), nn.Tanh(), nn.Linear(7, 5))
    some = step._replace(params=models.parameters_of(vectors), model=vectors)
    assert cut_layer(vectors, some.params, some.x) == "2"
    act = nn.Sigmoid()
    shared = nn.Sequential(nn.Conv2d(1, 2, 3), act, nn.Conv2d(2, 2, 3), act, nn.Flatten(), nn.Linear(128, 5))
    assert cut_layer(shared, models.parameters_of(shared), step.x) == "2"  # what runs twice is no latent
    assert all(value.isfinite().all() for value in LatentPerturbation().protect(some, Memory.fresh(0)).values())
