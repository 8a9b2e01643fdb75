"""A node's side of work for another machine: a private folder, and a private cache of what the other one's cache holds."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from fl_app import data
from fl_app.cluster.bundle import Bundle, digest, digest_of, files_in, pack, unpack
from fl_app.core import places
from fl_app.data.base import Recipe
from fl_app.store.files import RunError, make_folder, write_atomic
from fl_app.store.locks import LOCK, alone

Work = Callable[[Path, Any], Any]
"""(a folder with the files that came along, what was asked) -> the answer; files that it leaves there go back with it."""
BY_HASH, GUESTS, MADE = "by-hash", "guests", "attacks"
"""In a node's cache: files that came, by content; the folders of guests. In a guest's: what is made there and goes back."""


class Supply(NamedTuple):
    """What the other machine has said of its cache: name -> checksum ("": no such file), and checksum -> Ray's reference."""

    digests: dict[str, str]
    gifts: dict[str, Any]


class Wanted(NamedTuple):
    """The answer of a guest that lacks a file: its name in the cache, and its checksum if the guest has been told."""

    name: str
    digest: str = ""


class Missing(BaseException):
    """A file of the other machine's cache is needed; not an Exception, which somebody might take for a failure of theirs."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted.name)
        self.wanted = wanted


class Came(NamedTuple):
    """The answer of a guest that has done its work, the files that it made, and those for the cache."""

    answer: Any
    files: Bundle
    made: Bundle


class Guest:
    """What lives in a process on a node; torch, data and models stay loaded from one piece of work to the next."""

    def __init__(self, command: Sequence[str], recipes: Mapping[str, Recipe]) -> None:
        sys.argv = list(command)  # environment.json must name what a person typed
        self._own = places.cache_dir().absolute()
        self.folder, self._lock = _room(self._own / GUESTS)
        self._supply, self._task = Supply({}, {}), ""
        self._sent: set[str] = set()
        self.settled = False
        """Whether what was not asked for until now is made here."""
        os.environ["THORNS_DATA"] = str(self.folder / "cache")
        places.cache_dir().mkdir()
        places.bring_by(self.bring)
        data.tell(recipes)

    def ready(self) -> None:
        """Say that the process has begun."""

    def supplied(self, supply: Supply, work: Callable[[], None]) -> Wanted | None:
        """Do something that may need files of the other machine's cache."""
        self._supply = supply
        try:
            work()
        except Missing as missing:
            return missing.wanted
        return None

    def do(self, task: str, work: Work, asked: Any, files: Bundle, supply: Supply) -> Came | Wanted:
        """Do a piece of work in its own folder; one that lacked a file is found there again."""
        self._supply = supply
        folder = self.folder / "work"
        if task != self._task:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            unpack(files, folder)
            self._task = task
        try:
            answer = work(folder, asked)
        except Missing as missing:
            return missing.wanted
        before = set(files.entries)
        made = pack(folder, files_in(folder))
        new = [entry.name for entry in made.entries if entry not in before]
        fresh = [name for name in files_in(places.cache_dir()) if name.startswith(f"{MADE}/") and name not in self._sent]
        self._sent.update(fresh)
        return Came(answer, made if len(new) == len(made.entries) else pack(folder, new), pack(places.cache_dir(), fresh))

    def bring(self, name: str) -> None:
        """Have a file of the other machine's cache in ours, if that has it: from this node by its content, else from there."""
        expected = self._supply.digests.get(name, "" if self.settled else None)
        if expected is None:
            raise Missing(Wanted(name))
        if not expected:
            return
        place = places.cache_dir() / name
        make_folder(place.parent)
        for kept in (self._own / name, self._own / BY_HASH / expected):
            if kept.is_file() and digest_of(kept) == expected:
                place.symlink_to(kept)
                return
        if expected not in self._supply.gifts:
            raise Missing(Wanted(name, expected))
        import ray

        content = ray.get(self._supply.gifts[expected])
        if digest(content) != expected:
            raise RunError(f"{name} of the cache did not arrive as it was sent: its checksum is wrong")
        make_folder(self._own / BY_HASH)
        write_atomic(self._own / BY_HASH / expected, content.tobytes())
        place.symlink_to(self._own / BY_HASH / expected)

    def leave(self) -> None:
        """Leave nothing behind but the files by content."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _room(guests: Path) -> tuple[Path, FileLock]:
    """A folder of one's own, with the lock that says that it is in use; those of guests that were killed are removed."""
    with alone(guests / LOCK):
        for old in guests.iterdir():
            if old.is_dir():
                try:
                    with FileLock(old / LOCK, timeout=0):
                        shutil.rmtree(old, ignore_errors=True)
                except Timeout:
                    continue
        folder = Path(tempfile.mkdtemp(dir=guests))
        lock = FileLock(folder / LOCK)
        lock.acquire()
    return folder, lock
