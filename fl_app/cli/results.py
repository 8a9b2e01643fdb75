"""`thorns gate` and `thorns export`: judge and hand on what runs and sweeps came to, after the attacks that it needs."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fl_app.cli.options import (
    ANOTHER_APP,
    Classes,
    DeviceOption,
    InputShape,
    Mean,
    Metrics,
    Model,
    Protection,
    Std,
    VocabularyOption,
    only_for,
)
from fl_app.cli.permissions import typed

if TYPE_CHECKING:
    from fl_app.analysis.gate import Ruling

# Heavy modules are imported inside the commands, so that --help answers at once.

errors = Console(stderr=True)
TENSORBOARD = "tensorboard:"
OFF = "off"


class What(StrEnum):
    """What a row of an exported table is."""

    targets = "targets"
    rounds = "rounds"
    summary = "summary"


def export(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A run or a sweep.")],
    to: Annotated[str, typer.Option(metavar="FILE", help="FILE.csv, .jsonl or .parquet, or tensorboard:FOLDER.")],
    what: Annotated[What, typer.Option(help="One row per target, round, or attack.")] = What.targets,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it is there.")] = False,
) -> None:
    """Write a run or sweep as one tidy table, or as TensorBoard events."""
    from fl_app.report import export as tables
    from fl_app.report import tensorboard

    if to.startswith(TENSORBOARD):
        folder = Path(to.removeprefix(TENSORBOARD))
        if to == TENSORBOARD:
            raise ValueError("--to tensorboard: needs a folder, as in tensorboard:FOLDER")
        places = tensorboard.export(tables.read_checked(path), folder)
        typer.echo(f"{len(places)} cells; look at them with: tensorboard --logdir {folder}")
        return
    tables.writer_of(Path(to))  # refuse a name before anything is read
    if os.path.lexists(to) and not overwrite:
        raise ValueError(f"{to} is there already: choose another name, or replace it with --overwrite")
    study = tables.read_checked(path)
    for problem in study.problems:
        errors.print(f"left out: {problem}", markup=False, highlight=False, soft_wrap=True)
    rows = tables.TABLES[what.value](study)
    if not rows:
        raise ValueError(f"{path} has no {what.value} to export: nothing was recorded yet")
    tables.save(rows, Path(to))
    typer.echo(f"{to}: {len(rows)} rows of {what.value}")


def gate(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a sweep, or captures of another app (with --model).")],
    psnr: Annotated[str | None, typer.Option(help="Another threshold: it leaks above so many dB; off: do not look.")] = None,
    ssim: Annotated[str | None, typer.Option(help="Another threshold: it leaks above this; off: do not look.")] = None,
    lpips: Annotated[str | None, typer.Option(help="Another threshold: it leaks below this; off: do not look.")] = None,
    rouge1: Annotated[str | None, typer.Option(help="Of text: it leaks above this ROUGE-1 in percent; off.")] = None,
    rouge_l: Annotated[str | None, typer.Option(help="Of text: it leaks above this ROUGE-L in percent; off.")] = None,
    token_f1: Annotated[str | None, typer.Option(help="Of text: it leaks above this F1 of tokens in percent; off.")] = None,
    exact: Annotated[str | None, typer.Option(help="Of text: it leaks above so many percent exact sentences; off.")] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="METRIC=VALUE", help="A threshold of any metric, or off; may be repeated.")
    ] = None,
    tpr_at_fpr: Annotated[
        str | None, typer.Option(metavar="RATE:SHARE", help="It leaks if more members are found at this rate of false ones.")
    ] = None,
    empirical_epsilon: Annotated[
        float | None, typer.Option(min=0, help="It leaks if the canary audit (thorns audit-dp) finds more than this.")
    ] = None,
    metric: Metrics = None,
    attacks: Annotated[
        list[str] | None, typer.Option("--attack", metavar="SPEC", callback=typed, help="Judge this; run it if needed.")
    ] = None,
    cells: Annotated[list[str] | None, typer.Option("--cell", metavar="PATTERN", help="Of a sweep: only these cells.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="Judge the worst single target, not the mean.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The whole verdict as JSON.")] = False,
    truth: Annotated[Path | None, typer.Option(metavar="FILE", help="With --model: what the clients used.")] = None,
    candidates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --model and --tpr-at-fpr: examples x and y that it is about.")
    ] = None,
    model: Model = None,
    input_shape: InputShape = "",
    vocabulary: VocabularyOption = "",
    classes: Classes = 10,
    mean: Mean = "",
    std: Std = "",
    defense: Protection = None,
    device: DeviceOption = None,
) -> None:
    """Fail if an attack rebuilds the data: exit 0 passed, 1 leak, 2 could not judge."""
    try:
        from fl_app.analysis.gate import UNJUDGED

        named = {"psnr": psnr, "ssim": ssim, "lpips": lpips, "rouge1": rouge1, "rouge_l": rouge_l, "token_f1": token_f1}
        asked = _thresholds(named | {"exact": exact}, limit or [])
        if model is None:
            own = {"--truth": truth, "--input-shape": input_shape, "--mean": mean, "--std": std, "--defense": defense}
            only_for(ANOTHER_APP, {**own, "--candidates": candidates, "--vocabulary": vocabulary})
            where = device.value if device else None
            verdict = _judge_study(
                path, asked, attacks or [], cells or [], metric or [], tpr_at_fpr, empirical_epsilon, worst=worst, device=where
            )
        else:
            only_for("runs and sweeps", {"--empirical-epsilon": empirical_epsilon is not None})
            from fl_app.analysis.gate_app import judge_app, members_of
            from fl_app.analysis.limits import limits_of
            from fl_app.attacking.audit import task_of
            from fl_app.experiment.assets import device_of
            from fl_app.scoring.metrics import with_plugged

            metrics = with_plugged(metric or [])
            limits = limits_of(metrics, asked)
            task = task_of(model, input_shape, classes, mean, std, vocabulary)
            place = device_of(device.value if device else "cpu")
            verdict = judge_app(
                errors,
                path,
                task,
                defense,
                limits,
                attacks or [],
                truth,
                worst=worst,
                metrics=metrics,
                device=place,
                members=members_of(tpr_at_fpr, candidates, task),
            )
    except (ValueError, RuntimeError, OSError):
        raise
    except Exception as error:  # an exit code of 1 says "leak": nothing unforeseen may end with it
        raise ValueError(f"{path} cannot be judged: {type(error).__name__}: {error}") from error
    shown = verdict.doubts[1:] if verdict.code == UNJUDGED else verdict.doubts  # the first one is the line then
    for note in [*verdict.notes, *shown]:
        errors.print(note, markup=False, highlight=False, soft_wrap=True)
    typer.echo(json.dumps(verdict.as_json(), indent=1) if as_json else verdict.line())
    raise typer.Exit(verdict.code)


def _thresholds(named: dict[str, str | None], limits: list[str]) -> dict[str, float | None]:
    """Threshold -> its value, None if it is off; only those that somebody asked for."""
    given = {name: text for name, text in named.items() if text is not None}
    for words in limits:
        name, sign, text = words.partition("=")
        if not sign:
            raise ValueError(f"--limit takes METRIC=VALUE, such as psnr=20 or ssim=off, not {words!r}")
        given[name.strip()] = text.strip()
    found: dict[str, float | None] = {}
    for name, text in given.items():
        try:
            found[name] = None if text == OFF else float(text)
        except ValueError:
            raise ValueError(f"the threshold of {name} is a number or 'off', not {text!r}") from None
    return found


def _judge_study(
    path: Path,
    asked: dict[str, float | None],
    attacks: list[str],
    cells: list[str],
    metrics: list[str],
    tpr_at_fpr: str | None,
    empirical_epsilon: float | None,
    *,
    worst: bool,
    device: str | None,
) -> "Ruling":
    """Judge a run or sweep; attacks that were named and are not scored yet are run first."""
    from fl_app.analysis.gate import Ruling, chosen, judge, perceptual
    from fl_app.analysis.gate_privacy import at_rate, judge_epsilon, judge_membership
    from fl_app.analysis.limits import limits_of
    from fl_app.attacking.audit import of_another_app
    from fl_app.report.export import read_checked
    from fl_app.scoring.metrics import with_plugged

    if of_another_app(path):
        raise ValueError(
            f"{path} holds captures of another app: add --model MODULE:FUNCTION --input-shape SHAPE, and --truth "
            "FILE.safetensors with what its clients used, as a reconstruction can only be judged against that (docs/gate.md)"
        )
    rate = at_rate(tpr_at_fpr) if tpr_at_fpr is not None else None
    study, plugged = read_checked(path), with_plugged(metrics)
    limits = limits_of({**study.measures, **plugged}, asked)
    runs = {cell.attacked.path: {one.asked for one in cell.attacks} for cell in chosen(study, cells) if cell.attacked}
    waiting = [(place, text) for place, scored in runs.items() for text in attacks if text not in scored]
    if waiting:
        from fl_app.cli.attack import attack_run

        for place, text in waiting:
            attack_run(errors, place, [text], grants=[], perceptual=perceptual(limits), metrics=metrics, device=device)
        study = read_checked(path)
    others = rate is not None or empirical_epsilon is not None
    rebuilt = any(not one.question for cell in chosen(study, cells) for one in cell.attacks)
    # Who asks for these alone has no reconstruction to judge.
    whole = judge(study, limits, attacks=attacks, cells=cells, worst=worst) if rebuilt or not others else Ruling()
    if rate is not None:
        whole.add(judge_membership(study, rate, attacks, cells))
    if empirical_epsilon is not None:
        whole.add(judge_epsilon(study, empirical_epsilon, cells))
    return whole
