"""`thorns sweep` and `thorns compare`: many runs and attacks, side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fl_app.cli.options import Attacks, ClusterOption, Metrics, Settings
from fl_app.cli.permissions import typed

# Heavy modules are imported inside the commands, so that --help answers at once.

Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where results go; a sweep that is there goes on.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes; 1: only this one, 0: one per core or GPU; of a cluster, too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, show the cells and how long they take, and end.")]


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A sweep file (see configs/), or the folder of a sweep.")],
    scale: Annotated[str, typer.Option(metavar="NAME", help="One of the scales that the file names.")] = "",
    out: Out = None,
    workers: Workers = 0,
    cluster: ClusterOption = "",
    dry_run: DryRun = False,
) -> None:
    """Train and attack every combination in a file; what is finished is not done again."""
    from fl_app.sweeps.command import sweep as start

    start(Console(), file, out, workers, scale=scale, dry_run=dry_run)


def compare(
    defenses: Annotated[
        list[str], typer.Argument(metavar="SPEC ...", callback=typed, help='Defenses, e.g. "prune(ratio={0.5,0.9})".')
    ],
    setting: Settings = None,
    attack: Attacks = None,
    targets: Annotated[int, typer.Option(min=1, help="Clients of one example each that are attacked.")] = 8,
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds, from 0 on.")] = 1,
    grant: Annotated[
        str, typer.Option(help="What attackers are told: labels, lengths, defense, statistics, repeats, order.")
    ] = "",
    lpips: Annotated[bool, typer.Option(help="Also score LPIPS.")] = True,
    metric: Metrics = None,
    out: Out = None,
    workers: Workers = 0,
    cluster: ClusterOption = "",
    dry_run: DryRun = False,
) -> None:
    """A quick look at what some defenses cost and leak: a short training (on MNIST), a few clients attacked."""
    from fl_app.sweeps.command import compare as start

    start(
        Console(),
        defenses,
        setting or [],
        attack or [],
        targets=targets,
        seeds=seeds,
        grant=grant,
        lpips=lpips,
        metrics=metric or [],
        out=out,
        workers=workers,
        dry_run=dry_run,
    )
