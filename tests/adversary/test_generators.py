"""Generators learn from images, and their files are checked."""

import json
from dataclasses import replace

import pytest
import torch

from adversary import AttackError, generators
from adversary.cases import pictures
from adversary.generators import GeneratorFacts, Kept
from adversary.learned.decoder_training import Batches, GeneratorTraining, average, ceiling, shares, trained
from fl_app.models.generator import Design, build
from fl_app.store.files import checksum, load_tensors, save_tensors

DESIGN = Design(shape=(1, 8, 8), classes=4, latent=8, width=4)
TRAINING = GeneratorTraining(steps=5, batch_size=16)
Y = torch.arange(120) % 4
X = (pictures(Y, torch.Generator().manual_seed(2)) * 255).byte()
KEPT = Kept(
    build(DESIGN),
    GeneratorFacts(design=DESIGN, training=TRAINING, data="blobs/test", images="sum", clients="blobs"),
    torch.tensor([20.0, 22.0]),
)


def test_training_makes_held_out_images_reachable():
    before = ceiling(build(DESIGN), X[:8], Y[:8], steps=60)
    made = trained(X[8:], Y[8:], DESIGN, replace(TRAINING, steps=200, batch_size=32))
    after = ceiling(made, X[:8], Y[:8], steps=60)
    assert after.shape == (8,)
    assert after.mean() > before.mean() + 1.5
    assert not any(value.requires_grad for value in made.parameters())
    drawn = made(torch.zeros(4, 8), torch.eye(4))
    assert torch.pdist(drawn.flatten(1)).min() > 0.1  # the class matters


def test_the_ceiling_of_what_a_generator_drew_is_high():
    network = build(DESIGN, 5)
    drawn = network(0.5 * torch.randn(3, 8, generator=torch.Generator().manual_seed(1)), shares(Y[:3], 4)).detach()
    assert ceiling(network, drawn, Y[:3], steps=300).min() > 40


@pytest.mark.parametrize("adversarial", [0, 3])
def test_training_is_seeded_and_draws_from_its_own_generator(adversarial):
    settings, told = replace(TRAINING, adversarial=adversarial), []
    before = torch.random.get_rng_state()
    one = trained(X, Y, DESIGN, settings, lambda: told.append(1)).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert len(told) == 5 + adversarial
    same, other = (trained(X, Y, DESIGN, replace(settings, seed=seed)).state_dict() for seed in (0, 1))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["last.weight"], other["last.weight"])


def test_fine_tuning_changes_the_decoder():
    plain, tuned = (trained(X, Y, DESIGN, replace(TRAINING, adversarial=number)) for number in (0, 3))
    assert not torch.equal(plain.last.weight, tuned.last.weight)


def test_batches_go_through_all_images_before_one_comes_again():
    batches = Batches(X[:10], torch.arange(10), 10, 4, torch.Generator().manual_seed(0))
    for _ in range(2):
        drawn = [batches.draw() for _ in range(3)]
        assert [len(x) for x, _ in drawn] == [4, 4, 2]
        assert sorted(torch.cat([y.argmax(1) for _, y in drawn]).tolist()) == list(range(10))
    assert drawn[0][0].max() <= 1


def test_the_mean_of_weights_forgets_its_start():
    mean, now = build(DESIGN, 1), build(DESIGN, 2)
    for step in range(40):
        average(mean, now, step)
    torch.testing.assert_close(mean.last.weight, now.last.weight, atol=1e-3, rtol=0)


def test_a_generator_survives_its_file(tmp_path):
    path = tmp_path / "one.safetensors"
    generators.save(KEPT, path)
    found, facts, top = generators.load(str(path))
    assert facts == KEPT.facts
    assert torch.equal(top, KEPT.ceiling)
    z, y = torch.ones(2, 8), torch.eye(4)[:2]
    assert torch.equal(found(z, y), KEPT.generator(z, y))
    assert not any(value.requires_grad for value in found.parameters())


def test_a_name_is_looked_up_in_the_cache_and_says_what_it_was_made_of():
    generators.save(KEPT, generators.file_of(KEPT.facts.name))
    assert generators.load(KEPT.facts.name).facts == KEPT.facts
    others = [
        replace(KEPT.facts, data="blobs/train"),
        replace(KEPT.facts, images="other"),
        replace(KEPT.facts, design=replace(DESIGN, latent=9)),
        replace(KEPT.facts, training=replace(TRAINING, seed=1)),
    ]
    assert len({KEPT.facts.name, *(one.name for one in others)}) == 5


def damage(path, change):
    tensors, notes = load_tensors(path)
    change(tensors, notes)
    save_tensors(path, tensors, notes)


def signed(tensors, notes):
    notes["checksum"] = checksum(tensors)


def infinite(tensors, notes):
    tensors["last.bias"][0] = torch.inf
    signed(tensors, notes)


def renamed(tensors, notes):
    tensors["else"] = tensors.pop("last.bias")
    signed(tensors, notes)


def larger(tensors, notes):
    notes["facts"] = notes["facts"].replace('"width": 4', '"width": 512')


def wrong(tensors, notes):
    notes["facts"] = json.dumps({**json.loads(notes["facts"]), "design": {"shape": [1, 8]}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors, notes: notes.update(format="else"), "is no generator: its format is 'else'"),
        (lambda tensors, notes: tensors["last.bias"].add_(1), "does not have the checksum"),
        (infinite, "does not have the checksum"),
        (renamed, "are not those of the design"),
        (larger, "are not those of the design"),
        (wrong, "what it says about itself cannot be read"),
        (lambda tensors, notes: notes.update(facts="{"), "what it says about itself cannot be read"),
        (lambda tensors, notes: notes.update(facts="{}"), "what it says about itself cannot be read"),
    ],
)
def test_a_damaged_file_is_refused_by_name(change, said, tmp_path):
    path = tmp_path / "one.safetensors"
    generators.save(KEPT, path)
    damage(path, change)
    with pytest.raises(AttackError, match=said) as refusal:
        generators.load(str(path))
    assert "one.safetensors" in str(refusal.value)


def test_what_is_no_file_at_all_is_refused(tmp_path):
    with pytest.raises(AttackError, match=r"there is no generator .*nothing.*thorns train-generator"):
        generators.load(str(tmp_path / "nothing"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(AttackError, match="cannot be read: it is damaged"):
        generators.load(str(tmp_path / "text"))
