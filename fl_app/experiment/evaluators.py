"""Evaluation networks for Refiner: trained on public images or text, never on the clients', and kept in the cache."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional as F

from client_defenses import Chain, Defense
from client_defenses.recup import RecUP
from client_defenses.refiner import Refiner
from client_defenses.tools import evaluator as evaluation
from client_defenses.tools import word_evaluator
from client_defenses.tools.evaluator import Evaluator, EvaluatorError, EvaluatorFacts
from client_defenses.tools.evaluator_networks import EvaluatorTraining
from client_defenses.tools.robust import NO_TABLE
from fl_app import data, models
from fl_app.core.places import there
from fl_app.core.text import Tokens
from fl_app.data import photos, squares
from fl_app.experiment import banks
from fl_app.models.text import TextModel
from fl_app.store.locks import alone

ImageShape = tuple[int, int, int]
PHOTOS = "photos"
"""The public images that are on every machine, and so the default: a run must not depend on what can be downloaded."""
PUBLIC_TEXT = "public text"
PARTS = ("train", "test")
THREADS = 1
"""Sums over more threads round differently, and the network must not depend on the machine; nor do two help if it is busy."""
CHUNK = 4096
JUDGING = EvaluatorTraining(seed=1)
"""Not the network that refiner works against: its robust data may fool that one."""


class PublicImages(NamedTuple):
    """Public images: what they are called, and the checksum of them as published."""

    dataset: str
    part: str
    name: str
    checksum: str

    def images(self, shape: ImageShape) -> Tensor:
        """The images in the shape of the clients', uint8 (n, *shape)."""
        if self.dataset == PHOTOS:
            return photos.pieces(shape)
        return fit(getattr(data.load(self.dataset), self.part).x, shape)


def public_images(dataset: str, part: str = "train") -> PublicImages:
    """A public data set, by its name and content."""
    if dataset == PHOTOS:
        content = dict(zip(photos.NAMES, photos.photos(), strict=True))
        cut = {"": torch.tensor([photos.NUMBER, photos.CONTRAST])}  # how they are cut counts as content
        return PublicImages(PHOTOS, part, PHOTOS, evaluation.fingerprint_of(content | cut))
    found = data.load(dataset)
    return PublicImages(dataset, part, f"{found.name}/{part}", checksum_of(getattr(found, part).x))


def checksum_of(images: Tensor) -> str:
    """A checksum of images as they are published."""
    return evaluation.fingerprint_of({"images": images})


def image_shape_of(clients: str) -> ImageShape:
    """The shape of the images of a data set; it must be one of images."""
    dataset = data.load(clients)
    shape = dataset.input_shape
    if dataset.vocabulary is not None:
        raise EvaluatorError("of text an evaluation network belongs to a model's word table, and runs make it by themselves")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise EvaluatorError(f"refiner needs grey or RGB images; those of {clients} have the shape {shape}")
    return shape[0], shape[1], shape[2]


def fit(images: Tensor, shape: ImageShape) -> Tensor:
    """Images, uint8 (n, c, h, w), in another shape: made grey or RGB, and scaled."""
    parts = []
    for some in images.split(CHUNK):
        x = some.float()
        if x.shape[1] != shape[0]:
            x = x.mean(1, keepdim=True) if shape[0] == 1 else x[:, :1].expand(-1, 3, -1, -1)
        if x.shape[2:] != shape[1:]:
            x = F.interpolate(x, size=shape[1:], mode="bilinear", align_corners=False, antialias=True)
        parts.append(x.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts)


def refuse_same(facts: EvaluatorFacts, clients: str, split: str = "official") -> None:
    """Refuse a network that has learnt from what clients hold: the same data set and part, by name or by content.

    With the official split clients hold its "train" part; with shares, or if the part is not known, any of it.
    """
    dataset = data.load(clients)
    name, _, part = facts.data.partition("/")
    same = name == dataset.name or (name.startswith(squares.KEY) and dataset.name.startswith(squares.KEY))  # of another size
    ours = same and not (split == "official" and part == "test")
    ours |= name == PHOTOS and dataset.name.startswith(squares.KEY)  # these are cut out of the same photos
    if ours or (facts.images and facts.images == _held(clients)):
        other = "cifar10" if name == PHOTOS else PHOTOS
        raise EvaluatorError(
            f"an evaluation network must not learn from the clients' own images ({facts.data}, clients: {clients}, split "
            f"{split}): it is public, and they are not; choose another data set, such as '{other}'"
        )


def _held(clients: str) -> str:
    return checksum_of(data.load(clients).train.x)


def path_of(facts: EvaluatorFacts) -> Path:
    """Where a network is kept: its name is a hash of its images and all settings."""
    return evaluation.file_of(hashlib.blake2b(facts.notes.encode(), digest_size=16).hexdigest())


def ensure(
    clients: str,
    *,
    public: str = PHOTOS,
    part: str = "train",
    split: str = "official",
    training: EvaluatorTraining | None = None,
    console: Console | None = None,
) -> Path:
    """The file of a network for the images of the data set `clients`, trained on a public one unless it is there."""
    if part not in PARTS:
        raise EvaluatorError(f"the part must be one of {', '.join(PARTS)}, not '{part}'")
    if public != PHOTOS and data.recipe_of(public).key == data.recipe_of(clients).key:  # before anything is fetched
        refuse_same(EvaluatorFacts(shape=(1, 1, 1), data=f"{data.recipe_of(public).key}/{part}"), clients, split)
    shape = image_shape_of(clients)
    found = public_images(public, part)
    facts = EvaluatorFacts(shape=shape, training=training or EvaluatorTraining(), data=found.name, images=found.checksum)
    refuse_same(facts, clients, split)
    return _kept(
        facts,
        lambda on_step: evaluation.train(found.images(shape), facts.training, found.name, found.checksum, on_step),
        console,
    )


def ensure_words(clients: str, model: str, training: EvaluatorTraining | None = None, console: Console | None = None) -> Path:
    """The file of a network for text under the word table of a model, trained on public text unless it is there."""
    dataset, table = data.load(clients), _table(clients, model)
    if dataset.public is None:
        raise EvaluatorError(f"refiner needs public text for its evaluation network, and {clients} has none")
    ids, special = dataset.public.x, dataset.vocabulary.special if dataset.vocabulary else ()
    facts = word_evaluator.facts_of(ids, table, special, training or word_evaluator.DEFAULTS, PUBLIC_TEXT)
    return _kept(facts, lambda on_step: word_evaluator.train(facts, ids, table, on_step), console)


def _table(clients: str, model: str) -> Tensor:
    """The word vectors of a model for a data set of text, which must be frozen."""
    dataset = data.load(clients)
    built = models.build(model, dataset.input_shape, dataset.num_classes)
    if not isinstance(built, TextModel) or not built.frozen:
        raise EvaluatorError(NO_TABLE)
    return built.table


def _kept(facts: EvaluatorFacts, train: Callable[[Callable[[], None]], Evaluator], console: Console | None) -> Path:
    """The file of a network, which is trained now unless it is there."""
    path = path_of(facts)
    if not there(path):
        with alone(path.with_suffix(".lock")):  # many clients start at once, and one of them must train
            if not path.exists():  # another process may have made it meanwhile
                evaluation.save(_made(facts, train, console or Console(stderr=True)), path)
    return path


def _made(facts: EvaluatorFacts, train: Callable[[Callable[[], None]], Evaluator], console: Console) -> Evaluator:
    columns = TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(compact=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with Progress(*columns, console=console, refresh_per_second=4) as progress:
            task = progress.add_task(f"evaluation network for refiner, on {facts.data}", total=facts.training.steps)
            return train(lambda: progress.advance(task))
    finally:
        torch.set_num_threads(threads)


def prepared(
    defense: Defense, clients: str, split: str = "official", console: Console | None = None, *, model: str = ""
) -> Defense:
    """The defense with an evaluation network for each Refiner in it, its own, checked, or one that is made now.

    Of text it belongs to the word table of the model. RecUP gets public images where it hides an attribute of images.
    What is made is named, not located: results must not depend on where the cache is.
    """
    if isinstance(defense, Chain):
        return replace(defense, parts=tuple(prepared(part, clients, split, console, model=model) for part in defense.parts))
    if isinstance(defense, RecUP) and defense.attribute and not defense.bank and not data.load(clients).columns:
        return replace(defense, bank=banks.ensure(clients, defense.attribute, split))
    if not isinstance(defense, Refiner):
        return defense
    text = isinstance(data.load(clients).space, Tokens)
    if not defense.evaluator:
        made = ensure_words(clients, model, console=console) if text else ensure(clients, split=split, console=console)
        return replace(defense, evaluator=made.stem)
    facts = evaluation.load(defense.evaluator).facts
    if text:
        if facts.table is None or facts.table.digest != word_evaluator.digest_of(_table(clients, model)):
            raise EvaluatorError(f"{defense.evaluator} is for {facts.what}, and not for the words of {model}")
        return defense
    if facts.shape != image_shape_of(clients):
        raise EvaluatorError(f"{defense.evaluator} is for {facts.what}, but those of {clients} have {image_shape_of(clients)}")
    refuse_same(facts, clients, split)
    return defense
