"""Tables as CSV that a spreadsheet can open: no text in it is taken for a formula."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes a text for a formula by, if it begins with it."""


def guarded(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is kept a text; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; the columns are all keys in the order of their first row, and what is missing is empty."""
    out = io.StringIO(newline="")
    names = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([guarded(name) for name in names])
    writer.writerows([guarded(row.get(name)) for name in names] for row in rows)
    return out.getvalue()
