"""`thorns bound`: what no attack can do, without running one."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

# Heavy modules are imported inside the command, so that --help answers at once.

console = Console()


class Inputs(StrEnum):
    """Where an update is differentiated."""

    true = "true"
    public = "public"


def bound(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="A run with captures (thorns run -c capture=1).")],
    rounds: Annotated[str, typer.Option(help="Rounds to look at: all, 1, 1,3 or 1-5.")] = "all",
    clients: Annotated[str, typer.Option(help="Clients to look at: all or 0,2.")] = "all",
    limit: Annotated[int, typer.Option(min=0, help="At most so many targets; 0: all.")] = 4,
    at: Annotated[
        Inputs, typer.Option(help="At the clients' own examples, which the judge of a run knows, or at public ones.")
    ] = Inputs.true,
    directions: Annotated[int, typer.Option(min=0, help="Directions tried per Jacobian; 0: all where that is quick.")] = 0,
    components: Annotated[int, typer.Option(min=0, help="Directions of the prior; 0: all where that is quick.")] = 0,
    draws: Annotated[int, typer.Option(min=8, help="Images of the prior at which the information is taken.")] = 8,
    threads: Annotated[int, typer.Option(min=0, max=256, help="CPU threads; 0: OMP_NUM_THREADS, else all cores.")] = 0,
) -> None:
    """Bound what any attack can rebuild: equations against unknowns, Fisher information, differential privacy."""
    from fl_app.analysis.bounds.run import Bounding, Effort
    from fl_app.cli.attack_bar import bar_of
    from fl_app.core.ending import terminable
    from fl_app.core.machine import free_threads
    from fl_app.experiment.assets import use_threads
    from fl_app.store.runs import RunDir

    use_threads(threads or free_threads())
    effort = Effort(at=at.value, directions=directions, components=components, draws=draws)
    work = Bounding(RunDir.open(run_dir), effort, rounds, clients, limit)
    with terminable(), bar_of(console, "directions") as bar:
        task = bar.add_task("", total=work.total())
        found = work.run(lambda number: bar.advance(task, number))
    for sentence in found.sentences():
        console.print(sentence, soft_wrap=True, highlight=False, markup=False)
    console.print(f"kept: [bold]{escape(os.path.relpath(found.save(run_dir)))}[/bold]", soft_wrap=True, highlight=False)
