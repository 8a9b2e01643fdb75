"""MedMNIST v2 (Yang et al. 2023), 28 x 28: one npz file per data set."""

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fl_app.core.sources import Official
from fl_app.data.base import Arrays, Recipe
from fl_app.data.files import find

_SITE = "https://zenodo.org/records/10519652/files"
_KINDS = {  # classes, md5
    "blood": (8, "7053d0359d879ad8a5505303e11de1dc"),
    "path": (9, "a8b06965200029087d5bd730944a56c1"),
    "derma": (7, "0744692d530f8e62ec473284d019b0c7"),
    "chest": (2, "02c8a6516a18b556561a56cbdd36c4a8"),
}


def read(folder: Path, kind: str) -> Arrays:
    """`<kind>mnist.npz` -> arrays with the published validation part.

    ChestMNIST has 14 findings that may occur together; as a classification task it becomes "any finding" (1) or none (0).
    """
    arrays = {}
    # The package medmnist reads it by np.load too, and would bring pandas and scikit-learn along.
    with np.load(find(folder, f"{kind}mnist.npz"), allow_pickle=False) as content:
        for split in ("train", "val", "test"):
            images, labels = content[f"{split}_images"], content[f"{split}_labels"]
            x = torch.from_numpy(images)
            arrays[f"{split}_x"] = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
            classes = labels.any(axis=1) if labels.ndim == 2 and labels.shape[1] > 1 else labels.ravel()
            arrays[f"{split}_y"] = torch.from_numpy(classes.astype(np.int64))
    return arrays


def medmnist(*, kind: Literal["blood", "path", "derma", "chest"] = "blood") -> Recipe:
    """MedMNIST: blood cells (8 classes), pathology (9), dermatoscopy (7), chest X-ray (any finding or none); 28 x 28."""
    classes, md5 = _KINDS[kind]
    return Recipe(
        key=f"medmnist-{kind}",
        read=partial(read, kind=kind),
        num_classes=classes,
        sources=(Official(((f"{_SITE}/{kind}mnist.npz?download=1", md5),)),),
    )
