"""`thorns attack`: attack captures, score, show."""

import os
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

import adversary
from fl_app.analysis.contest import Contender, worst
from fl_app.attacking.attackers import AT_ONCE, informed_of, sessions_of
from fl_app.attacking.jobs import Outcome
from fl_app.attacking.session import Session
from fl_app.attacking.worker import make_worker
from fl_app.core.local import Tensors
from fl_app.core.observation import Key
from fl_app.core.selection import select
from fl_app.experiment.assets import assets_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import JUDGING, ensure
from fl_app.experiment.grants import knowledge_of, parse_grants
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.attacks import Scoring
from fl_app.scoring.score import Summary
from fl_app.store.files import RunError
from fl_app.store.runs import RunDir


def attack_run(
    console: Console,
    path: Path,
    attacks: list[str],
    *,
    rounds: str = "all",
    clients: str = "all",
    grants: list[str],
    limit: int = 0,
    worker_name: str = "inline",
    perceptual: bool = True,
    judge: Path | None = None,
    noise_ratio: bool = False,
    adaptive: bool = True,
) -> None:
    """Attack, score and show; every name is checked before the first attack starts."""
    run, granted = RunDir.open(path), parse_grants(grants)
    for text in attacks:
        adversary.build(text)
    in_round, of_client = select(rounds, 1, "rounds"), select(clients, 0, "clients")
    experiment = experiment_of(run)
    assets = assets_of(experiment)
    judged_by = _judge(judge, experiment) if judge else None
    evaluator = ensure(experiment.dataset, split=experiment.split, training=JUDGING, console=console) if noise_ratio else None
    worker = make_worker(worker_name)
    try:
        for text in attacks:
            first = Session(run, text, granted, worker)
            keys = [key for key in first.captured() if key[0] in in_round and (key[1] == -1 or key[1] in of_client)]
            if not keys:
                raise RunError(f"{path} has {_spans(first.captured())}, none of --rounds {rounds} --clients {clients}")
            keys = keys[: limit or None]
            for key in keys[:1]:
                knowledge_of(assets, granted, key, None)  # refuse a false grant before any work
            contenders: list[Contender] = []
            for session in sessions_of(first, keys, adaptive=adaptive):
                _attack(console, session, keys)
                with _bar(console, "scoring") as bar:
                    task = bar.add_task("", total=len(keys))
                    scoring = Scoring(
                        assets,
                        session.folder,
                        session.failures(),
                        perceptual=perceptual,
                        judge=judged_by,
                        evaluator=evaluator,
                        floors=not contenders,  # they are the same for all
                    ).run(keys, lambda task=task, bar=bar: bar.advance(task))  # type: ignore[misc]
                contenders.append(Contender(session, scoring))
            _show(console, contenders)
            for one in informed_of(first, keys) if adaptive else []:
                if one.attack is None:
                    name = f"adaptive: {one.name}" if one.name else "adaptive"
                    console.print(f"{name} left out: {one.why_not}", highlight=False, soft_wrap=True)
            _picture(console, contenders)
    except KeyboardInterrupt:
        console.print("Stopped. What was finished is kept; the same command goes on.")
        raise typer.Exit(130) from None
    finally:
        worker.close()


def _spans(captured: list[Key]) -> str:
    """What there is, for somebody who asked for something else."""
    rounds, clients = (sorted({key[part] for key in captured}) for part in (0, 1))
    return f"captures of rounds {rounds[0]} to {rounds[-1]} and clients {clients[0]} to {clients[-1]}"


def _judge(path: Path, experiment: Experiment) -> tuple[nn.Module, Tensors]:
    """The final model of another, undefended run on the same data."""
    run = RunDir.open(path)
    theirs, kept = experiment_of(run), run.load_checkpoint()
    if kept is None or theirs.defense != "none" or theirs.dataset != experiment.dataset:
        raise RunError(f"{path} cannot judge: it must be a finished, undefended run on {experiment.dataset}")
    return assets_of(theirs).model, kept.weights


def _bar(console: Console, word: str) -> Progress:
    return Progress(
        TextColumn(word),
        MofNCompleteColumn(),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


def _attack(console: Console, session: Session, keys: list[Key]) -> None:
    session.describe()
    open_ = session.pending(keys)
    if len(open_) < len(keys):
        console.print(f"{len(keys) - len(open_)} of {len(keys)} targets were attacked before", highlight=False)
    if not open_:
        return
    with _bar(console, session.attack[:40]) as bar:
        task = bar.add_task("", total=len(open_))

        def on_done(outcomes: list[Outcome]) -> None:
            bar.advance(task, len(outcomes))
            for outcome in outcomes:
                if outcome.status == "failed":
                    console.print(f"round {outcome.key[0]}, client {outcome.key[1]} failed: {outcome.reason}", highlight=False)

        session.work(open_, AT_ONCE, on_done)


def _cell(summary: Summary, *, interval: bool) -> str:
    if summary.mean is None:
        return "unavailable" if summary.unavailable else "-"
    if not interval or summary.low is None or summary.high is None:
        return f"{summary.mean:.3f}"
    return f"{summary.mean:.3f} ± {(summary.high - summary.low) / 2:.3f}"


def _picture(console: Console, contenders: list[Contender]) -> None:
    """Naive and adaptive in one picture, if both have guesses of the same targets."""
    first, last = contenders[0].scoring, contenders[-1].scoring
    if first is not last and first.pictured and first.pictured == last.pictured:
        path = contenders[-1].session.folder / "beside-naive.png"
        first.save_picture(path, {one.session.who: one.scoring for one in contenders})
        console.print(f"side by side: [bold]{os.path.relpath(path)}[/bold]", soft_wrap=True)


def _show(console: Console, contenders: list[Contender]) -> None:
    first = contenders[0]
    rows: list[tuple[str, dict[str, Any]]] = [one.scoring.table(one.session.who)[0] for one in contenders]
    rows += first.scoring.table()[1:]
    for one in contenders:
        note = "" if one.session.who == "attack" else f" {one.session.who}"
        console.print(f"[bold]{one.session.attack}[/bold]{note}", highlight=False, soft_wrap=True)
    table = Table("", *(who.replace("floor: ", "floor:\n") for who, _ in rows), box=None, header_style="bold")
    for name in first.scoring.metrics:
        cells = (_cell(metrics[name], interval=place < len(contenders)) for place, (_, metrics) in enumerate(rows))
        table.add_row(name, *cells)
    console.print(table)
    defense = first.session.experiment.defense
    console.print(
        f"defense: {defense}; the server saw {first.session.experiment.visibility} updates; "
        "mean ± half of the 95 % interval over targets",
        highlight=False,
        soft_wrap=True,
    )
    missing: dict[str, str] = {}
    for one in contenders:
        done = [line for line in one.scoring.lines if line["status"] == "done"]
        failed = len(one.scoring.lines) - len(done)
        words = f"{len(done)} targets" + (f", {failed} failed" if failed else "")
        ledger = done[0]["ledger"] if done else "-"
        missing |= {k: v for line in done for k, v in line["unavailable"].items() if v != "not asked for"}
        console.print(
            f"{one.session.who}: {words}; PSNR >= 30 dB: {one.scoring.success():.0%}; granted: {ledger}",
            highlight=False,
            soft_wrap=True,
        )
        console.print(f"  results: [bold]{os.path.relpath(one.session.folder)}[/bold]", soft_wrap=True)
    if len(contenders) > 1 and (by_psnr := worst(contenders)) and (by_ssim := worst(contenders, "ssim")):
        also = "" if by_ssim is by_psnr else f", by SSIM {by_ssim.session.who}"
        console.print(f"worst for the defense: [bold]{by_psnr.session.who}[/bold] by PSNR{also}", highlight=False)
    for name, reason in missing.items():
        console.print(f"{name} is unavailable: {reason}", highlight=False)
