"""SVHN (Netzer et al. 2011), cropped digits: MATLAB files."""

from pathlib import Path

import numpy as np
import torch

from fl_app.core.sources import Official
from fl_app.data.base import Arrays, Recipe
from fl_app.data.files import find

_SITE = "http://ufldl.stanford.edu/housenumbers"


def read(folder: Path) -> Arrays:
    """`train_32x32.mat` and `test_32x32.mat`: X is (height, width, channels, n), y has 10 for the digit 0."""
    # torchvision's SVHN reads them by loadmat too, and only in the two files as they are published.
    from scipy.io import loadmat  # takes a second to import, and few clients need it

    arrays = {}
    for split in ("train", "test"):
        content = loadmat(find(folder, f"{split}_32x32.mat"))
        images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
        arrays[f"{split}_x"] = torch.from_numpy(images)
        arrays[f"{split}_y"] = torch.from_numpy(content["y"].astype(np.int64).ravel() % 10)
    return arrays


def svhn() -> Recipe:
    """SVHN: 73,257 + 26,032 house-number digits, 32 x 32, colour."""
    return Recipe(
        key="svhn",
        read=read,
        num_classes=10,
        sources=(
            Official(
                (
                    (f"{_SITE}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                    (f"{_SITE}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
                )
            ),
        ),
    )
