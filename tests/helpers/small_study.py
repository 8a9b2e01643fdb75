"""A small sweep as it is on disk, with real scores of made-up guesses, and a report as a reader sees it."""

import json
import re
from html.parser import HTMLParser

import torch

from fl_app.attacking.session import folder_name
from fl_app.experiment.assets import assets_of
from fl_app.experiment.runs import create_run, experiment_of
from fl_app.experiment.truth import true_examples
from fl_app.scoring.attacks import Scoring
from fl_app.store.reconstructions import guess_path, save_guess

HOSTILE = '<script>window.hacked=1</script>"><img src=x onerror=hack()>'
ATTACK = "idlg(iterations=1)"
KEYS = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
NOISES = {"none": (0.02, None), "prune(ratio=0.5)": (0.3, 0.05), "prune(ratio=0.9)": (0.5, 0.4)}
"""Defense -> standard deviation of the error of the naive and of the informed guess."""


def attack(run, who, noise, *, ledger="nothing beyond the protocol", failed=()):
    """Guesses as an attack would leave them: the truth with noise, scored by the real code; LPIPS made up."""
    text = ATTACK if who != "informed" else "idlg(iterations=2)"
    folder = run.path / "attacks" / folder_name(text, ())
    folder.mkdir(parents=True)
    about = {"attack": text, "asked": ATTACK, "who": who, "grants": ["defense"] if who == "informed" else []}
    (folder / "attack.json").write_text(json.dumps(about))
    (folder / "timing.jsonl").write_text(json.dumps({"targets": len(KEYS), "seconds": 3.0}) + "\n")
    assets, rng = assets_of(experiment_of(run)), torch.Generator().manual_seed(len(who))
    for key in KEYS:
        x, y = true_examples(assets, key[1], key[0])
        guess = (x + noise * torch.randn(x.shape, generator=rng)).clamp(0, 1)
        notes = {"attack": text, "ledger": ledger, "visibility": "individual", "seconds": "0.5"}
        save_guess(guess_path(folder, key), guess.flip(0), y, torch.tensor(noise), notes)
    scoring = Scoring(assets, folder, dict.fromkeys(failed, "diverged"), perceptual=False, floors=who != "informed")
    scoring.run(KEYS)
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    for line in lines:
        if line["status"] == "done":
            line |= {"lpips_alex": noise, "lpips_vgg": noise, "unavailable": {}}
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_run(small, path, defense, seed, accuracy, **more):
    experiment = small.changed(defense=defense, seed=seed, batch_size=2, rounds=2, capture="all", run_dir=str(path), **more)
    run = create_run(path, experiment)
    for number, value in enumerate((0.1, accuracy / 2, accuracy)):
        run.record({"round": number, "seconds": 0.5 * number, "accuracy": value, "loss": 1.0, "macro_f1": value})
    return run


def make_sweep(small, root, *, title="Small", hostile=False):
    """Three defenses, two seeds; one more cell failed, one was not started."""
    cells = []
    for place, (defense, seed) in enumerate((defense, seed) for defense in NOISES for seed in (0, 1)):
        run = make_run(small, root / f"runs/{place}/training", defense, seed, 0.9 - 0.1 * (place // 2) - 0.02 * seed)
        naive, informed = NOISES[defense]
        failed = [(2, 2)] if defense == "prune(ratio=0.9)" and seed else []
        attack(run, "attack" if informed is None else "naive", naive, failed=failed)
        if informed is not None:
            attack(run, "informed", informed, ledger=f"defense {HOSTILE}" if hostile else "defense")
        cells.append(("ok", defense, seed, f"runs/{place}/training"))
    make_run(small, root / "runs/8/training", "sign", 0, 0.99)
    cells += [("broken", "sign", 0, "runs/8/training"), ("waiting", "sign", 1, "runs/9/training")]
    word, note = (HOSTILE, {"note": HOSTILE}) if hostile else ("", {})
    plan = [
        {"name": f"{defense}, {seed}{word}", "varied": {"defense": defense, **note}, "seed": seed}
        | {"training": at, "attacked": at, "failed": f"{name}.json"}
        for name, defense, seed, at in cells
    ]
    (root / "broken.json").write_text(json.dumps({"reason": f"out of memory {word}"}))
    text = json.dumps({"title": title + word, "command": f"thorns sweep small.toml {word}", "cells": plan})
    (root / "plan.json").write_text(text)
    return root


class Page(HTMLParser):
    """Tags with their attributes, text, and the rows of tables."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.rows, self._in = [], [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self._in):
            self.text.append(data)
        if self.rows and {"td", "th"} & set(self._in):
            self.rows[-1][-1] += data

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))

    def row(self, name):
        return next([cell.strip() for cell in row] for row in self.rows if len(row) > 1 and row[1].strip() == name)
