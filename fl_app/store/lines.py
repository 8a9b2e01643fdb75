"""Files of one JSON object per line, to which a run or an attack adds as it goes; a crash may cut off the last line."""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from fl_app.core.errors import said
from fl_app.store.files import RunError, unwritten


def read_lines(path: Path, *, whole: bool = False) -> list[dict[str, Any]]:
    """The objects in a file, none if there is no file; a cut-off last line is dropped, any other damage named with its line.

    Of a file that is written as a `whole` no crash cuts off a line: there it is damage, too, and a result would be missing.
    """
    try:
        texts = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read: {said(error)}") from error
    found = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:  # also of bytes that are no UTF-8
            if number == len(texts) and not whole:  # what ends without a line break was being written
                break
            raise RunError(f"{path}, line {number} is damaged: {error}") from None
        if not isinstance(line, dict):
            raise RunError(f"{path}, line {number} does not hold one object")
        found.append(line)
    return found


class LineFile:
    """A file that lines are added to, each of them whole or not at all; it is made with the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._out: BinaryIO | None = None

    def append(self, *lines: dict[str, Any]) -> None:
        """Add lines; RunError if that fails, and then none of them is in the file."""
        if not lines:
            return
        left = memoryview("".join(json.dumps(line) + "\n" for line in lines).encode())
        try:
            out = self._open()
            end = out.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[out.write(left) :]
            except OSError:
                out.truncate(end)
                raise
        except OSError as error:
            raise unwritten(self.path, error) from error

    def _open(self) -> BinaryIO:
        """The file, without what a crash left of a line: the next one would be damaged by it."""
        if self._out is None:
            self._out = self.path.open("a+b", buffering=0)
            self._out.seek(0)
            content = self._out.read()
            if not content.endswith(b"\n"):
                self._out.truncate(content.rfind(b"\n") + 1)
        return self._out

    def close(self) -> None:
        """Let go of the file."""
        if self._out is not None:
            self._out.close()
            self._out = None
