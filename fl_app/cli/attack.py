"""`thorns attack`: attack captures, score, show."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import adversary
from fl_app.analysis.attackers import WORST_OF_ALL, Attacker, worst_informed
from fl_app.analysis.results import WORST_MEMBER, read_attack
from fl_app.attacking.attackers import AT_ONCE, informed_of, sessions_of, who_of
from fl_app.attacking.audit import of_another_app
from fl_app.attacking.jobs import Outcome
from fl_app.attacking.session import Session
from fl_app.attacking.worker import make_worker
from fl_app.cli.attack_bar import AttackBar, bar_of, stopped
from fl_app.core.ending import terminable
from fl_app.core.observation import Key
from fl_app.core.selection import select
from fl_app.core.text import Tokens
from fl_app.experiment.assets import assets_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import JUDGING, ensure
from fl_app.experiment.fingerprint import check_data
from fl_app.experiment.grants import knowledge_of, parse_grants
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.attacks import Scoring
from fl_app.scoring.base import Judge, Measure
from fl_app.scoring.metrics import with_plugged
from fl_app.scoring.score import Summary, success_rate, summarize
from fl_app.store.files import RunError
from fl_app.store.runs import RunDir
from fl_app.sweeps.live import say

OF_TEXT = "dager"
"""What text is attacked by if nobody says otherwise."""
SUCCESS = 30.0
"""dB from which on a reconstruction is as good as the image."""


class Contender(NamedTuple):
    """An attack as it was asked for, or the same once it knows the defense, with what it came to."""

    session: Session
    scoring: Scoring
    attacker: Attacker


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
    metrics: Sequence[str] = (),
    informed: bool = True,
    threads: int | None = None,
    device: str | None = None,
    candidates: Path | None = None,
) -> bool:
    """Attack, score and show; False if some attack failed on every target. Names are checked before the first one starts."""
    if of_another_app(path):
        raise RunError(f"{path} holds captures of another app: add --model MODULE:FUNCTION --input-shape SHAPE")
    run, granted, measured = RunDir.open(path), parse_grants(grants), with_plugged(metrics)
    in_round, of_client = select(rounds, 1, "rounds"), select(clients, 0, "clients")
    experiment = experiment_of(run)
    for text in attacks:
        adversary.build(text)
    if device:
        experiment = experiment.changed(device=device)
    assets = assets_of(experiment)
    usual = OF_TEXT if isinstance(assets.space, Tokens) else adversary.DEFAULT
    attacks = attacks or [experiment.craft.readout or usual]
    judged_by = _judge(judge, experiment) if judge else None
    evaluator = ensure(experiment.dataset, split=experiment.split, training=JUDGING, console=console) if noise_ratio else None
    worker = make_worker(worker_name, device=assets.device, threads=threads or experiment.threads)
    answered = True
    try:
        for text in attacks:
            first = Session(run, text, granted, worker, threads=threads, device=device, candidates=candidates)
            keys = [key for key in first.captured() if key[0] in in_round and (key[1] == -1 or key[1] in of_client)]
            if not keys:
                raise RunError(f"{path} has {_spans(first.captured())}, none of --rounds {rounds} --clients {clients}")
            keys = keys[: limit or None]
            for key in keys[:1]:
                knowledge_of(assets, granted, key, None)  # refuse a false grant before any work
                if first.built.question:
                    first.candidates(key)  # or a file that holds no candidates
            contenders: list[Contender] = []
            for session in sessions_of(first, keys, informed=informed):
                with terminable(), session.alone():
                    _attack(console, session, keys)
                    with bar_of(console, "scoring") as bar:
                        task = bar.add_task("", total=len(keys))
                        scoring = Scoring(
                            assets,
                            session.folder,
                            session.failures(),
                            perceptual=perceptual,
                            judge=judged_by,
                            evaluator=evaluator,
                            floors=not contenders,  # they are the same for all
                            metrics=measured,
                            candidates=session.candidates(keys[0]) if candidates else None,
                        ).run(keys, lambda task=task, bar=bar: bar.advance(task))  # type: ignore[misc]
                contenders.append(Contender(session, scoring, Attacker([read_attack(session.folder)])))
            _show(console, contenders)
            answered &= any(target.done for one in contenders for target in one.attacker.targets)
            for one in informed_of(first, keys) if informed else []:
                if one.attack is None:
                    say(console, f"{who_of(one)} left out: {one.why_not}")
            _picture(console, contenders)
    except KeyboardInterrupt as end:
        raise stopped(console, end) from None
    finally:
        worker.close()
    return answered


def _spans(captured: list[Key]) -> str:
    """What there is, for somebody who asked for something else."""
    rounds, clients = (sorted({key[part] for key in captured}) for part in (0, 1))
    return f"captures of rounds {rounds[0]} to {rounds[-1]} and clients {clients[0]} to {clients[-1]}"


def _judge(path: Path, experiment: Experiment) -> Judge:
    """The final model of another, undefended run on the same data."""
    run = RunDir.open(path)
    theirs, kept = experiment_of(run), run.load_checkpoint()
    if kept is None or theirs.defense != "none" or theirs.dataset != experiment.dataset:
        raise RunError(f"{path} cannot judge: it must be a finished, undefended run on {experiment.dataset}")
    if kept.server_round < theirs.rounds or not all(bool(value.isfinite().all()) for value in kept.weights.values()):
        raise RunError(f"{path} cannot judge: it ended after round {kept.server_round} of {theirs.rounds}, or is not finite")
    check_data(path, theirs)
    return assets_of(theirs).model, kept.weights


def _attack(console: Console, session: Session, keys: list[Key]) -> None:
    session.describe()
    open_, before = session.pending(keys), session.failures()
    if len(open_) < len(keys):
        say(console, f"{len(keys) - len(open_)} of {len(keys)} targets were attacked before")
    for key in [key for key in keys if key in before]:
        then = "tried again" if key in open_ else f"not tried again: delete {os.path.relpath(session.failures_path)} for that"
        say(console, f"round {key[0]}, client {key[1]} failed before: {before[key]} ({then})")
    if not open_:
        return
    jobs = [len(part) for part in session.parts(open_, AT_ONCE)]
    with AttackBar(console, session.attack, jobs) as bar:

        def on_done(outcomes: list[Outcome]) -> None:
            bar.job_done(len(outcomes))
            for outcome in outcomes:
                if outcome.status == "failed":
                    say(console, f"round {outcome.key[0]}, client {outcome.key[1]} failed: {outcome.reason}")

        session.work(open_, AT_ONCE, on_done)


def _number(found: Summary, *, interval: bool) -> str:
    if found.mean is None:
        return "unavailable" if found.unavailable else "-"
    if not interval or found.low is None or found.high is None:
        return f"{found.mean:.3f}"
    return f"{found.mean:.3f} ± {(found.high - found.low) / 2:.3f}"


def _picture(console: Console, contenders: list[Contender]) -> None:
    """Naive and informed in one picture, if both have reconstructions of the same targets."""
    first, last = contenders[0].scoring, contenders[-1].scoring
    if first is not last and first.pictured and first.pictured == last.pictured:
        path = contenders[-1].session.folder / "beside-naive.png"
        first.save_picture(path, {one.session.who: one.scoring for one in contenders})
        console.print(f"side by side: [bold]{escape(os.path.relpath(path))}[/bold]", soft_wrap=True)


def _show(console: Console, contenders: list[Contender]) -> None:
    first = contenders[0]
    for one in contenders:
        note = "" if one.session.who == "attack" else f" {one.session.who}"
        console.print(f"[bold]{escape(one.session.attack)}[/bold]{escape(note)}", highlight=False, soft_wrap=True)
    console.print(_table(_every([one.attacker for one in contenders]), first.scoring.measures))
    experiment = first.session.experiment
    saw = f"the server saw {experiment.seen_in_words}"
    if experiment.warning:
        say(console, experiment.warning)
    say(console, f"defense: {experiment.defense}; {saw}; mean ± half of the 95 % interval over targets")
    for one in contenders:
        done = [target for target in one.attacker.targets if target.done]
        words = f"{len(done)} targets" + (f", {one.attacker.failed} failed" if one.attacker.failed else "")
        ledger = done[0].ledger if done else "-"
        success = f"PSNR >= {SUCCESS:g} dB: {_success(one.attacker):.0%}; " if one.attacker.mean("psnr") is not None else ""
        say(console, f"{one.session.who}: {words}; {success}granted: {ledger}")
        proof = adversary.build(one.session.attack).proof
        if proof is not None:
            proved = sum(target.loss is not None and target.loss <= proof for target in done)
            say(console, f"  exact by the attack's own evidence, without the truth: {proved} of {len(done)} targets")
        if done and not any(target.values for target in done):
            say(console, "  it answers with scores of candidates: no reconstruction is scored")
        console.print(f"  results: [bold]{escape(os.path.relpath(one.session.folder))}[/bold]", soft_wrap=True)
    _say_worst(console, contenders)
    missing = {name: why for one in contenders for each in one.attacker.targets for name, why in each.unavailable.items()}
    for reason in dict.fromkeys(missing.values()):
        names = [name for name, why in missing.items() if why == reason]
        say(console, f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} unavailable: {reason}")


def _every(attackers: Sequence[Attacker]) -> list[Attacker]:
    """Attackers as they answered, each with its worst members by truth behind it where it has members."""
    return [Attacker([view]) for one in attackers for view in one.parts[0].views]


def _table(attackers: Sequence[Attacker], metrics: Mapping[str, Measure]) -> Table:
    """One row per metric: each attacker, the informed figure where somebody knows the defense, and the floors."""
    floors = attackers[0].floors()
    told, controlled = any(one.informed for one in attackers), [one for one in attackers if one.controlled]
    heads = [
        *(one.who.replace(WORST_MEMBER, "worst member\nby truth") for one in attackers),
        *(f"{one.who}:\ncontrol" for one in controlled),
        *(["worst\nof all"] if told else []),
        *(f"floor:\n{name}" for name in floors),
    ]
    table = Table("", *heads, box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name, metric in metrics.items():
        summaries = [one.summary(name) for one in attackers]
        if not any(one.n for one in summaries) and (metric.of != "any" or any(one.unavailable for one in summaries)):
            continue  # said below, once for all of its kind
        entries = [_number(one, interval=True) for one in summaries]
        entries += [_number(one.control(name), interval=True) for one in controlled]
        if told:
            found = worst_informed(attackers, name, metric)
            entries.append("-" if found is None else f"{found.mean(name):.3f}")
        entries += [_number(summarize(rows, name), interval=False) for rows in floors.values()]
        table.add_row(name, *entries)
    return table


def _success(attacker: Attacker) -> float:
    """The share of targets whose mean PSNR reaches 30 dB; failed ones do not."""
    values = [value for one in attacker.targets if (value := one.values.get("psnr")) is not None]
    return success_rate(torch.tensor(values), SUCCESS, failed=len(attacker.targets) - len(values))


def _say_worst(console: Console, contenders: list[Contender]) -> None:
    """The informed figures and whose they are."""
    attackers, found = _every([one.attacker for one in contenders]), []
    measures: dict[str, Measure] = {key: one for key, one in contenders[0].scoring.metrics.items() if one.shown == "tables"}
    for name, measure in measures.items():
        one = worst_informed(attackers, name, measure)
        if one is not None:
            found.append(f"{measure.title} {measure.text(one.mean(name))} {measure.unit}".rstrip() + f" by {one.who}")
    if found:
        console.print(f"worst for the defense: [bold]{escape(', '.join(found))}[/bold]", highlight=False, soft_wrap=True)
        say(console, f"  its informed figures: {WORST_OF_ALL}")
