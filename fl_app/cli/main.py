"""`thorns`: its commands, of which `attack` is here, and how it says what is wrong."""

import logging
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from fl_app.cli.audit_dp import audit_dp
from fl_app.cli.bound import bound
from fl_app.cli.check import check
from fl_app.cli.deploy import app as deploy_app
from fl_app.cli.doctor import doctor
from fl_app.cli.fit_rule import fit_rule
from fl_app.cli.listing import data_app, list_
from fl_app.cli.new import new_app
from fl_app.cli.options import (
    ANOTHER_APP,
    Attacks,
    Classes,
    ClusterOption,
    DeviceOption,
    InputShape,
    Mean,
    Metrics,
    Model,
    Place,
    Protection,
    Std,
    VocabularyOption,
    only_for,
)
from fl_app.cli.permissions import typed, with_allow
from fl_app.cli.report import report
from fl_app.cli.results import export, gate
from fl_app.cli.run import run
from fl_app.cli.sweep import compare, sweep
from fl_app.core import halfprecision
from fl_app.core.errors import said
from fl_app.core.machine import wait_passively

# Heavy modules are imported inside the commands, so that --help answers at once.

app = typer.Typer(
    name="thorns",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # here and below: click does that itself, and once is enough
    help="How much of a client's data can a federated server rebuild, and what does a defense cost?",
)
console = Console()
errors = Console(stderr=True)


def attack(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="A run with captures (thorns run -c capture=1).")],
    attacks: Attacks = None,
    rounds: Annotated[str, typer.Option(help="Rounds to attack: all, 1, 1,3 or 1-5.")] = "all",
    clients: Annotated[str, typer.Option(help="Clients to attack: all or 0,2.")] = "all",
    grant: Annotated[
        list[str] | None, typer.Option(help="Grant the attacker: labels, lengths, defense, statistics, repeats, order.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many targets; 0: all.")] = 0,
    worker: Annotated[Place, typer.Option(help="Where attacks run.")] = Place.inline,
    cluster: ClusterOption = "",
    threads: Annotated[int, typer.Option(min=0, max=256, help="CPU threads; 0: OMP_NUM_THREADS, else all cores.")] = 0,
    device: DeviceOption = None,
    perceptual: Annotated[bool, typer.Option("--lpips/--no-lpips", help="Also score LPIPS.")] = True,
    judge: Annotated[
        Path | None, typer.Option(metavar="DIR", help="An undefended run whose model judges the reconstructions.")
    ] = None,
    noise_ratio: Annotated[
        bool, typer.Option("--noise-ratio", help="Also score the share of noise in what is rebuilt.")
    ] = False,
    metric: Metrics = None,
    candidates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask inference attacks about these: x and y as safetensors.")
    ] = None,
    informed: Annotated[bool, typer.Option("--informed/--no-informed", help="Also the attackers who know the defense.")] = True,
    model: Model = None,
    input_shape: InputShape = "",
    vocabulary: VocabularyOption = "",
    classes: Classes = 10,
    mean: Mean = "",
    std: Std = "",
    defense: Protection = None,
) -> None:
    """Attack the captures of a run, score the reconstructions and show them; what is done already is not done again.

    Without --attack it is standard: several attacks, and a choice by evidence; of a malicious server, its own read-out.
    """
    import adversary
    from fl_app.cli.attack import attack_run

    if model is not None:
        only_for(
            "runs, whose truth is known: leave it out", {"--judge": judge, "--noise-ratio": noise_ratio, "--metric": metric}
        )
        only_for("runs of our own, whose model every node can build: leave it out", {"--cluster": cluster})
        from fl_app.attacking.audit import task_of
        from fl_app.cli.audit import audit

        audit(
            console,
            run_dir,
            task_of(model, input_shape, classes, mean, std, vocabulary),
            attacks or [adversary.DEFAULT],
            rounds=rounds,
            clients=clients,
            limit=limit,
            defense=defense,
            grants=grant,
            worker_name=worker.value,
            threads=threads or None,
            device=device.value if device else "cpu",
            candidates=candidates,
        )
        return
    own = {"--input-shape": input_shape, "--vocabulary": vocabulary, "--mean": mean, "--std": std, "--defense": defense}
    only_for(ANOTHER_APP, own)
    answered = attack_run(
        console,
        run_dir,
        attacks or [],
        rounds=rounds,
        clients=clients,
        grants=grant or [],
        limit=limit,
        worker_name="ray" if cluster else worker.value,
        perceptual=perceptual,
        judge=judge,
        noise_ratio=noise_ratio,
        metrics=metric or [],
        informed=informed,
        threads=threads or None,
        device=device.value if device else None,
        candidates=candidates,
    )
    if not answered:
        raise typer.Exit(1)


def train_evaluator(
    dataset: Annotated[
        str, typer.Option(callback=typed, help="Public images: photos (in scikit-image), or a data set.")
    ] = "photos",
    clients: Annotated[
        str, typer.Option(callback=typed, help="The clients' data set: its shape is taken, its images never.")
    ] = "mnist",
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


def train_generator(
    dataset: Annotated[str, typer.Argument(callback=typed, metavar="DATASET", help="Public images: a data set, or photos.")],
    clients: Annotated[
        str, typer.Option(callback=typed, help="The clients' data set, if another; no image that they hold is learned from.")
    ] = "",
    part: Annotated[str, typer.Option(help="Part of the public set: train or test; by default what clients do not hold.")] = "",
    split: Annotated[str, typer.Option(help="The clients' split.")] = "official",
    split_seed: Annotated[int, typer.Option(min=0, help="The seed of the clients' run, by which shares are drawn.")] = 0,
    small: Annotated[bool, typer.Option("--small", help="A small one, in seconds.")] = False,
    gan: Annotated[bool, typer.Option("--gan", help="Fine-tune it against a critic, for as many steps again.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed is another generator.")] = 0,
) -> None:
    """Train a generator for attacks that search in one, on public images alone, and print its ceiling."""
    from fl_app.cli.generator import train_generator as train

    if part not in ("", "train", "test"):
        raise typer.BadParameter("the part must be train or test", param_hint="--part")
    train(
        console,
        dataset,
        clients,
        part=part,
        split=split,
        split_seed=split_seed,
        small=small,
        gan=gan,
        steps=steps,
        seed=seed,
    )


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
for command in (run, attack, bound, compare, sweep, report, gate, export):
    app.command()(command)
app.command("audit-dp")(audit_dp)
app.command("fit-rule")(fit_rule)
app.command("list")(list_)
app.add_typer(new_app, name="new")
app.command()(check)
app.command("train-evaluator")(train_evaluator)
app.command("train-generator")(train_generator)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
app.command()(doctor)


def _said(error: BaseException) -> str:
    """What an error says, for people: of the operating system's, the file and the reason without the number."""
    if isinstance(error, OSError):
        return said(error) if error.filename is None else f"{error.filename}: {said(error)}"
    return str(error) or type(error).__name__


def main() -> None:
    """Entry point: an error is one message and exit code 2 (1: a run came to nothing), never a traceback."""
    halfprecision.cap_if_known()
    wait_passively()
    try:
        with_allow(typer.main.get_command(app))()
    except (ValueError, RuntimeError, OSError) as error:
        if os.environ.get("THORNS_DEBUG"):
            raise
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        errors.print(f"[bold red]error:[/bold red] {escape(_said(cause))}", soft_wrap=True, highlight=False)
        raise SystemExit(getattr(cause, "exit_code", 2)) from None


if __name__ == "__main__":
    main()
