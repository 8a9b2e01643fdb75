"""`thorns`: run experiments, list what there is, fetch data."""

import logging
import os
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from fl_app.cli_deploy import app as deploy_app
from fl_app.cli_report import report
from fl_app.cli_results import export, gate
from fl_app.cli_sweep import compare, sweep

# Heavy modules are imported inside the commands, so that --help answers at once.
if TYPE_CHECKING:
    from fl_app.config import Experiment
    from fl_app.runs import RunDir

    Start = Callable[..., RunDir]

app = typer.Typer(
    name="thorns",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="How much of a client's data can a federated server rebuild, and what does a defense cost?",
)
data_app = typer.Typer(no_args_is_help=True, help="Fetch data sets and see where they are.")
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
app.command()(sweep)
app.command()(compare)
app.command()(report)
app.command()(gate)
app.command()(export)
console = Console()
errors = Console(stderr=True)


class Engine(StrEnum):
    """Where clients run."""

    inline = "inline"
    ray = "ray"


class Workplace(StrEnum):
    """Where attacks run."""

    inline = "inline"
    ray = "ray"


class Kind(StrEnum):
    """What can be listed."""

    attacks = "attacks"
    defenses = "defenses"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    optimizers = "optimizers"
    engines = "engines"
    settings = "settings"


@app.command()
def run(
    setting: Annotated[list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="Change a setting.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings from a TOML file; -c comes on top.")] = None,
    engine: Annotated[Engine, typer.Option(help="Where the clients run.")] = Engine.inline,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this directory.")] = None,
) -> None:
    """Run an experiment, or go on with one that was stopped."""
    from fl_app import engines

    start = partial(engines.run, engine=engine.value, resume=resume is not None)
    run_and_report(experiment_of(setting, config, resume), engine.value, start)


def experiment_of(setting: list[str] | None, config: Path | None, resume: Path | None) -> "Experiment":
    """The experiment that a command line describes, with its run directory."""
    from fl_app.config import ConfigError, Experiment, from_run_config, parse_assignment, read_toml
    from fl_app.runs import RunDir, new_path

    changes = dict(parse_assignment(text) for text in setting or [])
    if resume is not None:
        if config is not None:
            raise ConfigError("--resume takes the settings of the run; leave out --config")
        base: dict[str, Any] = RunDir.open(resume).experiment().run_config()
        fixed = [key for key in changes if key not in ("rounds", "eval-every")]
        if fixed:
            raise ConfigError(
                f"a resumed run keeps its settings; only rounds and eval-every can change, not {', '.join(fixed)}"
            )
        return from_run_config({**base, **changes, "run-dir": str(resume.resolve())})
    base = read_toml(config) if config else Experiment().run_config()
    experiment = from_run_config({**base, **changes})
    path = Path(experiment.run_dir) if experiment.run_dir else new_path(experiment, Path("runs"))
    return experiment.changed(run_dir=str(path.resolve()))


def run_and_report(experiment: "Experiment", engine: str, start: "Start") -> None:
    """Run an experiment behind a progress bar, say how it went, and attack it if it asks for that."""
    from fl_app.progress import ProgressBar

    with ProgressBar(console, engine) as watcher:
        finished = start(experiment=experiment, watcher=watcher)
    scored = [line for line in finished.metrics() if "accuracy" in line]
    shown = os.path.relpath(finished.path)
    if watcher.interrupted:
        console.print(f"Stopped after round {watcher.round}. Go on with: [bold]thorns run --resume {shown}[/bold]")
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
        from fl_app.cli_attack import attack_run

        attack_run(
            console,
            finished.path,
            [experiment.attack],
            grants=[experiment.grant],
            worker_name=experiment.worker,
            adaptive=experiment.adaptive,
        )


@app.command()
def attack(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="A run with captures (thorns run -c capture=1).")],
    attacks: Annotated[list[str] | None, typer.Option("--attack", metavar="SPEC", help="An attack; may be repeated.")] = None,
    rounds: Annotated[str, typer.Option(help="Rounds to attack: all, 1, 1,3 or 1-5.")] = "all",
    clients: Annotated[str, typer.Option(help="Clients to attack: all or 0,2.")] = "all",
    grant: Annotated[list[str] | None, typer.Option(help="Grant the attacker: labels, defense, statistics, repeats.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many targets; 0: all.")] = 0,
    worker: Annotated[Workplace, typer.Option(help="Where attacks run.")] = Workplace.inline,
    perceptual: Annotated[bool, typer.Option("--lpips/--no-lpips", help="Also score LPIPS.")] = True,
    judge: Annotated[Path | None, typer.Option(metavar="DIR", help="An undefended run whose model judges the guesses.")] = None,
    noise_ratio: Annotated[bool, typer.Option("--noise-ratio", help="Also score the share of noise in the guesses.")] = False,
    adaptive: Annotated[bool, typer.Option("--adaptive/--naive", help="Also the attacker who knows the defense.")] = True,
    model: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="Audit another app: the model in DIR.")] = None,
    input_shape: Annotated[str, typer.Option(metavar="1,8,8", help="With --model: the shape of an input.")] = "",
    classes: Annotated[int, typer.Option(min=2, help="With --model: the number of classes.")] = 10,
    mean: Annotated[str, typer.Option(help="With --model: what the app subtracts from its inputs, by channel.")] = "",
    std: Annotated[str, typer.Option(help="With --model: what it then divides them by.")] = "",
    defense: Annotated[str | None, typer.Option(metavar="SPEC", help="With --model: grant the clients' defense.")] = None,
) -> None:
    """Attack the captures of a run, score the guesses and show them; what is done already is not done again."""
    from fl_app.cli_attack import attack_run

    chosen = attacks or ["inverting_gradients"]
    if model is not None:
        from fl_app.audit import audit, normalization, shape_of

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


@app.command("train-evaluator")
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
    from fl_app.cli_evaluator import train_evaluator as train

    train(console, dataset, clients, part=part, split=split, width=width, steps=steps, seed=seed, paper=paper)


@app.command("list")
def list_(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List what a setting can be, with its own settings and their defaults."""
    import adversary
    import client_defenses
    from adversary.adaptive import PAIRS
    from fl_app import engines, models, spec
    from fl_app.config import Experiment
    from fl_app.data import DATASETS
    from fl_app.data.partitions import PARTITIONS
    from strategies.optimizers import OPTIMIZERS

    table = Table("name", "settings", "what it is", box=None, header_style="bold")
    registries: dict[Kind, Any] = {
        Kind.attacks: adversary.ATTACKS,
        Kind.defenses: client_defenses.DEFENSES,
        Kind.models: models.MODELS,
        Kind.datasets: DATASETS,
        Kind.partitions: PARTITIONS,
        Kind.optimizers: OPTIMIZERS,
    }
    if kind is Kind.defenses:
        table = Table("name", "what it is; its settings; what an attacker does who knows it", box=None, header_style="bold")
        for name, factory in client_defenses.DEFENSES.items():
            settings, words = spec.describe(factory)
            lines = [words, f"[dim]{escape(settings)}[/dim]", f"[italic]attacker: {PAIRS[name].why}[/italic]"]
            table.add_row(name, "\n".join(line for line in lines if line), end_section=True)
    elif kind in registries:
        for name, factory in registries[kind].items():
            table.add_row(name, *spec.describe(factory))
    elif kind is Kind.engines:
        for name, text in engines.ENGINES.items():
            table.add_row(name, "", text)
    else:
        for name, value in Experiment().run_config().items():
            table.add_row(name, repr(value), Experiment.model_fields[name.replace("-", "_")].description)
    console.print(table)


@data_app.command("list")
def data_list() -> None:
    """List the data sets and which of them are on this machine."""
    from fl_app import data, spec

    table = Table("name", "here", "what it is", box=None, header_style="bold")
    for name, factory in data.DATASETS.items():
        needed = any(setting.required for setting in spec.settings_of(factory).values())
        here = "-" if needed else ("yes" if data.cached_file(data.recipe_of(name)).exists() else "no")
        table.add_row(name, here, spec.describe(factory)[1])
    console.print(table)
    console.print(f"Kept in {data.cache_dir()} (set THORNS_DATA to change it)", soft_wrap=True)


@data_app.command("get")
def data_get(names: Annotated[list[str], typer.Argument(help="Data sets, e.g. mnist or \"medmnist(kind='blood')\".")]) -> None:
    """Fetch data sets from the first source that has them, and check them."""
    from fl_app import data

    for recipe in [data.recipe_of(name) for name in names]:
        with console.status(f"{recipe.key} ..."):
            path = data.fetch(recipe)
        console.print(f"{recipe.key}: {path}", soft_wrap=True)


@data_app.command("path")
def data_path(name: Annotated[str, typer.Argument(help="A data set.")]) -> None:
    """Say where a data set is kept, and where to put its files by hand."""
    from fl_app import data

    recipe = data.recipe_of(name)
    path = data.cached_file(recipe)
    console.print(str(path), soft_wrap=True)
    if not path.exists():
        errors.print(f"not there yet; files put into {data.cache_dir() / 'raw' / recipe.key} are used first", soft_wrap=True)


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


def main() -> None:
    """Entry point: an error that a person can act on is one message and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, RuntimeError, OSError) as error:
        if os.environ.get("THORNS_DEBUG"):
            raise
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        errors.print(f"[bold red]error:[/bold red] {_plain(cause)}", soft_wrap=True, highlight=False)
        raise SystemExit(2) from None


def _plain(error: BaseException) -> str:
    return escape(str(error) or type(error).__name__)


if __name__ == "__main__":
    main()
