"""`thorns train-evaluator`: make an evaluation network for refiner."""

from dataclasses import replace

import torch
from rich.console import Console

from client_defenses.tools import evaluator as evaluation
from client_defenses.tools import evaluator_networks
from client_defenses.tools.evaluator_networks import EvaluatorTraining
from fl_app import data
from fl_app.data import photos
from fl_app.experiment import evaluators
from fl_app.scoring.noise_ratio import noise_ratio

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
CHECKED = 500


def train_evaluator(
    console: Console,
    dataset: str,
    clients: str,
    *,
    part: str = "train",
    split: str = "official",
    width: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    paper: bool = False,
) -> None:
    """Train unless it is there, say where it is, and show what it says of the clients' test images with noise."""
    training = EvaluatorTraining()
    if paper:
        number = photos.NUMBER if dataset == evaluators.PHOTOS else len(getattr(data.load(dataset), part))
        training = evaluator_networks.paper(number)
    training = replace(training, width=width or training.width, steps=steps or training.steps, seed=seed)
    path = evaluators.ensure(clients, public=dataset, part=part, split=split, training=training, console=console)
    console.print(str(path), soft_wrap=True, highlight=False)
    x = data.load(clients).test.at(slice(0, CHECKED))[0]
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    found = [noise_ratio(evaluation.mix(x, share, noise), path).mean().item() for share in SHARES]
    shown = ", ".join(f"{share:g}: {value:.2f}" for share, value in zip(SHARES, found, strict=True))
    console.print(f"share of noise in {len(x)} test images of {clients} -> what the network says: {shown}", soft_wrap=True)
    console.print(f"use it: defense = \"refiner(evaluator='{path.stem}')\"", soft_wrap=True, highlight=False)
