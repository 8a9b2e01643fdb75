"""Generators are made of images that no client holds, and runs name the one that they used."""

import json

import pytest
import torch

import adversary
from adversary import AttackError, generators
from adversary.generative import generator_of
from adversary.learned.decoder_training import GeneratorTraining
from fl_app import data, engines
from fl_app.attacking import generators as making
from fl_app.attacking.attackers import sessions_of
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.data.splits import split
from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment

FEW = GeneratorTraining(steps=3, batch_size=8)


@pytest.fixture
def few(monkeypatch):
    """So little is asked for that the pictures are enough."""
    for name, number in {"HELD_OUT": 8, "SHOWN": 4, "LEAST": 5}.items():
        monkeypatch.setattr(making, name, number)
    monkeypatch.setattr("fl_app.attacking.generators.GeneratorTraining", lambda: FEW)
    monkeypatch.setattr("adversary.learned.decoder_training.CEILING_STEPS", 3)


def rows(x):
    return {one.numpy().tobytes() for one in x}


@pytest.mark.parametrize("text", ["official", "60/20/20"])
def test_no_image_of_a_client_is_among_the_public_ones(small, few, text):
    found = making.public_images(small.dataset, split_text=text, seed=3)
    held = split(data.load(small.dataset), text, 3).train.x
    assert not rows(found.x) & rows(held)
    assert len(found.x) == len(found.y) == (30 if text == "official" else 60)
    assert found.classes == 3
    assert found.name.endswith("/test" if text == "official" else "/60/20/20 seed 3")


def test_what_clients_hold_is_refused(small, few):
    with pytest.raises(AttackError, match=r"must not learn from the clients' own images: of 120 of .*, 0 are not held"):
        making.public_images(small.dataset, part="train")
    with pytest.raises(AttackError, match="must not learn"):  # the same images, by another name
        making.public_images(small.dataset, small.dataset.replace("size=12", "size=12 "), part="train")


def test_another_data_set_is_fitted_and_its_classes_are_none_of_ours(small, few, monkeypatch):
    monkeypatch.setattr(making.photos, "pieces", lambda shape: torch.randint(256, (40, *shape), dtype=torch.uint8))
    found = making.public_images(small.dataset, "photos")
    assert (found.name, found.classes, found.x.shape) == ("photos", 0, (40, 3, 12, 12))


def test_a_generator_is_made_once_and_never_shown_what_is_held_out(small, few, monkeypatch):
    seen, real = [], making.trained
    monkeypatch.setattr(making, "trained", lambda x, *rest: seen.append(x) or real(x, *rest))
    first, again = (making.ensure(small.dataset) for _ in range(2))
    assert first == again
    assert len(seen) == 1
    assert len(seen[0]) == 22
    kept = generators.load(first.stem)
    assert kept.facts.clients == data.recipe_of(small.dataset).key
    assert kept.ceiling.shape == (4,)
    assert torch.get_num_threads() > 0


def test_a_generator_that_learned_from_clients_of_a_run_is_refused(small, few):
    facts = generators.load(str(making.ensure(small.dataset))).facts
    making.refuse_held(facts, small.dataset, "official", 0)
    with pytest.raises(AttackError, match=r"which clients of .* hold a part of"):
        making.refuse_held(facts, small.dataset, "60/20/20", 0)
    shared = generators.load(str(making.ensure(small.dataset, split_text="60/20/20", seed=1))).facts
    making.refuse_held(shared, small.dataset, "60/20/20", 1)
    for where in (("60/20/20", 2), ("official", 1)):
        with pytest.raises(AttackError, match="hold a part of"):
            making.refuse_held(shared, small.dataset, *where)
    with pytest.raises(AttackError, match=r"draws images \(3, 12, 12\), and those of .* are \(3, 10, 10\)"):
        making.refuse_held(facts, small.dataset.replace("12", "10"), "official", 0)


def test_a_run_names_the_generator_that_it_had_made_and_says_that_it_is_public(small, few):
    run = engines.run(Experiment(**{**small.model_dump(), "capture": "1", "rounds": 1, "batch_size": 1}), "inline", Watcher())
    session = Session(run, "ggl(iterations=2, seeds=1)", (), InlineWorker(), threads=1)
    name = generator_of(session.built)
    assert generators.NAME.fullmatch(name)
    keys = session.captured()[:2]
    with session.alone():
        session.work(keys, 2)
    assert session.failures() == {}
    told = json.loads((session.folder / "attack.json").read_text())
    assert told["asked"] == "ggl(iterations=2, seeds=1)"
    assert name in told["attack"]
    assert "public examples" in session.knowledge(keys[0]).ledger
    assert {one.asked for one in sessions_of(session, keys, informed=True)} == {told["asked"]}
    assert adversary.build(session.attack) == session.built
