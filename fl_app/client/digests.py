"""Were all clients sent the same weights? Each writes down a digest for every round (`client.state`); here they are compared.

Out of band: the files pass from client to client, so that no server can change them.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fl_app.store.files import RunError

LINE = re.compile(r"(\d{1,12}) ([0-9a-f]{64})")


class Agreement(NamedTuple):
    """What several clients' digests say: rounds in which they agree, and those in which they do not, with who has what."""

    same: list[int]
    different: dict[int, dict[str, str]]


def read_digests(path: Path) -> dict[int, str]:
    """Round -> digest; of a round that was asked for again, the last."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        raise RunError(f"{path} cannot be read") from None
    found = [LINE.fullmatch(line) for line in lines]
    if not found or not all(found):
        raise RunError(f"{path} is not a client's list of digests, which has a round and 64 hexadecimal digits in each line")
    return {int(one[1]): one[2] for one in found if one}


def compare(clients: Mapping[str, Mapping[int, str]]) -> Agreement:
    """Rounds that at least two clients were asked in, by whether all of these were sent the same weights."""
    rounds = sorted({number for digests in clients.values() for number in digests})
    same, different = list[int](), dict[int, dict[str, str]]()
    for number in rounds:
        sent = {name: digests[number] for name, digests in clients.items() if number in digests}
        if len(sent) < 2:
            continue
        if len(set(sent.values())) == 1:
            same.append(number)
        else:
            different[number] = sent
    return Agreement(same, different)


def words(agreement: Agreement) -> Sequence[str]:
    """What was found, in lines."""
    lines = [f"{len(agreement.same)} rounds with the same weights for all"] if agreement.same else []
    for number, sent in agreement.different.items():
        shown = ", ".join(f"{name} {digest[:16]}" for name, digest in sent.items())
        lines.append(f"round {number}: different weights: {shown}")
    return lines or ["no two of these clients were asked in the same round"]
