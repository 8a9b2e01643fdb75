"""Tidy tables of a run or sweep, for pandas and spreadsheets: one row per target, round, or attack on a cell.

Columns have the names that the files have (docs/files.md); settings are those of the row's run, with underscores.
"""

import importlib
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from fl_app.analysis.attackers import Attacker, attackers_of, worst_informed
from fl_app.analysis.conditions import conditions_of
from fl_app.analysis.results import SPENT, AttackResult, CellResult, RunResult, Study, read_study
from fl_app.analysis.verdict import verdict_of
from fl_app.report.spreadsheet import csv_text
from fl_app.scoring.base import Measure
from fl_app.scoring.floors import FLOORS
from fl_app.scoring.score import summarize
from fl_app.store.files import RunError, make_folder, write_atomic

Rows = list[dict[str, Any]]
NOT_SETTINGS = ("attack", "grant", "informed", "worker", "run_dir")
"""Settings that say how a run was attacked from its own command line, or where: the columns of an attack say it better."""
LARGE = ("captures", "clients")
"""Folders of a run that nothing here reads."""

_NUMBER = (int, float, NoneType)
_CELL = {"name": (str,), "varied": (dict,), "seed": (int,)}
_ROUND = {"round": (int,), "seconds": (int, float), "accuracy": _NUMBER, "loss": _NUMBER, "epsilon": _NUMBER}


def read_checked(path: Path) -> Study:
    """Read a run or sweep; what has a wrong type, or is a link to somewhere else, is an error that names the file."""
    root = path.resolve()
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LARGE]
        for one in (Path(place, name) for name in (*folders, *files)):
            if one.is_symlink() and not one.resolve().is_relative_to(root):
                raise RunError(f"{one} is a link to outside of {path}: what is there is not part of it")
            if one.suffix in (".json", ".jsonl", ".toml") and one.is_file():
                _check_text(one)
    study = read_study(path)
    _check(path / "plan.json", _CELL, [cell._asdict() for cell in study.cells])
    for run in [run for cell in study.cells for run in (cell.training, cell.attacked) if run is not None]:
        _check(run.path / "metrics.jsonl", _ROUND, run.metrics)
    return study


def _check_text(path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from error


def _check(path: Path, shape: Mapping[str, tuple[type, ...]], found: Sequence[Any]) -> None:
    for number, one in enumerate(found, 1):
        for key, kinds in shape.items():
            value = one.get(key) if isinstance(one, dict) else one
            if type(value) not in kinds:  # not isinstance: true and false are no numbers here
                words = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
                raise RunError(f"{path}, entry {number}: {key} must be {words}, not {str(value)[:80]!r}")


def targets(study: Study) -> Rows:
    """One row per (cell, attack, target); a cell without a scored attack is one row with the reason."""
    rows, measures = Rows(), study.measures
    for cell in study.cells:
        about = _about(study, cell, cell.attacked)
        for attack in cell.attacks:
            for one in attack.targets:
                place = {"ledger": one.ledger or None, "round": one.round, "client": one.client, "status": one.status}
                values: dict[str, Any] = {metric: one.values.get(metric) for metric in measures}
                for metric, worst in one.by_truth.items():
                    values |= {f"{metric}_by_truth": worst.value, f"{metric}_by_truth_member": worst.member}
                values |= {f"{metric}_control": value for metric, value in one.control.items()}
                rest = {"loss": one.loss, "visibility": one.visibility or None, "seconds": one.seconds}
                rows.append({**about, **_who(attack), **place, "reason": one.reason or None, **values, **rest})
        rows += _missing(cell, about)
    return rows


def rounds(study: Study) -> Rows:
    """One row per (cell, recorded round) of the training."""
    rows: Rows = []
    for cell in study.cells:
        about = _about(study, cell, cell.training)
        rows += [{**about, **line} for line in (cell.training.metrics if cell.training else [])]
        rows += _missing(cell, about) if cell.failed else []
    return rows


def summary(study: Study) -> Rows:
    """One row per (cell, attack): means over targets with their 95 % intervals, the floors, and what the training came to."""
    rows, measures, verdicts = Rows(), study.measures, _verdicts(study)
    # The same columns in all rows: images, tables and text have floors of their own.
    floors = dict.fromkeys(name for cell in study.cells for attack in cell.attacks for name in attack.floors) or FLOORS
    for cell in study.cells:
        about, attacks = _about(study, cell, cell.attacked), cell.attacks
        trained = _about(study, cell, cell.training) if cell.training else {}
        about |= {f"training_{key}": value for key, value in trained.items() if value != about.get(key)} | _training(cell)
        of_all = _worst_of_all(attacks, measures)
        for attack in attacks:
            attacker, *members = [Attacker([view]) for view in attack.views]
            row = {**about, **_who(attack), "ledger": attack.ledger, "status": "done", "reason": None}
            row |= verdicts[cell.name] | {
                "targets": len(attack.targets),
                "failed": attacker.failed,
                "attack_seconds": attack.seconds,
            }
            for metric in measures:
                found = attacker.summary(metric)
                row |= {f"{metric}_{part}": getattr(found, part) for part in ("mean", "low", "high", "n")}
                if (control := attacker.control(metric)).n:
                    row |= {f"{metric}_control_{part}": getattr(control, part) for part in ("mean", "low", "high")}
                for worst in (each.summary(metric) for each in members):
                    row |= {f"{metric}_by_truth_{part}": getattr(worst, part) for part in ("mean", "low", "high")}
            # Floors are kept once, beside the attack as it was asked for.
            twin = next((one for one in attacks if one.asked == attack.asked and one.floors), attack)
            for floor in floors:
                blind, name = twin.floors.get(floor, []), floor.replace(" ", "_")
                row |= {f"floor_{name}_{metric}": summarize(blind, metric).mean for metric in measures}
            rows.append(row | of_all)
        rows += _missing(cell, about)
    return rows


def _verdicts(study: Study) -> dict[str, dict[str, str]]:
    """Cell -> the verdict on its setting, over all attacks and seeds, and why."""
    found: dict[str, dict[str, str]] = {}
    for condition in conditions_of(study.cells, unfinished=study.kind == "run"):
        verdict = verdict_of(condition)
        about = {"verdict": verdict.words, "verdict_reasons": "; ".join(verdict.reasons)}
        found |= {cell.name: about for cell in condition.cells}
    return found


def _worst_of_all(attacks: Sequence[AttackResult], measures: Mapping[str, Measure]) -> dict[str, Any]:
    """The informed figure of a cell by each metric, and whose it is; missing where nobody knew the defense."""
    attackers, row = attackers_of(attacks), dict[str, Any]()
    for metric, measure in measures.items():
        found = worst_informed([one for one in attackers if not one.by_truth], metric, measure)
        row |= {f"informed_{metric}": found.mean(metric) if found else None}
        row |= {f"informed_{metric}_who": found.who if found else None}
        members = worst_informed(attackers, metric, measure)
        if members is not None and members.by_truth:
            row |= {f"informed_{metric}_by_truth": members.mean(metric), f"informed_{metric}_by_truth_who": members.who}
    return row


TABLES: dict[str, Callable[[Study], Rows]] = {"targets": targets, "rounds": rounds, "summary": summary}


def _about(study: Study, cell: CellResult, run: RunResult | None) -> dict[str, Any]:
    """Which cell and run, with all settings; those that the sweep names where the run does not exist."""
    settings = run.experiment.run_config() if run else cell.varied
    named = {key.replace("-", "_"): value for key, value in settings.items()}
    place = os.path.relpath(run.path, study.path.resolve()) if run and study.kind == "sweep" else ""
    kept = {key: value for key, value in named.items() if key not in NOT_SETTINGS}
    return {"cell": cell.name, "run": place, **kept, "seed": cell.seed}


def _who(attack: AttackResult) -> dict[str, Any]:
    return {"who": attack.who, "asked": attack.asked, "attack": attack.attack, "grants": ",".join(attack.grants)}


def _training(cell: CellResult) -> dict[str, Any]:
    """What the training came to, as of its last evaluated round."""
    run, kept = cell.training, ("accuracy", "macro_f1", "epsilon", "delta")
    last = run.last if run else {}
    found = {key if key != "delta" else "epsilon_delta": last.get(key) for key in kept}
    return {
        **found,
        "test_loss": last.get("loss"),
        "rounds_done": run.rounds_done if run else 0,
        "seconds_a_round": run.seconds_a_round if run else None,
        **{f"{key}_a_round": run.cost_a_round(key) if run else None for key in SPENT},
    }


def _missing(cell: CellResult, about: dict[str, Any]) -> Rows:
    reason = cell.unattacked
    return [] if reason is None else [{**about, "status": "failed" if cell.failed else "open", "reason": reason}]


def save(table: Rows, path: Path) -> None:
    """Write a table as .csv, .jsonl or .parquet, so that a reader sees the old or the new file and never a part."""
    content = writer_of(path)(table)
    make_folder(path.parent)
    write_atomic(path, content)


def writer_of(path: Path) -> Callable[[Rows], bytes]:
    """What writes a file of this name; ValueError if nothing does."""
    if path.suffix not in WRITERS:
        raise ValueError(f"{str(path)!r} does not end in {', '.join(WRITERS)}: name a file that does, or tensorboard:FOLDER")
    return WRITERS[path.suffix]


def _columns(table: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in table for name in row))


def _plain(value: Any) -> Any:
    """A value that every format has: numbers that are not finite become missing, lists and objects text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.dumps(value) if isinstance(value, list | dict) else value


def _csv(table: Rows) -> bytes:
    return csv_text([{name: _plain(value) for name, value in row.items()} for row in table]).encode()


def _jsonl(table: Rows) -> bytes:
    columns = _columns(table)
    lines = (json.dumps({name: _plain(row.get(name)) for name in columns}, allow_nan=False) for row in table)
    return "".join(f"{line}\n" for line in lines).encode()


def _parquet(table: Rows) -> bytes:
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError(f"a .parquet file needs pyarrow ({error}): pip install pyarrow, or write .csv or .jsonl") from error
    made, out = {}, io.BytesIO()
    for name in _columns(table):
        values = [_plain(row.get(name)) for row in table]
        kinds = {type(value) for value in values if value is not None}
        if not (kinds <= {int, float} or len(kinds) == 1):  # a column has one type there
            values = [None if value is None else str(value) for value in values]
        made[name] = values
    try:
        parquet.write_table(arrow.table(made), out)
    except (arrow.ArrowException, OverflowError) as error:
        raise ValueError(f"this table does not fit into Parquet ({error}): write .csv or .jsonl") from error
    return out.getvalue()


WRITERS: dict[str, Callable[[Rows], bytes]] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
