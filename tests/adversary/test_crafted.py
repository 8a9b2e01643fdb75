"""Read-outs of crafted weights: what they find in one update of known images, and what they refuse."""

from dataclasses import dataclass, replace

import pytest
import torch

import adversary
from adversary import Attack, AttackError, Belief
from adversary.exact.fishing import NEVER, FishingReadout, _singles
from adversary.exact.imprint import _differences, _View
from adversary.exact.loki import LokiReadout
from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images
from helpers.crafted_scenes import CLASSES, LEVELS, SHAPE, by_feature, images, public, seen_by
from strategies.crafts import CRAFTS, Scene


def farthest(guess, x):
    """How far the true image that was found worst is from the nearest that was found."""
    return torch.cdist(x.flatten(1), guess.x.flatten(0, 1).flatten(1)).amin(1).max().item()


def test_traps_believe_images_that_neurons_agree_on():
    seen, task = seen_by("traps", [images()[:2]], text="mlp(hidden=[10])")
    bright, dark = (images()[0].index_fill(2, torch.tensor(1), value) for value in (1.02, -0.02))  # no pixels of images
    rows = torch.stack([images()[0], images()[0] + 0.0015, images()[1], images()[1] + 0.0005, *[bright] * 3, *[dark] * 3])
    rows = rows.flatten(1)
    bias = torch.tensor([0.4, -0.2, 0.3, 0.1, 0.1, 0.1, 0.1, -0.1, 0.1, 0.1])
    update = {**seen[0].update, "fc1.weight": rows * bias[:, None], "fc1.bias": bias}
    guess = adversary.build("traps")([replace(seen[0], update=update)], task, 0)
    torch.testing.assert_close(guess.x[0, 0], images()[1], rtol=0, atol=6e-4)  # two are less than 0.001 apart
    torch.testing.assert_close(guess.x[0, 1], images()[0], rtol=0, atol=2e-3)


def test_traps_read_images_through_a_normalisation():
    x = images(LEVELS[:1])
    craft = CRAFTS["traps"](rate=0.5)
    model = models.build("mlp(hidden=[50])", SHAPE, CLASSES, seed=1, normalize=([0.3], [0.25]))
    honest, rule = models.parameters_of(model), LocalRule(batch_size=1)
    params = {**honest, **craft.weights(honest, 1, Scene(model, public(), rule, 0))}
    update = local_update(model, params, x, torch.tensor([2]), rule)
    seen = Observation(params=params, update=update, rule=rule, num_examples=1, server_round=1)
    guess = adversary.build("traps")([seen], Task(model, Images(SHAPE), CLASSES), 0)
    assert farthest(guess, x) < 1e-3
    assert guess.loss.item() == 0


def test_traps_in_double_precision():
    x = images(LEVELS[:1]).double()
    model = models.build("mlp(hidden=[50])", SHAPE, CLASSES, seed=1).double()
    honest, rule = models.parameters_of(model), LocalRule(batch_size=1)
    made = CRAFTS["traps"](rate=0.5).weights(honest, 1, Scene(model, public(), rule, 0))
    assert all(value.dtype == torch.float64 for value in made.values())
    params = {**honest, **made}
    update = local_update(model, params, x, torch.tensor([2]), rule)
    seen = Observation(params=params, update=update, rule=rule, num_examples=1, server_round=1)
    guess = adversary.build("traps")([seen], Task(model, Images(SHAPE), CLASSES), 0)
    assert guess.x.dtype == torch.float64
    assert farthest(guess, x) < 1e-9


@pytest.mark.parametrize("settings", [{}, {"sparse": True}, {"views": 1}, {"views": 1, "sparse": True}])
def test_imprint_finds_each_image_that_is_alone_in_its_bin(settings):
    seen, task = seen_by("imprint", [images()], bins=40, **settings)
    guess = adversary.build("imprint")(seen, task, 0)
    assert farthest(guess, images()) < 1e-3
    assert guess.loss.item() == 0


def test_an_image_that_shares_its_bin_is_found_where_another_view_tells_them_apart():
    x = images()
    x[1] = images(LEVELS[:1], seed=6)[0]
    x[1, 0, :2] += 0.1  # as bright as the first as a whole, and brighter in its first half
    x[1, 0, 2:] -= 0.1
    for views, apart in ((1, False), (2, True)):
        seen, task = seen_by("imprint", [x], bins=40, views=views)
        guess = adversary.build("imprint")(seen, task, 0)
        assert (farthest(guess, x) < 1e-3) is apart
        assert (guess.loss.item() == 0) is apart


def test_an_image_that_its_bias_puts_outside_of_its_bin_is_scaled_by_the_bin():
    """Noise on the bias is noise on the scale of the image; its bin says that up to a half of its width."""
    seen, task = seen_by("imprint", [images()], bins=40, views=1, sparse=True)
    bias = seen[0].update["front.bins.bias"]
    for factor in (1.5, 0.94):  # the brightness that follows is lower, or higher by one and a half widths
        off = replace(seen[0], update={**seen[0].update, "front.bins.bias": factor * bias})
        assert farthest(adversary.build("imprint")([off], task, 0), images()) < 0.06
    near = replace(seen[0], update={**seen[0].update, "front.bins.bias": 0.999 * bias})
    assert 1e-4 < farthest(adversary.build("imprint")([near], task, 0), images()) < 5e-3


def test_bins_that_moved_next_to_nothing_are_empty():
    x = images()
    x[1] = images(LEVELS[:1], seed=6)[0]  # in the bin of the first
    seen, task = seen_by("imprint", [x], bins=40, views=1)
    rng = torch.Generator().manual_seed(0)
    noise = {name: 1e-9 * value.abs().max() * torch.randn(value.shape, generator=rng) for name, value in seen[0].update.items()}
    noisy = replace(seen[0], update={name: value + noise[name] for name, value in seen[0].update.items()})
    assert adversary.build("imprint(least=0.001)")([noisy], task, 0).loss.item() == pytest.approx(0.25)


@dataclass(frozen=True, kw_only=True)
class Believes(Attack):
    def run(self, seen, task, streams):
        return Belief(torch.zeros(len(seen), 2))


def test_fishing_refuses_an_attack_that_rebuilds_nothing():
    seen, task = seen_by("fishing", [images()], kind="class", label=1)
    with pytest.raises(AttackError, match="needs an attack that rebuilds examples"):
        FishingReadout(attack=Believes())(seen, task, 0)


def test_sparse_imprint_finds_images_in_local_steps_up_to_the_width_of_a_bin():
    rule = LocalRule(kind="delta", batch_size=2, steps=2, lr=0.01)
    seen, task = seen_by("imprint", [images()], rule, bins=100, sparse=True)
    guess = adversary.build("imprint")(seen, task, 0)
    assert guess.loss.item() == 0
    assert farthest(guess, images()) < 0.05


def test_which_bin_of_a_ladder_an_image_is_in():
    view = _View(
        look=torch.tensor([0.5, 0.5]),
        ends=torch.tensor([0.2, 0.4, 0.6, 0.8]),
        hit=torch.tensor([True, False, True]),
        x=torch.empty(0, 2),
        moved=torch.empty(0),
    )
    brightness = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9])
    assert view.holds(brightness[:, None].expand(-1, 2)).tolist() == [False, True, True, False, False, True, True, True]


def test_differences_of_neighbouring_rows_end_with_the_last_row():
    assert _differences(torch.tensor([[5.0, 1.0], [3.0, 4.0], [2.0, 2.0]])).tolist() == [[2, -3], [1, 2], [2, 2]]


def test_loki_finds_the_images_of_one_client_exactly():
    seen, task = seen_by("loki", [images(), images(seed=7)], bins=40)
    for one, x in zip(seen, (images(), images(seed=7)), strict=True):
        guess = adversary.build("loki")([one], task, 0)
        assert farthest(guess, x) < 1e-3
        assert guess.loss.item() == 0


def test_loki_tells_clients_apart_in_the_mean_of_their_updates():
    """Their images lie in the same bins; the scale is then known up to the width of a bin."""
    batches = [images(), images(seed=7)]
    seen, task = seen_by("loki", batches, bins=100)
    mean = {name: (value + seen[1].update[name]) / 2 for name, value in seen[0].update.items()}
    sent = {1: {"front.conv.weight": seen[1].params["front.conv.weight"]}}
    both = replace(seen[0], update=mean, num_examples=8, client=-1, visibility="aggregate", sent=sent)
    guess = adversary.build("loki")([both], task, 0)
    assert guess.loss.item() == 0
    assert farthest(guess, torch.cat(batches)) < 0.05


def test_a_bin_counts_if_it_moved_beside_the_one_that_moved_most_and_no_more_than_there_are_examples():
    moved = torch.tensor([[5.0, -1.0, 0.0], [0.002, 0.5, -0.006]])
    hits = LokiReadout(least=1e-3)._hits
    assert hits(moved, 6).tolist() == [[True, True, False], [False, True, True]]
    assert hits(moved, 2).tolist() == [[True, True, False], [False, False, False]]
    assert not hits(torch.zeros(1, 2), 2).any()


def test_traps_find_an_image_that_neurons_agree_on_and_leave_out_blends():
    seen, task = seen_by("traps", [images()], text="mlp(hidden=[300])", rate=0.3)
    guess = adversary.build("traps")(seen, task, 0)
    found = torch.cdist(guess.x[0].flatten(1), images().flatten(1)).amin(1) < 1e-3
    missing = round(4 * guess.loss.item())
    assert found[: 4 - missing].any()
    assert (guess.x[0, 4 - missing :] == 0.5).all()


def scores(x, task):
    """What the honest model says of the class 0."""
    with torch.no_grad():
        return task.model(x)[:, 0]


def test_rounds_of_fishing_differ_by_the_gradient_of_the_example_between_their_cuts():
    known = public()
    _, task = by_feature(known[:3])
    order = scores(known, task).argsort()
    x = known[order[[40, 150, 250, 380]]]  # below the first cut, between the cuts, above the last
    seen, task = by_feature(x)
    singles = _singles(seen, task)
    assert len(singles) == 2
    for one, image in zip(singles, x[1:3], strict=True):
        assert one.params["head.bias"].tolist() == [NEVER, 0, 0]
        assert one.params["head.weight"][0].norm().item() == pytest.approx(1)
        assert (one.num_examples, one.rule, one.knowledge.labels.tolist()) == (1, LocalRule(batch_size=1), [0])
        true = local_update(task.model, one.params, image[None], torch.tensor([0]), one.rule)
        for name, value in one.update.items():
            torch.testing.assert_close(value, true[name], rtol=1e-2, atol=1e-4)
    guess = adversary.build("fishing(attack=readout(labels=given))")(seen, task, 0)
    assert farthest(guess, x[1:3]) < 1e-2
    assert guess.loss.tolist() == [0.5] * 3  # two of four were found, for each of the rounds


def test_fishing_for_a_class_finds_the_only_example_of_it():
    seen, task = seen_by("fishing", [images()], kind="class", label=1)  # classes are 0, 1, 2, 0
    guess = adversary.build("fishing(attack=readout(labels=given))")(seen, task, 0)
    assert torch.allclose(guess.x[0, 0], images()[1], atol=1e-3)
    assert guess.loss.item() == pytest.approx(0.75)
    seen, task = seen_by("fishing", [images()], kind="class", label=0)  # two of them
    assert adversary.build("fishing(attack=readout(labels=given))")(seen, task, 0).loss.item() == 1


def test_fishing_compares_rounds_of_the_same_examples_and_weights_alone():
    seen, task = by_feature(images())
    for told in (seen[:1], [replace(one, knowledge=Knowledge()) for one in seen]):
        with pytest.raises(AttackError, match="--grant repeats"):
            _singles(told, task)
    trained = {**seen[1].params, "fc1.weight": seen[1].params["fc1.weight"] + 1}
    with pytest.raises(AttackError, match="capture them in a row"):
        _singles([seen[0], replace(seen[1], params=trained)], task)


def test_fishing_is_as_long_as_the_attack_on_one_example():
    attack = adversary.build("fishing(attack=inverting_gradients(iterations=70))")
    rule = LocalRule(batch_size=8)
    assert attack.cost(8, rule) == attack.attack.cost(1, LocalRule(batch_size=1)) == 70
    assert attack.shortened(3).attack.cost(1, rule) == 3
    assert attack.by_client
    assert adversary.build("fishing(attack=readout)").shortened(3) is None


def test_weights_that_were_not_crafted_are_refused():
    for craft, words in (("imprint", "no imprint block"), ("loki", "no block of LOKI")):
        seen, task = seen_by(craft, [images()], bins=4)
        plain = replace(seen[0], params={name: torch.zeros_like(value) for name, value in seen[0].params.items()})
        with pytest.raises(AttackError, match=words):
            adversary.build(craft)([plain], task, 0)
        with pytest.raises(AttackError, match=words):
            adversary.build(craft)(*seen_by("honest", [images()]), 0)
    with pytest.raises(AttackError, match="not one of which a single class is left"):
        adversary.build("fishing")(*seen_by("honest", [images()]), 0)
    seen, task = seen_by("traps", [images()])
    with pytest.raises(AttackError, match="no linear layer with a bias"):
        adversary.build("traps")([replace(seen[0], update={})], task, 0)
    with pytest.raises(AttackError, match="does not read the image"):
        adversary.build("traps")(*seen_by("honest", [images()], text="lenet"), 0)
