"""Finding and reading raw files, wherever in a source's directory they lie."""

import gzip
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fl_app.core.errors import said
from fl_app.data.base import DataError


def find(folder: Path, *names: str) -> Path:
    """The one file below `folder` that has one of these names, packed with gzip or not."""
    for name in names:
        for candidate in (name, f"{name}.gz"):
            hits = sorted(path for path in folder.rglob(candidate) if path.is_file())
            if hits:
                return hits[0]
    raise FileNotFoundError(f"there is no {' or '.join(names)} below {folder}")


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is a gzip file."""
    if path.suffix == ".gz":
        with gzip.open(path) as stream:
            return stream.read()
    return path.read_bytes()


def read_image(path: Path, size: int | None = None, mode: str = "RGB") -> Tensor:
    """An image file -> uint8 (channels, height, width); with a size, scaled and cropped to a centred square."""
    try:
        with Image.open(path) as file:
            image = file.convert(mode)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # PIL raises SyntaxError for a damaged PNG
        why = said(error) if isinstance(error, OSError) and error.strerror else "it is damaged, or no image"
        raise DataError(f"the image {path} cannot be read ({why}): mend or remove it") from error
    with image:
        if size is not None:
            scale = size / min(image.size)
            width, height = (max(size, round(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
            left, top = (width - size) // 2, (height - size) // 2
            image = image.crop((left, top, left + size, top + size))
        pixels = np.array(image)
    tensor = torch.from_numpy(pixels)
    return tensor[None] if tensor.ndim == 2 else tensor.permute(2, 0, 1).contiguous()
