"""The evaluation network: its file, where it comes from, and what it must not have seen."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn

import client_defenses
from client_defenses.tools import evaluator as evaluation
from client_defenses.tools.evaluator import EvaluatorError, EvaluatorFacts
from client_defenses.tools.evaluator_networks import EvaluatorTraining, paper
from fl_app import data
from fl_app.data import photos
from fl_app.experiment import evaluators
from fl_app.scoring.base import Unavailable
from fl_app.scoring.noise_ratio import noise_ratio

QUICK = EvaluatorTraining(width=4, steps=3, batch_size=8)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path))
    data.load.cache_clear()
    yield tmp_path
    data.load.cache_clear()


@pytest.fixture
def clients(pictures):
    return f"imagefolder(path='{pictures}', size=12)"


@pytest.fixture
def quiet(tmp_path):
    with (tmp_path / "bar").open("w") as out:
        yield Console(file=out)


@pytest.fixture
def made(tmp_path):
    found = evaluation.train(photos.pieces((3, 12, 12), 20), QUICK, "photos", "abc")
    path = tmp_path / "made.safetensors"
    evaluation.save(found, path)
    return found, path


def test_the_network_is_that_of_the_paper():
    network = evaluation.build_network((3, 32, 32), paper(100_000).width)
    convolutions = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [128, 256, 512]
    assert all((layer.kernel_size, layer.stride, layer.padding) == ((3, 3), (2, 2), (1, 1)) for layer in convolutions)
    assert isinstance(network[-1], nn.Sigmoid)
    assert paper(100_000).steps == 20 * 11 * 782


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 12, 20), (1, 9, 5)])
def test_images_of_any_size(shape):
    found = evaluation.train(photos.pieces(shape, 9), QUICK)
    said = found(torch.rand(2, *shape))
    assert said.shape == (2,)
    assert ((said >= 0) & (said <= 1)).all()
    with pytest.raises(EvaluatorError, match="takes images of shape"):
        found(torch.rand(2, 2, *shape[1:]))


def test_training_is_seeded_and_leaves_the_global_generator_alone():
    images = photos.pieces((1, 12, 12), 20)
    before = torch.get_rng_state()
    one, again = (evaluation.train(images, QUICK).network.state_dict() for _ in range(2))
    other = evaluation.train(images, replace(QUICK, seed=1)).network.state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])


def test_what_are_no_images_is_refused():
    for odd in (torch.rand(4, 2, 8, 8), torch.rand(4, 8), torch.rand(0, 1, 8, 8)):
        with pytest.raises(EvaluatorError, match="learns from images"):
            evaluation.train(odd, QUICK)


def test_a_file_gives_back_the_network_and_its_facts(made, rng):
    found, path = made
    read = evaluation.load(path)
    x = torch.rand(5, 3, 12, 12, generator=rng)
    assert torch.equal(read(x), found(x))
    assert read.facts == found.facts == EvaluatorFacts(shape=(3, 12, 12), training=QUICK, data="photos", images="abc")


def rewrite(path, change=None, **notes):
    tensors = load_file(path)
    if change is not None:
        change(tensors)
    facts = {"shape": [3, 12, 12], "training": {"width": 4}, "data": "photos", "images": ""}
    said = {"format": evaluation.FORMAT, "facts": json.dumps(facts), "digest": evaluation.fingerprint_of(tensors)}
    save_file(tensors, path, metadata=said | notes)


@pytest.mark.parametrize(
    ("change", "notes", "said"),
    [
        (lambda t: t.pop("conv2.bias"), {}, "conv2.bias missing or unknown"),
        (lambda t: t.update(more=torch.zeros(2)), {}, "more missing or unknown"),
        (lambda t: t.update({"fc.weight": torch.zeros(1, 3)}), {}, r"fc.weight is \(1, 3\)"),
        (lambda t: t.update({"fc.bias": torch.zeros(1, dtype=torch.float64)}), {}, "fc.bias is .* torch.float64"),
        (lambda t: t["fc.bias"].fill_(torch.nan), {}, "is damaged"),
        (None, {"digest": "0"}, "do not have the checksum"),
        (None, {"format": "other"}, "its format is 'other'"),
        (None, {"facts": "{"}, "cannot be read"),
        (None, {"facts": json.dumps({"shape": [3, 12], "training": {}, "data": "", "images": ""})}, "cannot be read"),
        (None, {"facts": json.dumps({"shape": [9**9] * 3, "training": {}, "data": "", "images": ""})}, "nothing has the shape"),
        (None, {"facts": json.dumps({"shape": [3, 12, 12], "training": {"width": -1}, "data": "", "images": ""})}, "width"),
    ],
)
def test_a_file_that_is_not_exactly_a_network_is_refused_by_name(made, change, notes, said):
    path = made[1]
    rewrite(path)
    evaluation.load(path)
    rewrite(path, change, **notes)
    with pytest.raises(EvaluatorError, match=said) as error:
        evaluation.load(path)
    assert path.name in str(error.value)


def test_bytes_that_are_no_file_are_refused_by_name(made):
    path = made[1]
    whole = path.read_bytes()
    for broken in (whole[:-7], whole[:4], b"", b"\x80\x04K\x01."):
        path.write_bytes(broken)
        with pytest.raises(EvaluatorError, match=r"made.safetensors.*damaged"):
            evaluation.load(path)
    with pytest.raises(EvaluatorError, match=r"missing.safetensors cannot be read"):
        evaluation.load(path.with_name("missing.safetensors"))
    with pytest.raises(EvaluatorError, match="thorns train-evaluator"):
        evaluation.load("")


def test_photos_are_seeded_and_in_range():
    one, again = photos.pieces((3, 16, 16), 30), photos.pieces((3, 16, 16), 30)
    assert torch.equal(one, again)
    assert one.dtype == torch.uint8
    assert one.float().std() > 20
    assert photos.pieces((1, 8, 20), 3).shape == (3, 1, 8, 20)


def test_images_are_made_to_fit(rng):
    grey, colour = (torch.randint(256, (4, c, 10, 10), generator=rng).to(torch.uint8) for c in (1, 3))
    assert torch.equal(evaluators.fit(colour, (3, 10, 10)), colour)
    assert torch.equal(evaluators.fit(grey, (3, 10, 10)), grey.expand(-1, 3, -1, -1))
    assert torch.equal(evaluators.fit(colour, (1, 10, 10)), colour.float().mean(1, keepdim=True).round().to(torch.uint8))
    assert evaluators.fit(grey, (3, 7, 12)).shape == (4, 3, 7, 12)


def test_a_network_is_made_once_and_kept_by_what_it_was_made_of(cache, clients, quiet, monkeypatch):
    monkeypatch.setattr(photos, "NUMBER", 20)
    path = evaluators.ensure(clients, training=QUICK, console=quiet)
    assert path.parent == cache / "evaluators"
    assert evaluation.load(path).facts.shape == (3, 12, 12)
    other = evaluators.ensure(clients, training=replace(QUICK, seed=1), console=quiet)
    assert other != path
    with monkeypatch.context() as more:
        more.setattr(photos, "NUMBER", 21)
        assert evaluators.ensure(clients, training=QUICK, console=quiet) != path
    monkeypatch.setattr(evaluation, "train", None)  # it would be called
    assert evaluators.ensure(clients, training=QUICK, console=quiet) == path


def test_the_clients_own_images_are_refused(cache, clients, quiet):
    with pytest.raises(EvaluatorError, match="must not learn from the clients' own images"):
        evaluators.ensure(clients, public=clients, training=QUICK, console=quiet)
    with pytest.raises(EvaluatorError, match="must not learn from the clients' own images"):
        evaluators.ensure(clients, public=clients, part="test", split="70/15/15", training=QUICK, console=quiet)
    evaluators.ensure(clients, public=clients, part="test", training=QUICK, console=quiet)  # nobody's, in the official split
    # The same images under another name.
    facts = EvaluatorFacts(shape=(3, 12, 12), data="other/train", images=evaluators.checksum_of(data.load(clients).train.x))
    with pytest.raises(EvaluatorError, match="other/train"):
        evaluators.refuse_same(facts, clients)
    with pytest.raises(EvaluatorError, match="the part must be one of"):
        evaluators.ensure(clients, part="all", console=quiet)


def test_a_run_gives_every_refiner_its_network(cache, clients, quiet, monkeypatch, tmp_path):
    monkeypatch.setattr(photos, "NUMBER", 20)
    monkeypatch.setattr(evaluators, "EvaluatorTraining", lambda: QUICK)
    chain = evaluators.prepared(client_defenses.build("refiner(eps=0.1) + prune"), clients, console=quiet)
    name = chain.parts[0].evaluator
    assert evaluation.load(name).facts.data == "photos"
    assert chain.parts[0].eps == 0.1
    assert chain.parts[1] == client_defenses.build("prune")
    alone = client_defenses.build(f"refiner(evaluator='{name}')")
    assert evaluators.prepared(alone, clients, console=quiet) is alone
    plain = client_defenses.build("none")
    assert evaluators.prepared(plain, clients) is plain
    grey = tmp_path / "grey.safetensors"
    evaluation.save(evaluation.train(photos.pieces((1, 12, 12), 9), QUICK), grey)
    with pytest.raises(EvaluatorError, match=r"images of shape \(1, 12, 12\)"):
        evaluators.prepared(replace(alone, evaluator=str(grey)), clients)
    own = tmp_path / "own.safetensors"
    evaluation.save(evaluation.train(photos.pieces((3, 12, 12), 9), QUICK, f"{data.load(clients).name}/train"), own)
    with pytest.raises(EvaluatorError, match="must not learn"):
        evaluators.prepared(replace(alone, evaluator=str(own)), clients)


def test_a_name_holds_after_a_move_to_another_home(cache, clients, quiet, monkeypatch, tmp_path):
    monkeypatch.setattr(photos, "NUMBER", 20)
    monkeypatch.setattr(evaluators, "EvaluatorTraining", lambda: QUICK)
    before = evaluators.prepared(client_defenses.build("refiner"), clients, console=quiet)
    assert str(cache) not in before.evaluator
    there = tmp_path / "another home"
    shutil.copytree(cache / "evaluators", there / "evaluators")
    shutil.rmtree(cache / "evaluators")
    monkeypatch.setenv("THORNS_DATA", str(there))
    assert evaluation.load(before.evaluator).facts.shape == (3, 12, 12)
    assert evaluators.prepared(client_defenses.build("refiner"), clients, console=quiet) == before
    monkeypatch.setenv("THORNS_DATA", str(cache))
    with pytest.raises(EvaluatorError, match="cannot be read"):
        evaluation.load(before.evaluator)
    assert evaluation.load(there / "evaluators" / f"{before.evaluator}.safetensors").facts.shape == (
        3,
        12,
        12,
    )  # a path works too


def test_the_command(cache, clients, monkeypatch, tmp_path):
    from fl_app.cli.evaluator import train_evaluator

    monkeypatch.setattr(photos, "NUMBER", 20)
    with (tmp_path / "shown").open("w") as out:
        train_evaluator(Console(file=out, width=500), "photos", clients, width=4, steps=3)
    shown = (tmp_path / "shown").read_text()
    assert "evaluators" in shown
    assert "refiner(evaluator=" in shown


def test_the_noise_ratio_or_why_there_is_none(made, rng):
    found, path = made
    x = torch.rand(600, 3, 12, 12, generator=rng)
    ratio = noise_ratio(x, path)
    torch.testing.assert_close(ratio, found(x).double(), atol=1e-6, rtol=1e-6)
    for missing in ("", None):
        with pytest.raises(Unavailable, match="train-evaluator"):
            noise_ratio(x, missing)
    with pytest.raises(Unavailable, match="takes images of shape"):
        noise_ratio(x[..., 1:], path)
    path.write_bytes(b"")
    with pytest.raises(Unavailable, match="damaged"):
        noise_ratio(x, path)


def test_the_error_of_a_network_is_its_mean_distance_to_the_share(made):
    found, _ = made
    x = photos.pieces((3, 12, 12), 6).float() / 255

    def half(images):
        return torch.full((len(images), 1), 0.5)

    assert evaluation.noise_error(found._replace(network=half), x) == pytest.approx(3 / 11)  # |0.5 - r| over 0, 0.1, ..., 1


def test_no_name_is_no_network():
    with pytest.raises(EvaluatorError, match="there is no evaluation network"):
        evaluation.load("")
