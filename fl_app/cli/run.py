"""`thorns run`: the experiment that a command line describes, done behind a progress bar."""

import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fl_app.cli.options import ClusterOption, Config, Resume, Settings, only_for
from fl_app.core import plugins

# Heavy modules are imported inside the commands, so that --help answers at once.
if TYPE_CHECKING:
    from fl_app.experiment.config import Experiment
    from fl_app.store.runs import RunDir

    Start = Callable[..., RunDir]

console = Console()


def run(
    setting: Settings = None,
    config: Config = None,
    engine: Annotated[str, typer.Option(metavar="NAME", help="Where the clients run: see thorns list engines.")] = "inline",
    resume: Resume = None,
    workers: Annotated[
        int, typer.Option(min=0, max=1024, help="Processes to compute clients in, same results; 0: one per core.")
    ] = 0,
    cluster: ClusterOption = "",
) -> None:
    """Run an experiment, or go on with one that was stopped."""
    from fl_app import engines

    if engine != "ray":
        only_for("--engine ray", {"--cluster": cluster})
    start = partial(engines.run, engine=engine, resume=resume is not None, workers=workers)
    run_and_report(asked_for(setting, config, resume), engine, start)


def asked_for(setting: list[str] | None, config: Path | None, resume: Path | None) -> "Experiment":
    """The experiment that a command line describes, with its run directory."""
    import adversary
    from fl_app.experiment.config import MAY_CHANGE, Experiment, from_run_config, read_toml
    from fl_app.experiment.grants import parse_grants
    from fl_app.experiment.runs import experiment_of, new_path
    from fl_app.experiment.toml import ConfigError, parse_assignment
    from fl_app.store.runs import RunDir

    changes = dict(parse_assignment(text) for text in setting or [])
    if resume is not None:
        if config is not None:
            raise ConfigError("--resume takes the settings of the run; leave out --config")
        run = RunDir.open(resume)
        fixed = [key for key in changes if key not in MAY_CHANGE]
        if fixed:
            raise ConfigError(
                f"a resumed run keeps its settings; only {', '.join(MAY_CHANGE)} can change, not {', '.join(fixed)}"
            )
        experiment = from_run_config({**experiment_of(run).run_config(), **changes, "run-dir": str(resume.resolve())})
        done = kept.server_round if (kept := run.load_checkpoint()) else 0
        if done > experiment.rounds:
            raise ConfigError(f"{resume} is at round {done} of {experiment.rounds}: add -c rounds=N, N above {done}")
        return experiment
    base: dict[str, Any] = read_toml(config) if config else Experiment().run_config()
    experiment = from_run_config({**base, **changes})
    if experiment.attack != "none":
        adversary.build(experiment.attack)  # refused now, not after the training
        parse_grants([experiment.grant])
    path = Path(experiment.run_dir) if experiment.run_dir else new_path(experiment, Path("runs"))
    return experiment.changed(run_dir=str(path.resolve()))


def run_and_report(experiment: "Experiment", engine: str, start: "Start") -> None:
    """Run an experiment behind a progress bar, say how it went, and attack it if it asks for that."""
    from fl_app.attacking.background import beside
    from fl_app.cli.progress import ProgressBar

    with ProgressBar(console, engine) as watcher:
        finished = start(experiment=experiment, watcher=watcher, make_beside=beside)
    scored = [line for line in finished.metrics() if "accuracy" in line]
    shown = os.path.relpath(finished.path)
    if watcher.interrupted:
        command = escape(shlex.join(plugins.again(["thorns", "run", "--resume", shown])))
        console.print(f"Stopped after round {watcher.round}. Go on with: [bold]{command}[/bold]", soft_wrap=True)
        raise typer.Exit(128 + watcher.interrupted)
    if scored:
        last = scored[-1]
        console.print(
            f"Round {last['round']}: accuracy [bold]{last['accuracy']:.4f}[/bold], macro F1 {last['macro_f1']:.4f}, "
            f"loss {last['loss']:.4f}"
        )
        if "epsilon" in last:
            console.print(
                f"epsilon {last['epsilon']:.3g} at delta {last['delta']:.0e} for one example of a client, given the batches as "
                f"they are drawn ({last['epsilon_if_sampled']:.3g} if they were Poisson samples) and a secret seed",
                highlight=False,
                soft_wrap=True,
            )
    if experiment.warning:
        console.print(f"[bold red]{escape(experiment.warning)}[/bold red]", highlight=False, soft_wrap=True)
    console.print(f"Results: [bold]{escape(shown)}[/bold]", soft_wrap=True)
    if experiment.attack != "none":
        from fl_app.cli.attack import attack_run

        answered = attack_run(
            console,
            finished.path,
            [experiment.attack],
            grants=[experiment.grant],
            worker_name=experiment.worker,
            informed=experiment.informed,
        )
        if not answered:
            raise typer.Exit(1)
