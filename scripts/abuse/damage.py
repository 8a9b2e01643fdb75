"""What happens to files: cut off, overwritten, replaced, without rights; each is something to do before a command."""

import os
import shutil
from pathlib import Path

from abuse.case import Before

SCRAP = b"\x00\xff\xfe not what you think \x80"


def cut(name: str, keep: int | float = 0.5) -> Before:
    """Keep so many bytes of a file, or such a share."""

    def do(here: Path) -> None:
        content = (here / name).read_bytes()
        (here / name).write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])

    return do


def write(name: str, content: str | bytes = SCRAP) -> Before:
    """Write a file over whatever is there."""

    def do(here: Path) -> None:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return do


def append(name: str, content: str) -> Before:
    """Add to a file."""

    def do(here: Path) -> None:
        with (here / name).open("a", encoding="utf-8") as out:
            out.write(content)

    return do


def replace(name: str, old: str, new: str) -> Before:
    """Change words in a file."""

    def do(here: Path) -> None:
        text = (here / name).read_text(encoding="utf-8")
        assert old in text, f"{name} has no {old!r}"
        (here / name).write_text(text.replace(old, new), encoding="utf-8")

    return do


def flip(name: str, place: int = -1) -> Before:
    """Turn the bits of one byte."""

    def do(here: Path) -> None:
        content = bytearray((here / name).read_bytes())
        content[place] ^= 0xFF
        (here / name).write_bytes(content)

    return do


def remove(*names: str) -> Before:
    """Delete files or folders."""

    def do(here: Path) -> None:
        for name in names:
            path = here / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return do


def folder(*names: str) -> Before:
    """Make empty folders, where files were if need be."""

    def do(here: Path) -> None:
        for name in names:
            (here / name).unlink(missing_ok=True)
            (here / name).mkdir(parents=True)

    return do


def link(name: str, to: str) -> Before:
    """Make a symbolic link, where something was if need be."""

    def do(here: Path) -> None:
        if os.path.lexists(here / name):
            remove(name)(here)
        (here / name).symlink_to(to)

    return do


def mode(name: str, rights: int) -> Before:
    """Change the rights of a file or folder."""
    return lambda here: (here / name).chmod(rights)


def copy(name: str, to: str) -> Before:
    """Copy a file or folder."""

    def do(here: Path) -> None:
        (here / to).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (here / name).is_dir() else shutil.copy)(here / name, here / to)

    return do


def all_of(*steps: Before) -> Before:
    """One after the other."""

    def do(here: Path) -> None:
        for step in steps:
            step(here)

    return do
