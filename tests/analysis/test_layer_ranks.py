"""The rank analysis of layers: against a direct construction of the equations, and against counting."""

import torch
from torch import nn

from fl_app.analysis.bounds.layers import LayerRank, layer_ranks, layer_sentences, weakest


def test_a_linear_layer_that_narrows_still_gives_its_input_away():
    """Its weight gradient is an outer product: any row of it is the input, up to a factor."""
    (one,) = layer_ranks(nn.Sequential(nn.Flatten(), nn.Linear(48, 4)), (3, 4, 4), 4)
    assert (one.equations, one.unknowns, one.rank, one.closed) == (48 * 4 + 4, 48, 48, False)


def test_the_rank_of_a_convolution_is_that_of_its_equations():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 1, 3, stride=3), nn.Flatten(), nn.Linear(4, 3))
    first, last = layer_ranks(model, (2, 6, 6), 3)
    # Outputs and gradients of one filter without overlap: 4 + 18 equations for 72 unknowns, all independent but one, since
    # both fix the mean of weight times patch over patches, weighted by slopes.
    assert (first.equations, first.unknowns, first.rank, first.closed) == (22, 72, 21, True)
    assert not last.closed


def test_what_is_too_large_is_counted():
    (one,) = layer_ranks(nn.Sequential(nn.Conv2d(1, 1, 8, stride=8), nn.Flatten()), (1, 16, 16), 4, most=100)
    assert one.rank is None
    assert one.closed  # 64 + 4 equations for 256 unknowns


def test_the_weakest_layer_is_the_one_of_which_least_follows():
    counted, ranked, wide = LayerRank("a", 68, 256, None), LayerRank("b", 22, 72, 21), LayerRank("c", 500, 100, 100)
    assert weakest([wide, ranked, counted]) is counted
    (said,) = layer_sentences([wide, ranked, counted])
    assert "2 of 3 layers do not give their input away (the weakest: a, 68 equations for 256 unknowns, by counting)" in said
    (said,) = layer_sentences([wide])
    assert "all 1 layers can give their input away (the weakest: c, 500 equations for 100 unknowns, rank 100)" in said
    assert layer_sentences([]) == []
