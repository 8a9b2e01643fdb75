"""Data sets: one file per family, all of them listed here; fetched once, checked, and kept in a cache."""

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fl_app.core import spec
from fl_app.core.errors import said, told
from fl_app.core.places import cache_dir, there
from fl_app.core.sources import SourceError
from fl_app.data.base import Arrays, DataError, Dataset, Examples, Recipe, statistics
from fl_app.data.cifar import cifar10, cifar100
from fl_app.data.derived import attributed
from fl_app.data.folders import imagefolder, lfw, tiny_imagenet
from fl_app.data.medmnist import medmnist
from fl_app.data.mnist import fashion_mnist, mnist
from fl_app.data.squares import square_photos
from fl_app.data.svhn import svhn
from fl_app.data.tables import csv
from fl_app.data.texts import cola, rotten_tomatoes, sst2, wikitext2
from fl_app.data.vocabularies import parsed, written
from fl_app.data.wheel import table
from fl_app.store.files import PUBLIC

log = logging.getLogger("thorns")

DATASETS: dict[str, Callable[..., Recipe]] = {
    "attributed": attributed,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cola": cola,
    "csv": csv,
    "fashion_mnist": fashion_mnist,
    "imagefolder": imagefolder,
    "lfw": lfw,
    "medmnist": medmnist,
    "mnist": mnist,
    "photos": square_photos,
    "rotten_tomatoes": rotten_tomatoes,
    "sst2": sst2,
    "svhn": svhn,
    "table": table,
    "tiny_imagenet": tiny_imagenet,
    "wikitext2": wikitext2,
}


KINDS = ((torch.uint8, 4), (torch.float32, 2), (torch.int64, 2))
"""Images, rows of a table, and text: type and number of dimensions."""


_told: dict[str, Recipe] = {}


def tell(recipes: Mapping[str, Recipe]) -> None:
    """Take these recipes for what their specs mean: somebody's own folder lies on another machine than this one."""
    _told.update(recipes)


def recipe_of(text: str) -> Recipe:
    """The recipe of a data set spec such as "mnist" or "medmnist(kind='blood')"."""
    if text in _told:
        return _told[text]
    recipe = spec.build_one("data set", text, DATASETS, base=Recipe)
    name = spec.single("data set", text).name
    if name not in DATASETS and recipe.key in DATASETS:
        raise DataError(f"{name} is kept under the name '{recipe.key}', which is one of ours: give its recipe another key")
    return recipe


def cached_file(recipe: Recipe) -> Path:
    """Where the arrays of a recipe are kept."""
    return cache_dir() / f"{recipe.key}.safetensors"


def digest_of(arrays: Arrays) -> str:
    """A checksum of what the arrays hold, independent of the source and its file format."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name}{tuple(arrays[name].shape)}".encode())
        digest.update(arrays[name].contiguous().numpy().data)
    return digest.hexdigest()


def _read_checked(recipe: Recipe, folder: Path) -> Arrays:
    arrays = recipe.read(folder)
    if recipe.digest is not None and (found := digest_of(arrays)) != recipe.digest:
        raise ValueError(f"the content has the checksum {found}, not {recipe.digest}")
    _check_arrays(arrays, len(recipe.vocabulary()) if recipe.vocabulary else 0)
    _check_attributes(arrays, recipe)
    return {name: _own(tensor) for name, tensor in arrays.items()}


def _check_arrays(arrays: Arrays, tokens: int) -> None:
    """Refuse what no data set looks like: a plugged-in recipe may read anything; `tokens` is the size of its vocabulary."""
    for split in ("train", "test", *(split for split in ("val", "public") if f"{split}_x" in arrays)):
        x, y = arrays.get(f"{split}_x"), arrays.get(f"{split}_y")
        if x is None or y is None or (x.dtype, x.ndim) not in KINDS or y.dtype != torch.int64 or y.shape != x.shape[:1]:
            what = "uint8 (n, channels, height, width), float32 (n, floats) or int64 (n, length), and int64 (n,)"
            raise DataError(f"{split}_x and {split}_y must be {what}, n at least 1")
        if not len(y) or int(y.min()) < 0:
            raise DataError(f"{split}_y must hold at least one class, and none below 0")
        if (x.dtype == torch.int64) is not bool(tokens):
            raise DataError(f"{split}_x must be int64 for text, whose recipe has a vocabulary, and for nothing else")
        if x.dtype == torch.float32 and not bool(((x >= 0) & (x <= 1)).all()):
            raise DataError(f"{split}_x must hold numbers in [0, 1]")
        if x.dtype == torch.int64 and not bool(((x >= 0) & (x < tokens)).all()):
            raise DataError(f"{split}_x must hold ids of the vocabulary, from 0 to {tokens - 1}")


def _check_attributes(arrays: Arrays, recipe: Recipe) -> None:
    """Refuse attributes that do not fit their columns."""
    most = torch.tensor([len(column.values) for column in recipe.attributes])
    for split in ("train", "test", *(["val"] if "val_x" in arrays else [])) if recipe.attributes else ():
        a, fits = arrays.get(f"{split}_a"), (len(arrays[f"{split}_y"]), len(most))
        if a is None or a.dtype != torch.int64 or a.shape != fits or bool(((a < 0) | (a >= most)).any()):
            raise DataError(f"{split}_a must be int64 {fits}, the place of each example's value in every column")


def _own(tensor: Tensor) -> Tensor:
    """The tensor in memory of its own: one that is part of another cannot be saved."""
    whole = tensor.contiguous()
    return whole if whole.untyped_storage().nbytes() == whole.nbytes else whole.clone()


def fetch(recipe: Recipe) -> Path:
    """Bring a data set into the cache unless it is there, and return its file.

    Files put by hand into `<cache>/raw/<name>` come first, then each source in turn; the write is one atomic rename.
    """
    target = cached_file(recipe)
    if there(target):
        return target
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_dir()).close()
    except OSError as error:
        advice = "choose another cache with THORNS_DATA"
        raise DataError(f"the cache {cache_dir()} cannot be written ({said(error)}): {advice}") from error
    if not recipe.sources:
        return _keep(recipe, _read_own(recipe), "folder that it names")
    by_hand = cache_dir() / "raw" / recipe.key
    reasons = []
    for source in (None, *recipe.sources):
        if source is None and not by_hand.is_dir():
            continue
        name = source.name if source else f"files in {by_hand}"
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="fetch-") as scratch:
            raw = Path(scratch) / "raw"
            raw.mkdir()
            try:
                if source is not None:
                    source.fetch(raw)
                arrays = _read_checked(recipe, raw if source else by_hand)
            except (SourceError, DataError, ValueError, OSError, KeyError) as error:
                reasons.append(f"{name}: {said(error)}")
                log.info("%s is not to be had from the %s", recipe.key, reasons[-1])
                continue
        return _keep(recipe, arrays, name)
    tried = "\n".join(f"  - {reason}" for reason in reasons)
    raise DataError(
        f"the data set '{recipe.key}' cannot be had here. Tried:\n{tried}\nPut its files into {by_hand} and try again."
    )


def _read_own(recipe: Recipe) -> Arrays:
    """The arrays of somebody's own data, which is to be had in one way only: an error is about that, and not the cache."""
    try:
        return _read_checked(recipe, cache_dir() / "raw" / recipe.key)
    except DataError:
        raise
    except Exception as error:  # code from outside may raise anything
        raise DataError(f"the data set '{recipe.key}' cannot be read: {told(error)}") from error


def _keep(recipe: Recipe, arrays: Arrays, source: str) -> Path:
    """Write arrays into the cache in one atomic rename."""
    target = cached_file(recipe)
    mean, std = statistics(arrays["train_x"])
    notes = {"source": source, "mean": json.dumps(mean), "std": json.dumps(std)}
    if recipe.vocabulary is not None:
        notes["vocabulary"] = written(recipe.vocabulary())
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="fetch-") as scratch:
        part = Path(scratch) / "arrays"
        save_file(arrays, part, metadata=notes)
        if recipe.sources:  # what is published; somebody's own folder stays with its owner
            part.chmod(PUBLIC)
        part.replace(target)
    log.info("%s: served by the %s, kept in %s", recipe.key, source, target)
    return target


def _load_checked(path: Path) -> tuple[Arrays, dict[str, str]]:
    try:
        path.open("rb").close()  # safetensors calls a file that may not be read missing
        with safe_open(path, "pt") as stored:
            arrays, notes = load_file(path), dict(stored.metadata() or {})
        if not {"train_x", "train_y", "test_x", "test_y"} <= arrays.keys() or not {"mean", "std"} <= notes.keys():
            raise DataError(f"{path} does not hold a data set; delete it, and it will be fetched again")
        return arrays, notes
    except OSError as error:
        advice = "make it readable, or choose another cache with THORNS_DATA"
        raise DataError(f"{path} cannot be read ({said(error)}): {advice}") from error
    except SafetensorError as error:
        raise DataError(f"{path} is damaged ({error}); delete it, and it will be fetched again") from error


def _examples(arrays: Arrays, split: str) -> Examples:
    return Examples(arrays[f"{split}_x"], arrays[f"{split}_y"], arrays.get(f"{split}_a"))


@lru_cache(maxsize=4)
def load(text: str) -> Dataset:
    """The data set of a spec, fetched if needed; one copy per process."""
    recipe = recipe_of(text)
    arrays, notes = _load_checked(fetch(recipe))
    train, test = (_examples(arrays, split) for split in ("train", "test"))
    mean, std = (tuple(json.loads(notes[key])) for key in ("mean", "std"))
    classes = recipe.num_classes or int(train.y.max()) + 1
    return Dataset(
        recipe.key,
        train,
        test,
        classes,
        mean,
        std,
        _examples(arrays, "val") if "val_x" in arrays else None,
        recipe.columns,
        recipe.attributes,
        parsed(notes["vocabulary"]) if "vocabulary" in notes else None,
        _examples(arrays, "public") if "public_x" in arrays else None,
    )


__all__ = ["DATASETS", "DataError", "Dataset", "Examples", "cache_dir", "cached_file", "fetch", "load", "recipe_of", "tell"]
