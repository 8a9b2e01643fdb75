"""`thorns audit-dp`: does a defense keep its epsilon? Lower bounds by canaries beside the accountant's upper one."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

# Heavy modules are imported inside the command, so that --help answers at once.

console = Console()


def audit_dp(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="A run whose defense promises an epsilon.")],
    trials: Annotated[int, typer.Option(min=0, max=10**7, help="Releases with or without one canary; 0: none.")] = 2000,
    canaries: Annotated[int, typer.Option(min=0, max=5000, help="Canaries in one run; 0: none.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, max=10**5, help="Releases of that one run.")] = 1,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of each bound.")] = 0.99,
    seed: Annotated[int, typer.Option(min=0, help="Of canaries, coins and noise.")] = 0,
    threads: Annotated[int, typer.Option(min=0, max=256, help="CPU threads; 0: OMP_NUM_THREADS, else all cores.")] = 0,
) -> None:
    """Audit a defense's epsilon by canaries: exit 1 if it is refuted."""
    from fl_app.analysis.audit_dp import Effort, audit_run
    from fl_app.core.ending import terminable
    from fl_app.core.machine import free_threads
    from fl_app.experiment.assets import use_threads
    from fl_app.store.runs import RunDir

    use_threads(threads or free_threads())
    with terminable(), console.status("releasing with and without canaries"):
        found = audit_run(RunDir.open(run_dir), Effort(trials, canaries, rounds, confidence, seed))
    for sentence in found.sentences():
        console.print(sentence, soft_wrap=True, highlight=False, markup=False)
    console.print(f"kept: [bold]{escape(os.path.relpath(found.save(run_dir)))}[/bold]", soft_wrap=True, highlight=False)
    if found.refuted:
        raise typer.Exit(1)
