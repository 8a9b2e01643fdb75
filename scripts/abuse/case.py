"""A command with what it must answer, and what is wrong with an answer."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Before = Callable[[Path], None]
"""Something that is done to the folder of a case before its command."""


class Case(NamedTuple):
    """A command line after `thorns`, in a folder of its own that holds a copy of the stage."""

    line: str
    code: int
    says: str
    """A phrase of the answer, spaces and line breaks counted as one space."""
    before: Before | None = None
    signal: tuple[int, str] | None = None
    """(signal, file): the command gets it once the file is there."""
    meanwhile: tuple[str, str] | None = None
    """(command, file): another process, which is at work once the file is there, and is ended afterwards."""
    as_user: bool = False
    """Without the rights of root, whom no mode of a file keeps out."""
    env: tuple[tuple[str, str], ...] = ()


class Answer(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str
    seconds: float


LONGEST = 1200
"""Characters of a message that somebody still reads."""
FRAMES = re.compile("[│╭╮╰╯─]")
PYTHON = re.compile(r"\b[A-Z][A-Za-z]*(?:Error|Exception|Interrupt)\b")


def squeezed(text: str) -> str:
    """The words, without frames and line breaks."""
    return " ".join(FRAMES.sub(" ", text).split())


def faults(case: Case, answer: Answer) -> list[str]:
    """What is wrong with an answer; nothing if it is as it must be."""
    both = f"{answer.out}\n{answer.err}"
    said, found = squeezed(both), []
    if answer.code != case.code:
        found.append(f"exit code {answer.code}, not {case.code}")
    if case.says not in said:
        found.append(f"does not say {case.says!r}")
    if "Traceback (most recent call last)" in both:
        found.append("shows a traceback")
    if "[Errno" in both:
        found.append("shows the number of an error of the system")
    if any(line.lower().count("did you mean") > 1 for line in both.splitlines()):
        found.append("asks twice what was meant")
    found += [f"names Python's {name}" for name in sorted(set(PYTHON.findall(both))) if name not in case.says]
    if answer.code == 2:
        found += _unclear(answer.err)
    return found


def _unclear(err: str) -> list[str]:
    """Why what is said of a refusal is not one statement at the end."""
    usage = "Usage: " in err
    complaints = len(re.findall(r"^error: ", err, re.MULTILINE)) + usage
    found = []
    if complaints > 1:
        found.append("complains more than once")
    if not usage and len(squeezed(err)) > LONGEST:
        found.append(f"takes {len(squeezed(err))} characters to say it")
    return found
