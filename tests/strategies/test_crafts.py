"""The weights that malicious servers craft, by the formulas of their papers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fl_app import models
from fl_app.core.local import LocalRule
from strategies.crafts import CRAFTS, CraftError, Scene
from strategies.crafts.base import alternating, edges
from strategies.crafts.fishing import Fishing
from strategies.crafts.imprint import Imprint
from strategies.crafts.loki import Loki
from strategies.crafts.traps import Traps

SHAPE, CLASSES = (1, 4, 4), 3
RULE = LocalRule(batch_size=4)
STEPS = LocalRule(kind="delta", steps=2, lr=0.1)


def examples(number=300):
    return torch.rand(number, *SHAPE, generator=torch.Generator().manual_seed(0))


def network(craft, text="mlp(hidden=[12])", **more):
    model = models.build(text, SHAPE, CLASSES, seed=1, front=craft.front(2), **more)
    return model, models.parameters_of(model)


def changed(craft, server_round=1, public=None, **more):
    """A model, and what a malicious server changes of its weights."""
    model, honest = network(craft, **more)
    scene = Scene(model, examples() if public is None else public, RULE, 0)
    return model, craft.weights(honest, server_round, scene)


def test_bins_are_filled_equally_and_none_is_without_width():
    values = torch.linspace(0, 1, 1001)
    assert edges(values, 4).tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.02)
    repeated = edges(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]), 4)
    # Three of the quantiles are equal: each bin is a hundredth of an equal share wider than that.
    assert repeated.diff()[:3].tolist() == pytest.approx([1 / 400] * 3)
    assert edges(torch.ones(5), 2).diff().tolist() == pytest.approx([1e-6 / 200] * 2, rel=1e-3)
    assert alternating(3, 0.5).tolist() == [[0.5, -0.5, 0.5]]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("views", "rows"), [(1, [5]), (2, [3, 2])])
def test_a_row_of_imprint_measures_how_far_a_brightness_is_above_its_cut(sparse, views, rows):
    """In units of its bin if sparse, so that the next row begins where this one is full; else of half of all bins."""
    _, made = changed(Imprint(bins=5, sparse=sparse, views=views))
    x = examples().flatten(1)
    hidden = 255 * x @ made["front.bins.weight"].T + made["front.bins.bias"]
    for own, brightness in zip(hidden.split(rows, 1), (x.mean(1), x[:, :8].mean(1)), strict=False):
        cuts = edges(brightness, own.shape[1]).float()
        width = cuts.diff() if sparse else (cuts[-1] - cuts[0]) / 2
        torch.testing.assert_close(own, (brightness[:, None] - cuts[:-1]) / width, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(made["front.out.weight"], alternating(5, 0.01))


def test_imprint_reads_local_steps_only_if_an_image_moves_one_bin():
    Imprint().check(RULE)
    Imprint(sparse=True).check(STEPS)
    with pytest.raises(CraftError, match="blur"):
        Imprint().check(STEPS)
    assert Imprint().front(3) == "imprint(bins=1000, sparse=False)"


def test_loki_measures_the_brightness_of_one_client_in_units_of_its_bin():
    craft, x = Loki(bins=6), examples()
    model, honest = network(craft)
    scene = Scene(model, x, RULE, 0)
    shared, brightness = craft.weights(honest, 1, scene), x.flatten(1).mean(1)
    ends = edges(brightness, 6).float()
    for client in (0, 1):
        params = {**honest, **shared, **craft.own(honest, client, scene)}
        kernels = nn.functional.conv2d(x, params["front.conv.weight"], padding=1)
        torch.testing.assert_close(kernels[:, client], 500 * x[:, 0])
        assert not kernels[:, 1 - client].any()
        hidden = kernels.flatten(1) @ params["front.bins.weight"].T + params["front.bins.bias"]
        torch.testing.assert_close(hidden, (brightness[:, None] - ends[:-1]) / ends.diff(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shared["front.out.weight"], alternating(6, 0.01))
    assert all(value.is_contiguous() for value in shared.values()), "each number has a place of its own, as messages need it"
    assert Loki().front(7) == "loki(bins=512, clients=7)"


def test_a_trap_has_as_much_below_zero_as_above_but_for_a_factor():
    _, made = changed(Traps(rate=0.1))
    rows, bias = made.values()
    above, below = (side.clamp_min(0).sort(1).values[:, 8:] for side in (rows, -rows))  # a half of the pixels each
    assert (above > 0).all()
    factors = above / below
    torch.testing.assert_close(factors, factors[:1, :1].expand_as(factors))
    assert not bias.any()
    assert below.square().mean().sqrt().item() == pytest.approx(0.5, rel=0.2)
    _, wide = changed(Traps(rate=0.1, spread=1.0))
    torch.testing.assert_close(next(iter(wide.values())), 2 * rows)


@pytest.mark.parametrize("normalize", [None, ([0.3], [0.5])])
@pytest.mark.parametrize(("rate", "share"), [(0.1, 0.1), (0.0, 0.25)])
def test_a_share_of_public_examples_passes_a_trap_and_by_default_one_in_a_batch(normalize, rate, share):
    x = examples()
    model, made = changed(Traps(rate=rate), normalize=normalize)
    entered = (x if normalize is None else (x - 0.3) / 0.5).flatten(1)
    weight, bias = made.values()
    passed = entered @ weight.T + bias > 1e-6
    assert passed.double().mean().item() == pytest.approx(share, abs=1e-3)
    assert not model.get_submodule("net.fc1" if normalize else "fc1")._forward_pre_hooks


def test_traps_are_of_the_type_of_the_model():
    craft = Traps(rate=0.1)
    model, _ = network(craft)
    model = model.double()
    wide = craft.weights(models.parameters_of(model), 1, Scene(model, examples(), RULE, 0))
    for value, usual in zip(wide.values(), changed(craft)[1].values(), strict=True):
        assert value.dtype == torch.float64
        torch.testing.assert_close(value.float(), usual)


def test_traps_differ_from_round_to_round_and_leave_an_odd_pixel_out():
    rows = [next(iter(changed(Traps(), one)[1].values())) for one in (1, 1, 2)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    model = models.build("mlp(hidden=[5])", (1, 3, 3), CLASSES, seed=1)
    odd = Traps().weights(models.parameters_of(model), 1, Scene(model, torch.rand(20, 1, 3, 3), RULE, 0))
    assert (next(iter(odd.values())) == 0).sum(1).tolist() == [1] * 5


def test_fishing_for_a_class_leaves_its_row_and_is_sure_of_the_others():
    craft = Fishing(kind="class", label=2)
    _, honest = network(craft)
    _, made = changed(craft)
    (name, weight), (_, bias) = made.items()
    assert torch.equal(weight[2], honest[name][2])
    assert not weight[:2].any()
    assert bias.tolist() == [1000, 1000, 0]


@pytest.mark.parametrize("server_round", [1, 2])
def test_fishing_by_a_feature_cuts_public_examples_at_a_quantile(server_round):
    craft = Fishing(step=0.2, label=1, sharpness=300.0)
    x = examples()
    model, honest = network(craft)
    usual = functional_call(model, honest, (x,))[:, 1].double()
    model, made = changed(craft, server_round)
    logits = functional_call(model, {**honest, **made}, (x,)).double()
    cut = torch.quantile(usual, 0.2 * server_round)
    torch.testing.assert_close(logits[:, 1], 300 * (usual - cut) / usual.std(), rtol=1e-3, atol=1e-2)
    assert not logits[:, [0, 2]].any()


def test_the_cut_moves_by_a_step_each_round_and_around():
    scores = torch.linspace(0, 1, 101, dtype=torch.float64)
    cuts = [float(Fishing(step=0.25)._cut(scores, server_round, 8)) for server_round in range(1, 6)]
    assert cuts == pytest.approx([0.25, 0.5, 0.75, 0.25, 0.5])
    assert float(Fishing()._cut(scores, 1, 8)) == pytest.approx(1 / 8)
    assert float(Fishing()._cut(scores, 2, 2)) == pytest.approx(2 / 3)


def test_a_craft_refuses_what_it_cannot_work_with():
    convolution, biased = models.build("lenet", (1, 8, 8), CLASSES, seed=0), nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    unbiased = nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))
    for model in (convolution, unbiased):
        with pytest.raises(CraftError, match="begins with a fully connected layer"):
            Traps().fits(model)
    Traps().fits(biased)
    Fishing(label=2).fits(biased)
    for label, model in ((3, biased), (0, unbiased), (0, nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()))):
        with pytest.raises(CraftError, match="fishing for the class"):
            Fishing(label=label).fits(model)
    with pytest.raises(CraftError, match="several local steps move the traps"):
        Traps().check(STEPS)
    Traps().check(RULE)
    with pytest.raises(CraftError, match="the gradient of one batch"):
        Fishing().check(LocalRule(kind="delta", lr=0.1))
    Fishing().check(RULE)


def test_what_the_answers_to_a_craft_are_for():
    made = {name: make() for name, make in CRAFTS.items()}
    assert {name: one.readout for name, one in made.items()} == {
        "honest": "",
        "fishing": "fishing",
        "imprint": "imprint",
        "loki": "loki",
        "traps": "traps",
    }
    assert [name for name, one in made.items() if one.trains] == ["honest", "imprint", "loki"]
    assert [name for name, one in made.items() if "architecture" in one.chooses] == ["imprint", "loki"]
    assert made["honest"].weights({}, 1, None) == made["honest"].own({}, 0, None) == {}
    assert made["honest"].front(2) == ""
