"""Runs and sweeps with made-up scores as they are on disk, and the commands that judge and export them."""

import json

import typer
from typer.testing import CliRunner

from fl_app.analysis.gate import UNJUDGED
from fl_app.cli.results import export, gate
from fl_app.experiment.config import Experiment
from fl_app.experiment.runs import create_run

SAFE = {"psnr": 9.0, "ssim": 0.1, "lpips_alex": 0.6, "lpips_vgg": 0.7}


def line(client=0, **scores):
    told = {"ledger": "nothing beyond the protocol", "loss": 0.1, "unavailable": {}}
    return {"round": 1, "client": client, "status": "done", **SAFE, **told, **scores}


def failed(client=0):
    return {"round": 1, "client": client, "status": "failed", "reason": "every attempt diverged"}


def add_attack(run, lines, who="attack", asked="idlg", attack=None, grants=(), floors=()):
    """Write an attack's folder as Session and Scoring do."""
    folder = run / "attacks" / f"{who.replace(': ', '-')}-{asked}"
    folder.mkdir(parents=True)
    about = {"attack": attack or asked, "asked": asked, "who": who, "grants": list(grants)}
    (folder / "attack.json").write_text(json.dumps(about))
    (folder / "scores.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "floors.jsonl").write_text("".join(json.dumps(one) + "\n" for one in floors))
    return folder


def make_run(path, lines=None, **settings):
    create_run(path, Experiment(**{"rounds": 2, **settings}))
    rows = [{"round": n, "seconds": n / 2, "accuracy": 0.5 + n / 10, "loss": 1.0, "macro_f1": 0.5} for n in range(3)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if lines is not None:
        add_attack(path, lines)
    return path


def make_sweep(path, cells, **changes):
    """A sweep of (defense, lines of its attack or None for a cell that was never run)."""
    plan = []
    for number, (defense, lines) in enumerate(cells):
        if lines is not None:
            make_run(path / f"runs/{number}/training", lines, defense=defense)
        about = {"name": f"{defense}, seed 0", "varied": {"defense": defense}, "seed": 0}
        places = {
            "training": f"runs/{number}/training",
            "attacked": f"runs/{number}/training",
            "failed": f"failed/{number}.json",
        }
        plan.append({**about, **places, **changes})
    path.mkdir(exist_ok=True)
    (path / "plan.json").write_text(json.dumps({"title": "t", "command": "c", "cells": plan}))
    return path


app = typer.Typer()
app.command()(gate)
app.command()(export)


def run_gate(*words):
    """(exit code, standard output, message of the error) of the command."""
    done = CliRunner().invoke(app, ["gate", *map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, ValueError | RuntimeError | OSError), done.exception  # exit code 2 in `main`
        return UNJUDGED, done.stdout, str(done.exception)
    return done.exit_code, done.stdout, done.stderr
