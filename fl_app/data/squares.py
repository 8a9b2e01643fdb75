"""Photos of 128 or 256 pixels on a side that are on every machine: squares of those inside scikit-image and scikit-learn."""

from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fl_app.core.seeds import generator
from fl_app.data.base import Arrays, Recipe

SUBJECTS = ("living", "made", "science", "surface")
"""The classes (ours): what a photo shows."""
PARTS: dict[str, dict[str, int]] = {
    "train": {
        "astronaut": 0,
        "chelsea": 0,
        "china": 1,
        "coffee": 1,
        "rocket": 1,
        "hubble_deep_field": 2,
        "immunohistochemistry": 2,
        "brick": 3,
        "gravel": 3,
    },
    "test": {"flower": 0, "motorcycle": 1, "moon": 2, "retina": 2, "grass": 3},
}
"""Which photos are whose, with their subjects: no photo is in both parts, whatever is cut out of it."""
PIECES = 32
"""Squares of a photo; those of one photo overlap."""
KEY = "photos-"


def photo(name: str) -> Tensor:
    """A photo by its name, uint8 (3, height, width); grey ones have three equal channels."""
    from skimage import data
    from sklearn.datasets import load_sample_image

    if name in ("china", "flower"):
        found = load_sample_image(f"{name}.jpg")
    else:
        found = getattr(data, {"motorcycle": "stereo_motorcycle"}.get(name, name))()
        found = found[0] if name == "motorcycle" else found  # the left of two
    image = torch.from_numpy(found.copy())
    return (image[..., None].expand(-1, -1, 3) if image.ndim == 2 else image[..., :3]).permute(2, 0, 1).contiguous()


def squares(name: str, size: int) -> Tensor:
    """Squares of a photo, uint8 (PIECES, 3, size, size): first the largest in its middle, then of all sizes from everywhere."""
    image, rng = photo(name), generator(0, "squares", name)
    free = torch.tensor(image.shape[1:])
    largest = int(free.min())
    found = []
    for number in range(PIECES):
        share, place = torch.rand((), generator=rng), torch.rand(2, generator=rng)
        side = int(size * (largest / size) ** share.item()) if number else largest
        top, left = ((free - side + 1) * place).int().tolist() if number else ((free - side) // 2).tolist()
        cut = image[None, :, top : top + side, left : left + side].float()
        found.append(F.interpolate(cut, size=(size, size), mode="area")[0])
    return torch.stack(found).round().to(torch.uint8)


def square_photos(*, size: Annotated[int, Field(ge=16, le=256)] = 256) -> Recipe:
    """Squares of 14 real photos, colour, 4 subjects; no photo of the clients is in the test part, which is public."""

    def read(_: Path) -> Arrays:
        arrays = Arrays()
        for part, names in PARTS.items():
            arrays[f"{part}_x"] = torch.cat([squares(name, size) for name in names])
            arrays[f"{part}_y"] = torch.tensor(list(names.values())).repeat_interleave(PIECES)
        return arrays

    return Recipe(key=f"{KEY}{size}", read=read, num_classes=len(SUBJECTS))
