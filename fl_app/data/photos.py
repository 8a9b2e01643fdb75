"""Public images that are on every machine: pieces of the photos that come with scikit-image."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

# All of them lie inside the package. Its faces of LFW are left out: they may be a client's.
NAMES = (
    "astronaut",
    "brick",
    "camera",
    "chelsea",
    "coffee",
    "coins",
    "grass",
    "gravel",
    "hubble_deep_field",
    "immunohistochemistry",
    "moon",
    "page",
    "retina",
    "rocket",
    "text",
)
NUMBER = 8000
CONTRAST = 4.0


@lru_cache(maxsize=1)
def photos() -> tuple[Tensor, ...]:
    """The photos, uint8 (3, height, width) each."""
    from skimage import data

    found = []
    for name in NAMES:
        image = torch.from_numpy(getattr(data, name)().copy())
        found.append((image[..., None].expand(-1, -1, 3) if image.ndim == 2 else image[..., :3]).permute(2, 0, 1))
    return tuple(found)


def pieces(shape: tuple[int, int, int], number: int | None = None, seed: int = 0) -> Tensor:
    """Square pieces of all sizes, scaled to (channels, height, width), half of them with another contrast: uint8 (n, *shape).

    15 photos are few; without the changes of contrast, dark backgrounds and hard edges pass for noise.
    """
    rng, number = torch.Generator().manual_seed(seed), number or NUMBER
    x = torch.stack([_piece(shape, rng) for _ in range(number)])
    if shape[0] == 1:
        x = x.mean(1, keepdim=True)

    def uniform() -> Tensor:
        return torch.rand((number, 1, 1, 1), generator=rng)

    mean = x.mean((1, 2, 3), keepdim=True)
    level = torch.where(uniform() < 0.5, mean, uniform())
    changed = ((x - mean) * CONTRAST ** (2 * uniform() - 1) + level).clamp(0, 1)
    changed = torch.where(uniform() < 0.5, changed, 1 - changed)
    return torch.where(uniform() < 0.5, x, changed).mul(255).round().to(torch.uint8)


def _piece(shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
    images = photos()
    image = images[int(torch.randint(len(images), (), generator=rng))]
    high, wide = image.shape[1:]
    smallest, largest = min(max(shape[1:]), high, wide), min(high, wide)
    side = int(smallest * (largest / smallest) ** torch.rand((), generator=rng).item())
    top, left = (int(torch.randint(free - side + 1, (), generator=rng)) for free in (high, wide))
    cut = image[None, :, top : top + side, left : left + side].float() / 255
    return F.interpolate(cut, size=shape[1:], mode="area")[0]
