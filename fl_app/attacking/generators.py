"""Generators for attacks: made of public images, never of the clients', and kept in the cache with their ceilings."""

from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from adversary import Attack, AttackError, generators
from adversary.generative import generator_of, with_generator
from adversary.generators import GeneratorFacts, Kept
from adversary.learned.decoder_training import GeneratorTraining, ceiling, trained
from fl_app import data
from fl_app.core.places import there
from fl_app.core.seeds import generator as generator_for
from fl_app.data import photos
from fl_app.data.splits import shares_of, split
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import PHOTOS, THREADS, fit, image_shape_of
from fl_app.models.generator import design_of
from fl_app.store.files import checksum
from fl_app.store.locks import alone

HELD_OUT, SHOWN = 512, 64
"""Public images that a generator never learns from, and how many of them its ceiling is taken on."""
LEAST = 1000
"""Fewest public images that a generator is made of."""
SMALL = GeneratorTraining(steps=300, batch_size=64)
"""Seconds, not minutes."""


class PublicImages(NamedTuple):
    """Public images x, uint8 (n, *shape), their classes y (n,), what they are called, and how many classes clients share."""

    x: Tensor
    y: Tensor
    name: str
    classes: int


def public_images(clients: str, public: str = "", part: str = "", split_text: str = "official", seed: int = 0) -> PublicImages:
    """The public images for attacks on clients: of their own data set what no client holds, of another its training part.

    Exact copies of what clients hold are left out; AttackError if less than a thousand and the held-out ones are left.
    """
    shape, own = image_shape_of(clients), data.load(clients)
    public, parts = public or clients, split(own, split_text, seed)
    held = own.train.x if shares_of(split_text) is None else parts.train.x
    if public == PHOTOS:
        x = photos.pieces(shape)
        found = PublicImages(x, torch.zeros(len(x), dtype=torch.int64), PHOTOS, 0)
    elif data.recipe_of(public).key != data.recipe_of(clients).key:
        image_shape_of(public)
        other = data.load(public)
        chosen = getattr(other, part or "train")
        found = PublicImages(fit(chosen.x, shape), chosen.y, f"{other.name}/{part or 'train'}", 0)
    elif shares_of(split_text) is None:
        chosen = getattr(own, part or "test")
        found = PublicImages(chosen.x, chosen.y, f"{own.name}/{part or 'test'}", own.num_classes)
    else:
        x, y = (torch.cat([getattr(one, which) for one in parts[1:]]) for which in "xy")
        found = PublicImages(x, y, f"{own.name}/{split_text} seed {seed}", own.num_classes)
    fresh = _unheld(found.x, held)
    if int(fresh.sum()) < HELD_OUT + LEAST:
        raise AttackError(
            f"a generator must not learn from the clients' own images: of {len(found.x)} of {found.name}, "
            f"{int(fresh.sum())} are not held by clients of {clients} (split {split_text}), and it takes {HELD_OUT + LEAST}; "
            "choose other public images"
        )
    return found._replace(x=found.x[fresh], y=found.y[fresh])


def _unheld(x: Tensor, held: Tensor) -> Tensor:
    """Which images, uint8 (n, *shape), are not among others, bool (n,)."""
    known = {row.tobytes() for row in held.flatten(1).numpy()}
    return torch.tensor([row.tobytes() not in known for row in x.contiguous().flatten(1).numpy()])


def ensure(
    clients: str,
    *,
    public: str = "",
    part: str = "",
    split_text: str = "official",
    seed: int = 0,
    small: bool = False,
    training: GeneratorTraining | None = None,
    console: Console | None = None,
) -> Path:
    """The file of a generator for the images of the data set `clients`, which is trained now unless it is there."""
    images = public_images(clients, public, part, split_text, seed)
    training = training or (SMALL if small else GeneratorTraining())
    facts = GeneratorFacts(
        design=design_of(image_shape_of(clients), images.classes, small=small),
        training=training,
        data=images.name,
        images=checksum({"x": images.x, "y": images.y}),
        clients=data.recipe_of(clients).key,
    )
    path = generators.file_of(facts.name)
    if not there(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_suffix(".lock")):
            if not path.exists():  # another process may have made it meanwhile
                generators.save(_made(facts, images, console or Console(stderr=True)), path)
    return path


def _made(facts: GeneratorFacts, images: PublicImages, console: Console) -> Kept:
    """The generator with its ceiling on images that were held out."""
    order = torch.randperm(len(images.x), generator=generator_for(0, "images held out of generators"))
    out, rest = order[:SHOWN], order[HELD_OUT:]
    columns = TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(compact=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)  # sums over more threads round differently, and it must not depend on the machine
    try:
        with Progress(*columns, console=console, refresh_per_second=4) as progress:
            steps = facts.training.steps + facts.training.adversarial
            task = progress.add_task(f"generator, on {facts.data}", total=steps)
            made = trained(images.x[rest], images.y[rest], facts.design, facts.training, lambda: progress.advance(task))
            return Kept(made, facts, ceiling(made, images.x[out], images.y[out]))
    finally:
        torch.set_num_threads(threads)


def refuse_held(facts: GeneratorFacts, dataset: str, split_text: str, seed: int) -> None:
    """Refuse a generator that has learned from what the clients of a run hold, or that draws other shapes."""
    shape, own = image_shape_of(dataset), data.load(dataset)
    if facts.design.shape != shape:
        raise AttackError(f"this generator draws images {facts.design.shape}, and those of {dataset} are {shape}")
    name, _, part = facts.data.partition("/")
    public = "test" if shares_of(split_text) is None else f"{split_text} seed {seed}"
    if name == own.name and part != public:
        raise AttackError(
            f"this generator learned from {facts.data}, which clients of {own.name} (split {split_text}, seed {seed}) hold a "
            f"part of: {generators.ADVICE}"
        )


def prepared(attack: Attack, experiment: Experiment, console: Console | None = None) -> Attack:
    """The attack with a generator if it searches in one: the one that it names, checked, or one that is made now.

    What is made is named, not located: results must not depend on where the cache is.
    """
    named = generator_of(attack)
    if named is None:
        return attack
    where = experiment.dataset, experiment.split, experiment.seed
    if named:
        refuse_held(generators.load(named).facts, *where)
        return attack
    made = ensure(where[0], split_text=where[1], seed=where[2], console=console)
    return with_generator(attack, made.stem)
