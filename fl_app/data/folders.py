"""Data sets that are folders of image files: any ImageFolder, LFW, Tiny-ImageNet."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from fl_app.core.machine import gigabytes, memory
from fl_app.core.sources import Official
from fl_app.data.attributes import Beside, read_beside
from fl_app.data.base import Arrays, DataError, Recipe
from fl_app.data.files import find, read_image
from fl_app.data.splits import Share, hold_out

IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}
Labelled = list[tuple[Path, int]]
Side = Annotated[int, Field(ge=8, le=1024)]


def images_in(folder: Path) -> list[Path]:
    """The image files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES)


def classes_of(folder: Path) -> list[str]:
    """The sub-folders that hold images: one per class."""
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and images_in(path)) if folder.is_dir() else []
    if len(found) < 2:
        raise DataError(f"{folder} must have a folder of images for each of at least two classes")
    return found


def labelled(folder: Path, classes: list[str]) -> Labelled:
    """Every image of every class folder with its class; at least one."""
    found = [(path, label) for label, name in enumerate(classes) for path in images_in(folder / name)]
    if not found:
        raise DataError(
            f"{folder} holds no images of the classes {', '.join(classes[:5])}: put some into folders of these names"
        )
    return found


def decode(train: Labelled, test: Labelled, size: int | None, mode: str = "RGB") -> Arrays:
    """Read the image files of both splits."""
    room = 2 * (len(train) + len(test)) * len(mode) * (size or 0) ** 2  # for a moment each image is there twice
    if room > memory():
        what = f"{len(train) + len(test)} images of {size} x {size} pixels"
        raise DataError(f"{what} need {gigabytes(room)}, and this machine has {gigabytes(memory())}: lower size")
    arrays = {}
    for split, examples in (("train", train), ("test", test)):
        arrays[f"{split}_x"] = torch.stack([read_image(path, size, mode) for path, _ in examples])
        arrays[f"{split}_y"] = torch.tensor([label for _, label in examples])
    return arrays


def read_imagefolder(folder: Path, size: int, test_share: float, mode: str = "RGB", beside: Beside | None = None) -> Arrays:
    """`class/*.png`, or `train/class/*.png` beside `test/class/*.png` (or `val/`), with the attributes of each image."""
    train, test = _parts(folder, test_share)
    arrays = decode(train, test, size, mode)
    if beside is not None:
        for split, examples in (("train", train), ("test", test)):
            arrays[f"{split}_a"] = beside.of([path for path, _ in examples], folder)
    return arrays


def _parts(folder: Path, test_share: float) -> tuple[Labelled, Labelled]:
    if (folder / "train").is_dir():
        held = next((folder / name for name in ("test", "val", "valid") if (folder / name).is_dir()), None)
        if held is None:
            raise DataError(f"{folder} has a train folder but neither test, val nor valid")
        classes = classes_of(folder / "train")
        return labelled(folder / "train", classes), labelled(held, classes)
    return hold_out(labelled(folder, classes_of(folder)), test_share)


def read_lfw(folder: Path, size: int, min_images: int, test_share: float) -> Arrays:
    """`<Person>/<Person>_0001.jpg`; people with too few images are left out."""
    root = next((path for path in folder.rglob("lfw*funneled") if path.is_dir()), folder)
    people = [name for name in classes_of(root) if len(images_in(root / name)) >= min_images]
    if len(people) < 2:
        raise DataError(f"fewer than two people in {root} have {min_images} images; lower min_images")
    train, test = hold_out(labelled(root, people), test_share)
    return decode(train, test, size)


def read_tiny_imagenet(folder: Path) -> Arrays:
    """`train/<class>/images/*.JPEG`, and `val/images` whose classes are in `val/val_annotations.txt`."""
    notes = find(folder, "val_annotations.txt")
    root = notes.parent.parent
    classes = classes_of(root / "train")
    label_of = {name: label for label, name in enumerate(classes)}
    rows = [line.split("\t") for line in notes.read_text().splitlines() if line.strip()]
    val = [(notes.parent / "images" / row[0], label_of[row[1]]) for row in rows]
    return decode(labelled(root / "train", classes), val, None)


def imagefolder(*, path: str, size: Side = 32, grey: bool = False, test_share: Share = 0.2) -> Recipe:
    """Any folder of class folders (NIH chest X-ray comes that way); images are scaled and cropped to size x size.

    An attributes.csv in it says more of each image: its first column is `file`, the path within the folder.
    """
    root = Path(path).expanduser().resolve()
    classes = classes_of(root / "train" if (root / "train").is_dir() else root)
    # The cache must not outlive a change of the folder: names, sizes and times are part of its key.
    listing = "\n".join(f"{p}:{(s := p.stat()).st_size}:{s.st_mtime_ns}" for p in images_in(root))
    beside = read_beside(root)
    told = f":{beside}" if beside else ""
    key = hashlib.sha256(f"{listing}:{size}:{grey}:{test_share}{told}".encode()).hexdigest()[:16]
    paths = "\n".join(p.relative_to(root).as_posix() for p in images_in(root))
    return Recipe(
        key=f"imagefolder-{key}",
        read=lambda _: read_imagefolder(root, size, test_share, "L" if grey else "RGB", beside),
        num_classes=len(classes),
        paths=hashlib.blake2b(paths.encode(errors="surrogateescape"), digest_size=8).hexdigest(),
        attributes=beside.columns if beside else (),
    )


def lfw(*, size: Side = 32, min_images: Annotated[int, Field(ge=2, le=1000)] = 20, test_share: Share = 0.2) -> Recipe:
    """Labeled Faces in the Wild, funneled: the people with at least min_images photos."""
    return Recipe(
        key=f"lfw-{size}-{min_images}-{test_share}",
        read=partial(read_lfw, size=size, min_images=min_images, test_share=test_share),
        num_classes=0,  # as many as there are people
        sources=(Official((("http://vis-www.cs.umass.edu/lfw/lfw-funneled.tgz", "1b42dfed7d15c9b2dd63d5e5840c86ad"),)),),
    )


def tiny_imagenet() -> Recipe:
    """Tiny-ImageNet: 100,000 + 10,000 photos in 200 classes, 64 x 64, colour."""
    return Recipe(
        key="tiny_imagenet",
        read=read_tiny_imagenet,
        num_classes=200,
        sources=(Official((("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),)),),
    )
