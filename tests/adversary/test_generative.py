"""Searches in codes, in the weights and in the feature maps of a generator."""

from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize
from torch.distributions import Normal, kl_divergence

import adversary
from adversary import AttackError, generators
from adversary.adapted import Adapted, clipped
from adversary.cases import case_of, pictures
from adversary.generative import generator_of, with_generator
from adversary.generators import GeneratorFacts, Kept
from adversary.learned.decoder_training import GeneratorTraining
from adversary.objectives import L2
from adversary.search.matching import Matching
from adversary.search.optimizers import Adam
from adversary.search.phases import Phase
from adversary.spaces import FeatureMaps, GeneratorWeights, Latent, Pixels
from adversary.spaces.feature_maps import in_ball
from adversary.spaces.latent import Generated
from fl_app.core.local import local_update
from fl_app.models.generator import Design, build

DESIGN = Design(shape=(1, 8, 8), classes=4, latent=8, width=4)
CASE = case_of(adversary.cases._convolutional)
CLASSES = torch.tensor([[0], [1], [2]])


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    """The file of a generator with random weights, large enough that codes matter."""
    network = build(DESIGN, 3)
    with torch.no_grad():
        for value in network.parameters():
            value.mul_(2)
    facts = GeneratorFacts(design=DESIGN, training=GeneratorTraining(), data="blobs/test", images="", clients="blobs")
    path = tmp_path_factory.mktemp("generators") / "one.safetensors"
    generators.save(Kept(network, facts, torch.empty(0)), path)
    return str(path)


def drawn_by(name):
    """The case with targets that the generator drew: within its reach by construction."""
    network = generators.load(name).generator
    z = torch.randn(3, 8, generator=torch.Generator().manual_seed(8))
    x = network(z, torch.eye(4)[:3])[:, None]
    rule = CASE.seen[0].rule
    pairs = zip(CASE.seen, x, CLASSES, strict=True)
    seen = [replace(one, update=local_update(CASE.task.model, one.params, own, y, rule)) for one, own, y in pairs]
    return x, seen


def error(guess, x):
    return (guess.x - x).square().flatten(1).mean(1)


@pytest.mark.parametrize("optimizer", ["adam", "cma"])
def test_ggl_finds_what_the_generator_drew_and_its_control_does_not(name, optimizer):
    x, seen = drawn_by(name)
    spec = {"adam": "iterations=150, seeds=2", "cma": "optimizer=cma, iterations=60, population=12"}[optimizer]
    guess = adversary.build(f"ggl(generator='{name}', kl=0.0, {spec})")(seen, CASE.task, 0)
    assert guess.y[:, 0].tolist() == [0, 1, 2]
    assert (error(guess, x) < 0.2 * (guess.control - x).square().flatten(1).mean(1)).all()


def test_gias_goes_beyond_what_the_generator_draws_and_gifd_too(name):
    first = Matching(
        objective=L2(), space=Latent(generator=name, weight=0.0), labels="count_rows", optimizer=Adam(iterations=40, lr=0.1)
    )
    alone = first(CASE.seen, CASE.task, 0)
    for space, rate in ((GeneratorWeights(generator=name), 0.01), (FeatureMaps(generator=name, radius=5.0), 0.05)):
        both = replace(first, phases=(Phase(space=space, optimizer=Adam(iterations=40, lr=rate)),))
        beyond = both(CASE.seen, CASE.task, 0)
        assert (beyond.loss < alone.loss).all()
        assert error(beyond, CASE.x).mean() < 0.8 * error(alone, CASE.x).mean()


def bound(space, classes=CLASSES):
    return space.bind(CASE.task, classes)


def starts(variables, seeds=2):
    drawn = [variables.draw(seeds, 1, torch.Generator().manual_seed(i)) for i in range(3)]
    return {key: torch.stack([one[key] for one in drawn]) for key in drawn[0]}


def test_every_phase_starts_at_the_image_that_was_found(name):
    codes = bound(Latent(generator=name))
    z = {key: value[:, :1] for key, value in starts(codes).items()}
    x = codes.inputs(z)
    assert x.shape == (3, 1, 1, 1, 8, 8)
    before, found = codes, z
    for space in (FeatureMaps(generator=name, stage=1), FeatureMaps(generator=name, stage=2)):
        now = bound(space)
        found = now.continued(found, before)
        torch.testing.assert_close(now.inputs(found), x)
        before = now
    weights = bound(GeneratorWeights(generator=name))
    torch.testing.assert_close(weights.inputs(weights.continued(z, codes)), x)
    for space in (GeneratorWeights(generator=name), FeatureMaps(generator=name, stage=1)):
        with pytest.raises(AttackError, match="goes on from a search in"):
            bound(space).continued(found, before)
        with pytest.raises(AttackError, match="goes on from a search in"):
            bound(space).continued({"x": torch.zeros(3, 1, 1, 1, 8, 8)}, Pixels().bind(CASE.task))


@pytest.mark.parametrize("kind", [Latent, GeneratorWeights, FeatureMaps])
def test_many_reconstructions_are_those_of_a_loop(name, kind):
    variables = bound(kind(generator=name))
    z = starts(variables)
    together = variables.answer(z)
    assert together.shape == (3, 2, 1, 1, 8, 8)
    for target in range(3):
        own = bound(kind(generator=name), CLASSES[target : target + 1])
        for seed in range(2):
            alone = own.answer({key: value[target : target + 1, seed : seed + 1] for key, value in z.items()})
            torch.testing.assert_close(together[target, seed], alone[0, 0])


@pytest.mark.parametrize(("kind", "moved"), [(GeneratorWeights, "weights."), (FeatureMaps, "maps")])
def test_what_is_only_read_has_no_gradient(name, kind, moved):
    variables = bound(kind(generator=name))
    z = {key: value.requires_grad_() for key, value in starts(variables).items()}
    slopes = torch.autograd.grad(variables.inputs(z).sum(), list(z.values()), materialize_grads=True)
    for key, slope in zip(z, slopes, strict=True):
        assert bool(slope.any()) == key.startswith(moved), key


def test_the_penalty_is_the_divergence_of_the_entries_of_a_code(name):
    codes = bound(Latent(generator=name, weight=0.5))
    z = starts(codes)
    found = codes.penalty(z)
    for place in ((0, 0), (2, 1)):
        entries = z["z"][place][0]
        law = Normal(entries.mean(), entries.std(correction=0))
        assert found[place].item() == pytest.approx(0.5 * kl_divergence(law, Normal(0.0, 1.0)).item(), rel=1e-4)
    assert bound(Latent(generator=name, weight=0.0)).residuals(z).shape == (3, 2, 0)
    with pytest.raises(AttackError, match="no sum of squares"):
        codes.residuals(z)


def test_classes_are_searched_for_where_they_are_not_known(name):
    x, seen = drawn_by(name)
    search = Matching(space=Latent(generator=name), labels="joint", optimizer=Adam(iterations=3))
    guess = search(seen, CASE.task, 0)
    assert guess.x.shape == x.shape
    soft = bound(Latent(generator=name), torch.full((3, 1, 4), 0.25))
    assert soft.shares(starts(soft)).unique().item() == 0.25


def test_the_ball_is_that_of_an_independent_solver(rng):
    x = torch.randn(4, 6, generator=rng)
    near = in_ball(x, 1.5)
    assert (near.abs().sum(1) <= 1.5 + 1e-5).all()
    assert torch.equal(in_ball(0.1 * x, 1.5), 0.1 * x)
    for one, found in zip(x.double().numpy(), near.double().numpy(), strict=True):
        bounds = [(0, None)] * 12  # of the positive and the negative parts
        limit = {"type": "ineq", "fun": lambda parts: 1.5 - parts.sum()}
        best = minimize(
            lambda parts, one=one: ((parts[:6] - parts[6:] - one) ** 2).sum(), [0.1] * 12, bounds=bounds, constraints=limit
        )
        assert ((found - one) ** 2).sum() == pytest.approx(best.fun, abs=1e-4)


def test_maps_stay_in_the_ball_of_each_example(name):
    variables = bound(FeatureMaps(generator=name, radius=0.01))
    z = starts(variables)
    far = {**z, "maps": z["maps"] + 1}
    near = variables.project(far)
    sizes = (near["maps"] - z["start"]).flatten(3).abs().sum(-1)
    torch.testing.assert_close(sizes, torch.full_like(sizes, 0.01 * z["start"][0, 0, 0].numel()))
    assert torch.equal(near["start"], z["start"])


def test_adapted_loses_zeros_and_size_before_it_compares():
    seen = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    masked = clipped({"a": torch.tensor([6.0, 9.0]), "b": torch.tensor([8.0])}, seen)
    assert {name: value.tolist() for name, value in masked.items()} == {"a": [3, 0], "b": [4]}
    small = {"a": torch.tensor([0.3, 9.0]), "b": torch.tensor([0.4])}
    assert torch.equal(clipped(small, seen)["a"], torch.tensor([0.3, 0.0]))  # nothing was clipped that is not larger
    adapted = Adapted(objective=L2())
    assert adapted({"a": torch.tensor([6.0, 9.0]), "b": torch.tensor([8.0])}, seen, 0.0).item() == pytest.approx(0, abs=1e-9)
    loss = adapted(small, seen, 0.0)
    assert adapted.residuals(small, seen, 0.0).square().sum().item() == pytest.approx(loss.item())
    assert loss.item() == pytest.approx(2.7**2 + 3.6**2)


def test_a_generator_is_named_wherever_one_is_searched_in():
    assert generator_of(adversary.build("idlg")) is None
    for spec in ("ggl", "gias", "gifd(stages=1)", "matching(space=latent, phases=[phase(space=feature_maps, optimizer=adam)])"):
        attack = adversary.build(spec)
        assert generator_of(attack) == ""
        assert attack.trained
        named = with_generator(attack, "x")
        assert generator_of(named) == "x"
        assert not named.trained
        search = named if isinstance(named, Matching) else named.matching()
        assert {one.generator for one in (search.space, *(phase.space for phase in search.phases))} == {"x"}
        assert adversary.build(adversary.text_of(named)) == named
    assert with_generator(adversary.build("idlg"), "x") == adversary.build("idlg")


def test_a_generator_of_other_images_is_refused(name, tmp_path):
    _, facts, top = generators.load(name)
    for design, said in ((replace(DESIGN, classes=3), "of 3 classes"), (replace(DESIGN, shape=(3, 8, 8)), r"\(3, 8, 8\)")):
        path = tmp_path / "other.safetensors"
        generators.save(Kept(build(design), replace(facts, design=design), top), path)
        with pytest.raises(AttackError, match=said):
            bound(Latent(generator=str(path)))
    with pytest.raises(AttackError, match="has 2 stages"):
        bound(FeatureMaps(generator=name, stage=3))
    with pytest.raises(AttackError, match="there is no generator: make one"):
        bound(Latent())


def test_a_generator_that_knows_no_classes_takes_any(tmp_path):
    design = replace(DESIGN, classes=0)
    facts = GeneratorFacts(design=design, training=GeneratorTraining(), data="else/train", images="", clients="blobs")
    generators.save(Kept(build(design), facts, torch.empty(0)), tmp_path / "one")
    codes = bound(Latent(generator=str(tmp_path / "one")))
    assert codes.inputs(starts(codes)).shape == (3, 2, 1, 1, 8, 8)
    maps = bound(FeatureMaps(generator=str(tmp_path / "one")))
    assert maps.inputs(starts(maps)).shape == (3, 2, 1, 1, 8, 8)


def test_what_is_learned_on_the_spot_is_a_generator_of_the_task(monkeypatch):
    monkeypatch.setattr("adversary.spaces.latent.OWN", GeneratorTraining(steps=2, batch_size=8))
    learned = Generated.learn(Latent(), CASE.public, CASE.task)
    network = Latent().network(CASE.task, learned)
    assert (network.design.shape, network.design.classes) == ((1, 8, 8), 4)
    rows = adversary.cases.case_of(adversary.cases._tabular)
    with pytest.raises(AttackError, match="and these examples are none"):
        Generated.learn(Latent(), rows.public, rows.task)


def test_informed_variants_stay_in_the_generator():
    found = adversary.build("ggl(generator=x)").informed("dp_gaussian(scale=0.1)", adversary.Facts(public=1000))
    assert found
    assert all(one.attack.space == Latent(generator="x", weight=1.0) for one in found)
    assert pictures(torch.arange(2), torch.Generator().manual_seed(0)).shape == (2, 1, 8, 8)
