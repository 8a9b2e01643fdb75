"""Which data a run was made with, so that nothing is scored, resumed or shown against other data."""

import hashlib
import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fl_app import data
from fl_app.experiment.config import Experiment
from fl_app.store.files import RunError, write_atomic
from fl_app.store.runs import RunDir

log = logging.getLogger("thorns")
RECORD = "data.json"


class Fingerprint(NamedTuple):
    """A checksum of all examples with their classes and attributes, in order, and for a folder one of its relative paths."""

    content: str
    paths: str = ""

    def __str__(self) -> str:
        return self.content + (f", paths {self.paths}" if self.paths else "")


@lru_cache(maxsize=4)
def fingerprint_of(dataset: str) -> Fingerprint:
    """The fingerprint of a data set as it is on this machine now."""
    found = data.load(dataset)
    digest = hashlib.blake2b(digest_size=8)
    for part in (found.train, found.test, *([found.validation] if found.validation else [])):
        for tensor in (part.x, part.y, *([] if part.a is None else [part.a])):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().data)
    if found.vocabulary is not None:
        digest.update(found.vocabulary.digest.encode())
    return Fingerprint(digest.hexdigest(), data.recipe_of(dataset).paths)


def record_data(run: RunDir, experiment: Experiment) -> None:
    """Keep the fingerprint of a new run's data beside it."""
    write_atomic(run.path / RECORD, json.dumps(fingerprint_of(experiment.dataset)._asdict()))


def check_data(path: Path, experiment: Experiment) -> None:
    """Refuse data that is not the one which a run was made with; RunError names both."""
    record = path / RECORD
    if not record.exists():
        _note(path)
        return
    try:
        told = json.loads(record.read_text(encoding="utf-8"))
        kept = Fingerprint(str(told["content"]), str(told["paths"]))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise RunError(f"{record} cannot be read: it is damaged ({error})") from error
    found = fingerprint_of(experiment.dataset)
    if found != kept:
        raise RunError(
            f"{experiment.dataset} is not the data that {path} was made with (now {found}; then {kept}): bring the old data "
            "back, or run the experiment again"
        )


@lru_cache(maxsize=256)
def _note(path: Path) -> None:
    """Said once per run and process."""
    log.info("%s has no record of its data (it is older than that record): it is taken to be unchanged", path)
