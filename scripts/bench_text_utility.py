#!/usr/bin/env python
"""How well models of text learn Rotten Tomatoes with FedSGD: a bag of words, our encoder, MiniLM.

    .venv/bin/python scripts/bench_text_utility.py                  # about 25 minutes on one core
    .venv/bin/python scripts/bench_text_utility.py --only bow --seeds 1
    .venv/bin/python scripts/bench_text_utility.py --floors         # what blind answers reach, seconds

Four clients with batches of 32 (MiniLM: 16) and Adam on the server. Rounds and rates were chosen with seed 0, by the same test
sentences; shown are other seeds, which change the network, the shares and the batches.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch

from fl_app import data, engines
from fl_app.core.seeds import generator
from fl_app.core.text import Tokens
from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment
from fl_app.scoring.base import Tools
from fl_app.scoring.floors import floors_for
from fl_app.scoring.score import score
from fl_app.scoring.text import Text, by_frequency
from fl_app.scoring.text_metrics import TEXT
from fl_app.store.lines import read_lines


class Recipe(NamedTuple):
    """A model and how it is trained."""

    model: str
    lr: float
    rounds: int
    dataset: str = "rotten_tomatoes"
    batch: int = 32


RECIPES = {
    "bow": Recipe("bow", 0.02, 40),
    "encoder, trained tables": Recipe("bert(depth=2, freeze=False)", 0.001, 150),
    "encoder, frozen tables": Recipe("bert(depth=2)", 0.0005, 400),
    "minilm": Recipe("minilm", 0.0001, 120, "rotten_tomatoes(length=48, tokenizer='bert')", 16),
}


def trained(recipe: Recipe, seed: int) -> tuple[dict[str, float], float]:
    """(the last evaluation on the 1,000 test sentences, seconds)."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            dataset=recipe.dataset,
            model=recipe.model,
            optimizer=f"adam(lr={recipe.lr})",
            rounds=recipe.rounds,
            eval_every=recipe.rounds,
            clients=4,
            batch_size=recipe.batch,
            seed=seed,
            run_dir=str(Path(folder) / "run"),
        )
        run = engines.run(experiment, "inline", Watcher())
        last = [line for line in read_lines(run.path / "metrics.jsonl") if "accuracy" in line][-1]
    return last, time.monotonic() - began


def floors(number: int = 500) -> None:
    """Print what blind answers reach on sentences of the training part, each a target of its own."""
    found = data.load("rotten_tomatoes")
    assert isinstance(found.space, Tokens)
    assert found.public is not None
    text = Text(found.space, by_frequency(found.space, found.public.x))
    tools = Tools(lpips=False, text=text)
    for name, floor in floors_for(found.space, text).items():
        rows = []
        for place in range(number):
            true_x, true_y = found.train.at(torch.tensor([place]))
            blind = floor(found.train, true_y, generator(0, name, place), torch.tensor([place]))
            rows.append(score(blind, true_y, true_x, true_y, TEXT, tools).row())
        words = []
        for key in ("rouge1", "rouge2", "rouge_l", "token_f1", "exact", "rare_recall", "rouge1_lamp"):
            values = sorted(value for row in rows if (value := row[key]) is not None)
            words.append(f"{key} {mean(values):.1f} (99 % below {values[int(0.99 * len(values))]:.1f})")
        print(f"{name}: {', '.join(words)}")


def main() -> None:
    """Train and print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RECIPES, help="one of the models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--floors", action="store_true", help="blind answers instead of training")
    chosen = parser.parse_args()
    if chosen.floors:
        floors()
        return
    for name in [chosen.only] if chosen.only else list(RECIPES):
        recipe = RECIPES[name]
        found = []
        for seed in chosen.seeds:
            found.append(trained(recipe, seed))
            print(f"  {name}, seed {seed}: {100 * found[-1][0]['accuracy']:.1f} %, {found[-1][1]:.0f} s", flush=True)
        accuracy = [100 * line["accuracy"] for line, _ in found]
        spread = f" ± {stdev(accuracy):.1f} (std)" if len(accuracy) > 1 else ""
        each = ", ".join(f"{one:.1f}" for one in accuracy)
        mcc = mean(line["mcc"] for line, _ in found)
        print(
            f"{name}: {recipe.model}, {recipe.rounds} rounds: {mean(accuracy):.1f} %{spread} [{each}], MCC {mcc:.3f}, "
            f"{mean(seconds for _, seconds in found):.0f} s a run",
            flush=True,
        )


if __name__ == "__main__":
    main()
