"""ResNet-50: the published numbers by our names, and batch norm that is frozen."""

import json

import pytest
import torch
from torch import nn

from fl_app import models
from fl_app.core.places import cache_dir
from fl_app.core.spec import SpecError
from fl_app.models import imagenet


def test_frozen_batch_norm_is_torchs_in_evaluation():
    ours, theirs = imagenet.Frozen(5), nn.BatchNorm2d(5, eps=imagenet.EPS).eval()
    rng = torch.Generator().manual_seed(0)
    for one, other in (("weight", "weight"), ("bias", "bias"), ("mean", "running_mean"), ("variance", "running_var")):
        value = torch.rand(5, generator=rng) + 0.5
        with torch.no_grad():
            getattr(ours, one).copy_(value)
            getattr(theirs, other).copy_(value)
    x = torch.rand(2, 5, 4, 4, generator=rng)
    torch.testing.assert_close(ours(x), theirs(x))
    assert not ours.state_dict().keys() - {"weight", "bias"}


def test_with_random_weights_it_is_the_usual_one():
    with torch.device("meta"):
        net = imagenet.resnet50((3, 224, 224), 1000)
    assert sum(value.numel() for value in net.parameters()) == 25557032  # torchvision's documentation


def published():
    """Numbers of the published shapes, each tensor its own, from those of our network."""
    with torch.device("meta"):
        net = imagenet.resnet50((3, 224, 224), 1000, weights="imagenet")
    shapes = {name: value.shape for name, value in [*net.named_parameters(), *net.named_buffers()]}
    found = {"fc1000/kernel": torch.rand(2048, 1000), "fc1000/bias": torch.rand(1000)}
    for ours, theirs in imagenet._layers().items():
        conv, norm = (theirs, f"bn_{theirs}") if ours == "conv1" else (f"res{theirs}", f"bn{theirs}")
        out, into, *size = shapes[f"{ours}.weight"]
        found[f"{conv}/kernel"] = torch.rand(*size, into, out)
        found[f"{conv}/bias"] = torch.rand(out)
        found |= {f"{norm}/{part}": torch.rand(out) for part in imagenet.PARTS}
    return shapes, found


def test_every_published_number_has_a_place_here():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shapes, numbers = published()
    found = imagenet.renamed(numbers)
    assert {name: value.shape for name, value in found.items()} == shapes
    torch.testing.assert_close(found["bn1.mean"], numbers["bn_conv1/moving_mean"] - numbers["conv1/bias"])
    torch.testing.assert_close(
        found["layer2.0.bn3.mean"], numbers["bn3a_branch2c/moving_mean"] - numbers["res3a_branch2c/bias"]
    )
    # A pixel of blue, which comes first in the published network, reaches it as it is, times 255.
    torch.testing.assert_close(found["conv1.weight"][5, 2, 3, 4] / 0.225 / 255, numbers["conv1/kernel"][3, 4, 0, 5])


def test_other_numbers_are_refused(tmp_path):
    manifest = [{"paths": ["a/shard1"], "weights": [{"name": "x", "shape": [2], "dtype": "float32"}]}]
    (tmp_path / "model.json").write_text(json.dumps({"weightsManifest": manifest}))
    (tmp_path / "shard1").write_bytes(bytes(8))
    with pytest.raises(ValueError, match="its numbers have the checksum"):
        imagenet.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "shape", "words"),
    [
        ("resnet50(weights='imagenet', norm='group')", (3, 224, 224), "norm='frozen' or 'batch'"),
        ("resnet50(norm='frozen')", (3, 224, 224), "any but 'frozen'"),
        ("resnet50(weights='imagenet')", (1, 224, 224), "colour images"),
        ("resnet50(weights='imagenet')", (3, 32, 32), "at least 128"),
        ("resnet50(weights='imagenet', activation='sigmoid')", (3, 224, 224), "ReLUs"),
    ],
)
def test_what_does_not_fit_is_refused(text, shape, words):
    with pytest.raises(SpecError, match=words):
        models.build(text, shape, 10)


@pytest.mark.skipif(not (cache_dir() / "resnet50-imagenet.safetensors").exists(), reason="its weights are not in the cache")
def test_a_cat_is_an_egyptian_cat():
    from torch.nn import functional as F

    from fl_app.data.squares import photo

    net = models.build("resnet50(weights='imagenet')", (3, 224, 224), 1000, normalize=((0.5,) * 3, (0.5,) * 3))
    x = photo("chelsea")[None, :, :, 75:375].float() / 255
    with torch.no_grad():
        assert net(F.interpolate(x, size=(224, 224), mode="area")).argmax().item() == 285
