"""`thorns report`: one page for a run or sweep."""

import os
from pathlib import Path
from typing import Annotated

import typer


def report(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a comparison or a sweep.")],
) -> None:
    """Write report.html: what was run, what leaks, what it costs; tables and curves as files are in report/ beside it."""
    from rich.console import Console
    from rich.markup import escape

    from fl_app.report import write_report
    from fl_app.sweeps.live import say

    console = Console()
    written = write_report(path)
    console.print(f"report: [bold]{escape(os.path.relpath(written))}[/bold]", soft_wrap=True)
    say(console, f"tables and curves: {os.path.relpath(written.parent / 'report')}")
