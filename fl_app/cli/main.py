"""`thorns`: its commands, of which `run` and `attack` are here, and how it says what is wrong."""

import logging
import os
import shlex
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from fl_app.cli.deploy import app as deploy_app
from fl_app.cli.listing import data_app, list_
from fl_app.cli.options import Attacks, Classes, Config, InputShape, Mean, Model, Resume, Settings, Std
from fl_app.cli.report import report
from fl_app.cli.results import export, gate
from fl_app.cli.sweep import compare, sweep

# Heavy modules are imported inside the commands, so that --help answers at once.
if TYPE_CHECKING:
    from fl_app.experiment.config import Experiment
    from fl_app.store.runs import RunDir

    Start = Callable[..., RunDir]

app = typer.Typer(
    name="thorns",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="How much of a client's data can a federated server rebuild, and what does a defense cost?",
)
console = Console()
errors = Console(stderr=True)


class Place(StrEnum):
    """Where clients or attacks run."""

    inline = "inline"
    ray = "ray"


def run(
    setting: Settings = None,
    config: Config = None,
    engine: Annotated[Place, typer.Option(help="Where the clients run.")] = Place.inline,
    resume: Resume = None,
) -> None:
    """Run an experiment, or go on with one that was stopped."""
    from fl_app import engines

    start = partial(engines.run, engine=engine.value, resume=resume is not None)
    run_and_report(asked_for(setting, config, resume), engine.value, start)


def asked_for(setting: list[str] | None, config: Path | None, resume: Path | None) -> "Experiment":
    """The experiment that a command line describes, with its run directory."""
    import adversary
    from fl_app.experiment.config import MAY_CHANGE, ConfigError, Experiment, from_run_config, parse_assignment, read_toml
    from fl_app.experiment.runs import experiment_of, new_path
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
        again = escape(shlex.join(["thorns", "run", "--resume", shown]))
        console.print(f"Stopped after round {watcher.round}. Go on with: [bold]{again}[/bold]", soft_wrap=True)
        raise typer.Exit(130)
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
    console.print(f"Results: [bold]{shown}[/bold]", soft_wrap=True)
    if experiment.attack != "none":
        from fl_app.cli.attack import attack_run

        attack_run(
            console,
            finished.path,
            [experiment.attack],
            grants=[experiment.grant],
            worker_name=experiment.worker,
            adaptive=experiment.informed,
        )


def attack(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="A run with captures (thorns run -c capture=1).")],
    attacks: Attacks = None,
    rounds: Annotated[str, typer.Option(help="Rounds to attack: all, 1, 1,3 or 1-5.")] = "all",
    clients: Annotated[str, typer.Option(help="Clients to attack: all or 0,2.")] = "all",
    grant: Annotated[list[str] | None, typer.Option(help="Grant the attacker: labels, defense, statistics, repeats.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many targets; 0: all.")] = 0,
    worker: Annotated[Place, typer.Option(help="Where attacks run.")] = Place.inline,
    perceptual: Annotated[bool, typer.Option("--lpips/--no-lpips", help="Also score LPIPS.")] = True,
    judge: Annotated[Path | None, typer.Option(metavar="DIR", help="An undefended run whose model judges the guesses.")] = None,
    noise_ratio: Annotated[bool, typer.Option("--noise-ratio", help="Also score the share of noise in the guesses.")] = False,
    adaptive: Annotated[bool, typer.Option("--adaptive/--naive", help="Also the attacker who knows the defense.")] = True,
    model: Model = None,
    input_shape: InputShape = "",
    classes: Classes = 10,
    mean: Mean = "",
    std: Std = "",
    defense: Annotated[str | None, typer.Option(metavar="SPEC", help="With --model: grant the clients' defense.")] = None,
) -> None:
    """Attack the captures of a run, score the guesses and show them; what is done already is not done again."""
    from fl_app.cli.attack import attack_run

    chosen = attacks or ["inverting_gradients"]
    if model is not None:
        from fl_app.attacking.audit import audit, normalization, shape_of

        audit(
            console,
            run_dir,
            model,
            shape_of(input_shape),
            classes,
            chosen,
            rounds=rounds,
            clients=clients,
            limit=limit,
            normalize=normalization(mean, std),
            defense=defense,
            grants=grant,
            worker_name=worker.value,
        )
        return
    attack_run(
        console,
        run_dir,
        chosen,
        rounds=rounds,
        clients=clients,
        grants=grant or [],
        limit=limit,
        worker_name=worker.value,
        perceptual=perceptual,
        judge=judge,
        noise_ratio=noise_ratio,
        adaptive=adaptive,
    )


def train_evaluator(
    dataset: Annotated[str, typer.Option(help="Public images: photos (in scikit-image), or a data set.")] = "photos",
    clients: Annotated[str, typer.Option(help="The clients' data set: its shape is taken, its images never.")] = "mnist",
    part: Annotated[str, typer.Option(help="Part of the public set: train or test.")] = "train",
    split: Annotated[str, typer.Option(help="The clients' split.")] = "official",
    width: Annotated[int | None, typer.Option(min=1, help="Filters of the first layer.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed is another network.")] = 0,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's size and training.")] = False,
) -> None:
    """Train an evaluation network for refiner and the noise ratio on public images, unless it is there."""
    from fl_app.cli.evaluator import train_evaluator as train

    train(console, dataset, clients, part=part, split=split, width=width, steps=steps, seed=seed, paper=paper)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and every log line.")] = False,
) -> None:
    """Set up the log."""
    level = logging.DEBUG if debug else logging.INFO
    handler = RichHandler(console=errors, show_path=False, show_time=False, show_level=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler], force=True)
    logging.getLogger("thorns").setLevel(level)
    os.environ["THORNS_DEBUG"] = "1" if debug else ""


# In the order in which they are listed.
for command in (run, attack, compare, sweep, report, gate, export):
    app.command()(command)
app.command("list")(list_)
app.command("train-evaluator")(train_evaluator)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")


def main() -> None:
    """Entry point: an error that a person can act on is one message and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, RuntimeError, OSError) as error:
        if os.environ.get("THORNS_DEBUG"):
            raise
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        errors.print(
            f"[bold red]error:[/bold red] {escape(str(cause) or type(cause).__name__)}", soft_wrap=True, highlight=False
        )
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
