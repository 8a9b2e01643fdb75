"""Code blocks of our documents: the sections that they stand in, and the commands in them."""

import re
import shlex
from typing import NamedTuple


class Block(NamedTuple):
    section: str
    language: str
    text: str


def blocks_of(path):
    """The fenced blocks of a Markdown file, each with the heading above it."""
    found, section, fence, lines = [], "", None, []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if fence is None:
                fence, lines = line.removeprefix("```"), []
            else:
                found.append(Block(section, fence, "\n".join(lines) + "\n"))
                fence = None
        elif fence is not None:
            lines.append(line)
        elif line.startswith("#"):
            section = line.lstrip("# ")
    return found


def commands_in(text, program):
    """The words of each line of a shell block that starts a program; lines may be continued, and end in a comment."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines if not line.lstrip().startswith("#")]
    return [words[1:] for words in found if words[:1] == [program]]


def commands_of(path, program):
    """All such commands of a document."""
    return [words for block in blocks_of(path) if block.language == "bash" for words in commands_in(block.text, program)]


def files_of(path):
    """Name -> text of the files of a document: Python blocks whose first line is a comment with the name."""
    found = {}
    for block in blocks_of(path):
        first = re.match(r"# (\w+\.py)\n", block.text)
        if block.language == "python" and first:
            assert first[1] not in found, f"{path}: {first[1]} twice"
            found[first[1]] = block.text
    return found
