"""SPEAR's decomposition on layers whose slopes are known: what it answers, and what counts as a proof."""

import pytest
import torch
from torch.nn.functional import normalize

from adversary import AttackError
from adversary.exact import decompose as code
from adversary.exact.decompose import _Search, decompose, rank_of
from helpers.planted import INPUTS, NEURONS, planted, search


@pytest.mark.parametrize(
    ("examples", "dtype", "error"),
    [
        *((examples, torch.float64, 1e-9) for examples in (1, 2, 3, 6)),
        *((examples, torch.float32, 1e-4) for examples in (1, 4)),
        (1, torch.float16, 5e-3),
    ],
)
def test_inputs_and_slopes_follow_from_the_gradient_of_a_layer(examples, dtype, error):
    layer, inputs, slopes = planted(examples, dtype)
    found = decompose(layer, examples, torch.Generator().manual_seed(0), draws=2000)
    assert found.gamma == 1
    order = torch.cdist(inputs, found.inputs).argmin(1)
    assert sorted(order.tolist()) == list(range(examples))
    assert (found.inputs[order] - inputs).abs().max() < error * inputs.abs().max()
    assert (found.slopes[order].T - slopes).abs().max() < error * slopes.abs().max()
    assert ((found.slopes[order].T == 0) == (slopes == 0)).all()


def test_slopes_may_all_have_one_sign():
    layer, inputs, slopes = planted(2)
    for sign in (1, -1):
        own = sign * slopes.abs()
        told = layer._replace(weight_gradient=own @ inputs, bias_gradient=own.sum(1))
        assert decompose(told, 2, torch.Generator().manual_seed(0), draws=2000).gamma == 1


def test_no_more_examples_are_found_than_the_rank_or_than_were_asked_for():
    layer, _, _ = planted(3)
    for asked, found in ((5, 3), (3, 3)):
        assert len(decompose(layer, asked, torch.Generator().manual_seed(0), draws=2000).inputs) == found
    assert decompose(layer, 2, torch.Generator().manual_seed(0), draws=200).gamma < 1
    assert decompose(layer, 3, torch.Generator(), draws=0).gamma == 0  # nothing was searched


def test_the_rank_is_how_many_singular_values_stand_out():
    matrix = torch.diag(torch.tensor([2.0, 2e-3, 2e-6]))
    assert [rank_of(matrix, tolerance) for tolerance in (1e-7, 1e-5, 1e-2)] == [3, 2, 1]
    whole = torch.outer(torch.arange(1.0, 201.0), torch.arange(1.0, 201.0))  # exact in single precision
    assert rank_of(whole, 1e-10) == 1


def test_a_layer_that_learned_nothing_tells_nothing():
    layer, _, _ = planted(2)
    nothing = layer._replace(weight_gradient=torch.zeros(NEURONS, INPUTS), bias_gradient=torch.zeros(NEURONS))
    with pytest.raises(AttackError, match="is zero"):
        decompose(nothing, 2, torch.Generator(), draws=10)


def test_a_tolerance_bridges_noise_that_the_precision_does_not():
    layer, inputs, _ = planted(3)
    rng = torch.Generator().manual_seed(2)
    noisy = layer._replace(
        weight_gradient=layer.weight_gradient + 1e-5 * torch.randn(NEURONS, INPUTS, generator=rng, dtype=torch.float64)
    )
    assert decompose(noisy, 3, torch.Generator().manual_seed(0), draws=256).gamma < 1
    found = decompose(noisy, 3, torch.Generator().manual_seed(0), draws=256, tolerance=1e-3)
    assert found.gamma == 1
    assert torch.cdist(inputs, found.inputs).amin(1).max() < 1e-3


@pytest.mark.parametrize(("little", "dimensions"), [(3e-9, 2), (3e-12, 1)])
def test_an_example_counts_from_a_tenth_of_what_is_taken_for_zero_on(little, dimensions, monkeypatch):
    layer, inputs, slopes = planted(2)
    slopes[:, 1] *= little
    weak = layer._replace(weight_gradient=slopes @ inputs, bias_gradient=slopes.sum(1))
    sizes = []
    monkeypatch.setattr(code, "_Search", lambda layer, size, *rest: sizes.append(size) or _Search(layer, size, *rest))
    decompose(weak, 2, torch.Generator().manual_seed(0), draws=0)
    assert sizes == [dimensions]


def test_the_true_directions_explain_every_relu_and_others_do_not():
    one, true = search()
    one.found, one.score = torch.cat([true, torch.eye(4, dtype=torch.float64)]), torch.ones(8, dtype=torch.float64)
    slopes, gamma = one._explained([0, 1, 2, 3])
    assert gamma == 1
    torch.testing.assert_close(slopes, planted(4)[2])
    assert one._explained([0, 1, 2, 4])[1] < 0.95


def test_a_wrong_direction_in_the_basis_is_replaced_by_one_that_explains_more():
    one, true = search()
    rng = torch.Generator().manual_seed(3)
    wrong = normalize(torch.randn(2, 4, generator=rng, dtype=torch.float64), dim=1)
    one.found, one.score = torch.cat([wrong, true]), torch.tensor([9.0, 8.0, 3.0, 3.0, 3.0, 3.0], dtype=torch.float64)
    assert one._independent(0.0) == [0, 1, 2, 3]
    found = one.answer()
    assert found.gamma == 1
    torch.testing.assert_close(found.slopes.sum(0), planted(4)[2].sum(1))


def test_fewer_directions_than_examples_prove_nothing_whatever_stands_for_the_rest():
    one, true = search()
    rng = torch.Generator().manual_seed(3)
    wrong = normalize(torch.randn(1, 4, generator=rng, dtype=torch.float64), dim=1)
    blends = torch.stack([normalize(true[0] + share * true[1], dim=0) for share in (0.5, -0.2)])
    one.found, one.score = torch.cat([wrong, true[:3], blends]), torch.arange(9.0, 3.0, -1.0, dtype=torch.float64)
    assert one._independent(0.0) == [0, 1, 2, 3]
    assert one.answer().gamma < 1
    one.found, one.score = true[:3], torch.ones(3, dtype=torch.float64)
    assert one.answer().gamma == 0
    assert one.answer().inputs.shape == (0, INPUTS)
