"""Pruning, masking, quantisation and signs: exact counts and grids, and error feedback."""

import math

import pytest
import torch
from scipy import stats
from torch.func import vmap

import client_defenses
from client_defenses import Chain, Memory
from client_defenses.mask import Mask
from client_defenses.prune import Prune, share, smallest
from client_defenses.quantize import Quantize, quantize
from client_defenses.sign import Sign
from helpers.defenses import sent_by
from helpers.tensors import flat

# Pruning and masking


def test_a_share_is_counted_as_it_is_written():
    assert [share(0.29, 100), share(0.57, 100), share(0.999, 10), share(0.1, 9), share(1.0, 7)] == [29, 57, 9, 0, 7]
    assert share(0.9, 11_181_642) == 10_063_477


@pytest.mark.parametrize("ratio", [0.1, 0.29, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_pruning_zeroes_an_exact_count_of_the_smallest(ratio, scope, grads):
    sent = Prune(ratio=ratio, scope=scope).transform(grads, Memory.fresh(0))
    groups = [(flat(sent), flat(grads))]
    if scope == "tensor":
        groups = [(sent[name].reshape(-1), value.reshape(-1)) for name, value in grads.items()]
    for after, before in groups:
        gone = after == 0
        assert gone.sum() == share(ratio, len(before))
        assert torch.equal(after[~gone], before[~gone])
        if 0 < gone.sum() < len(before):
            assert before[gone].abs().max() <= before[~gone].abs().min()


def test_pruning_decides_ties_by_position():
    tied = torch.tensor([2.0, -1.0, 1.0, 1.0, -1.0, 0.0])
    assert sent_by(Prune(ratio=0.5), tied).tolist() == [2, 0, 0, 1, -1, 0]
    assert sent_by(Prune(ratio=0.7), torch.ones(10)).tolist() == [0] * 7 + [1] * 3
    assert smallest(torch.zeros(5), 0).sum() == 0


def test_an_attacker_expects_the_pruned_gradient_with_the_slope_of_what_is_kept(grads):
    for scope in ("global", "tensor"):
        defense = Prune(ratio=0.6, scope=scope)
        sent, expected = defense.transform(grads, Memory.fresh(0)), defense.expected(grads)
        assert all(torch.equal(sent[name], expected[name]) for name in grads)
    leaf = torch.tensor([3.0, -1.0, 2.0], requires_grad=True)
    Prune(ratio=0.5).expected({"g": leaf})["g"].sum().backward()
    assert leaf.grad.tolist() == [1, 0, 1]


@pytest.mark.parametrize("ratio", [0.25, 0.9, 1.0])
def test_masking_zeroes_an_exact_random_share_and_leaves_the_rest(ratio, grads):
    memory = Memory.fresh(0)
    first, second = (flat(Mask(ratio=ratio).transform(grads, memory)) for _ in range(2))
    for sent in (first, second):
        assert (sent == 0).sum() == share(ratio, len(sent))
        assert torch.equal(sent[sent != 0], flat(grads)[sent != 0])
    assert torch.equal(first, second) == (ratio == 1)  # a new mask each step


def test_every_entry_is_masked_equally_often():
    memory, size, steps = Memory.fresh(0), 12, 4000
    zeros = sum((Mask(ratio=0.25).transform({"g": torch.ones(size)}, memory)["g"] == 0).double() for _ in range(steps))
    # The counts sum to a constant, hence size - 1 degrees of freedom and the variance of draws without replacement.
    assert stats.chi2.sf(((zeros - steps / 4).square().sum() / (steps * 0.1875) * (size - 1) / size).item(), size - 1) > 0.01


# Quantisation and signs


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12])
def test_quantisation_is_a_uniform_grid_with_half_a_step_of_error(bits, rng):
    value = torch.randn(500, 400, generator=rng)
    largest, step = value.abs().max(), value.abs().max() / (2 ** (bits - 1) - 1)
    sent = sent_by(Quantize(bits=bits), value)
    levels = sent / step
    torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
    assert 2 < len(sent.unique()) <= 2**bits - 1
    assert (sent - value).abs().max() <= step / 2 * 1.001
    assert sent.abs().max() == largest
    assert torch.equal(sent_by(Quantize(bits=bits), sent), sent)
    assert torch.equal(sent_by(Quantize(bits=bits), -value), -sent)


def test_two_bits_by_hand():
    value = torch.tensor([-4.0, -2.1, -1.9, 0.0, 1.9, 2.1, 4.0])
    assert quantize(value, 2).tolist() == [-4, -4, 0, 0, 0, 4, 4]


def test_one_bit_is_the_two_ends_of_the_range():
    value = torch.tensor([-4.0, -0.1, 0.0, 0.1, 2.0])
    assert quantize(value, 1).tolist() == [-4, -4, 0, 4, 4]
    drawn = sent_by(Quantize(bits=1, stochastic=True), value.expand(20_000, -1))
    assert set(drawn.unique().tolist()) == {-4.0, 4.0}
    assert torch.all((drawn.mean(0) - value).abs() < 4.5 * 4 / math.sqrt(20_000))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_stochastic_rounding_is_unbiased_and_within_one_step(bits, rng):
    value = torch.randn(50, generator=rng)
    step = value.abs().max() / (2 ** (bits - 1) - 1)
    sent = sent_by(Quantize(bits=bits, stochastic=True), value.expand(20_000, -1))
    assert (sent - value).abs().max() <= step * 1.001
    assert torch.all((sent.mean(0) - value).abs() < 4.5 * step / 2 / math.sqrt(20_000) + 1e-5)
    assert sent.abs().max() <= value.abs().max()
    assert (sent != sent[0]).any()


@pytest.mark.parametrize("bits", [20, 24, 28, 31])
@pytest.mark.parametrize("stochastic", [False, True])
def test_many_bits_stay_in_range_and_close(bits, stochastic, rng):
    value = torch.randn(200_000, generator=rng)
    sent = sent_by(Quantize(bits=bits, stochastic=stochastic), value)
    assert sent.abs().max() == value.abs().max()
    torch.testing.assert_close(sent, value, atol=float(value.abs().max()) / 2 ** (bits - 1), rtol=1e-6)
    ends = torch.tensor([1.0, -1.0])
    assert torch.equal(quantize(ends, bits, torch.full((2,), 1 - 2.0**-24)), ends)  # the largest draw there is


@pytest.mark.parametrize("bits", [1, 2, 8, 32])
@pytest.mark.parametrize("stochastic", [False, True])
def test_quantising_zeros_and_tiny_values_stays_finite(bits, stochastic):
    defense = Quantize(bits=bits, stochastic=stochastic)
    assert torch.all(sent_by(defense, torch.zeros(3, 2)) == 0)
    assert sent_by(defense, torch.tensor([1e-40, -1e-41])).isfinite().all()


def test_signs_are_sent_with_the_mean_size_of_their_tensor_or_without():
    grads = {"a": torch.tensor([[3.0, -1.0], [0.0, 4.0]]), "b": torch.tensor(-0.5)}
    sent = Sign().transform(grads, Memory.fresh(0))
    assert sent["a"].tolist() == [[2, -2], [0, 2]]
    assert sent["b"].item() == -0.5
    sent = Sign(scale="none").transform(grads, Memory.fresh(0))
    assert (sent["a"].tolist(), sent["b"].item()) == ([[1, -1], [0, 1]], -1)


@pytest.mark.parametrize("spec", ["quantize(bits=3)", "quantize(bits=1)", "sign", "sign(scale='none')"])
def test_an_attacker_expects_the_compressed_value_and_passes_slopes_straight_through(spec, grads):
    defense = client_defenses.build(spec)
    leaves = {name: value.clone().requires_grad_() for name, value in grads.items()}
    expected, sent = defense.expected(leaves), defense.transform(grads, Memory.fresh(0))
    for name in grads:
        torch.testing.assert_close(expected[name].detach(), sent[name])
    flat(expected).sum().backward()
    assert all(torch.all(leaf.grad == 1) for leaf in leaves.values())
    several = {"g": torch.stack([grads["vector"], 9 * grads["vector"], 0 * grads["vector"]])}
    each = vmap(defense.expected)(several)["g"]  # a largest or mean size for each guess, not for all of them together
    torch.testing.assert_close(each[1], defense.expected({"g": several["g"][1]})["g"])
    assert torch.all(each[2] == 0)


# Error feedback

REMEMBERING = ["prune(memory=True)", "prune(memory=True, scope='tensor')", "quantize(bits=2, memory=True)"]
REMEMBERING += ["quantize(bits=2, memory=True, stochastic=True)", "sign(memory=True)"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("spec", REMEMBERING)
def test_what_is_sent_and_what_is_kept_sum_to_the_gradients(spec, dtype, grads, rng):
    for defense, prefix in (
        (client_defenses.build(spec), ""),
        (Chain(parts=(client_defenses.build("none"), client_defenses.build(spec))), "1/"),
    ):
        memory = Memory.fresh(0)
        given, sent = ({name: torch.zeros(value.shape) for name, value in grads.items()} for _ in range(2))
        for _ in range(20):
            message = {name: torch.randn(value.shape, generator=rng).to(dtype) for name, value in grads.items()}
            answer = defense.transform(message, memory)
            assert all(value.dtype == dtype for value in answer.values())
            for name in grads:
                given[name] += message[name].float()
                sent[name] += answer[name].float()
        assert set(memory.state) == {f"{prefix}residual/{name}" for name in grads}
        for name in grads:
            residual = memory.state[f"{prefix}residual/{name}"]
            torch.testing.assert_close(sent[name] + residual, given[name], atol=1e-4, rtol=0)


@pytest.mark.parametrize("spec", ["prune", "quantize", "quantize(stochastic=True)", "sign"])
def test_nothing_is_remembered_unless_told_to(spec, grads):
    memory = Memory.fresh(0)
    client_defenses.build(spec).transform(grads, memory)
    assert memory.state == {}


def distance_after(defense, first, second, start):
    """How far from its minimum at zero SGD ends that follows the gradients of two summands of a quadratic in turn."""
    memory, weights = Memory.fresh(0), torch.tensor(start)
    for i in range(2000):
        grad = (first, second)[i % 2](weights)
        weights = weights - 0.02 * defense.transform({"w": grad}, memory)["w"]
    return weights.norm().item()


def test_error_feedback_converges_where_plain_signs_and_pruning_stand_still():
    # <a, w>²/2 and <b, w>²/2: the signs of both gradients are along (1, -1), so plain signs never change the sum of w.
    a, b = torch.tensor([1.5, -0.5]), torch.tensor([-0.5, 1.5])
    lines = lambda w: (a @ w) * a, lambda w: (b @ w) * b, [1.0, 1.0]
    assert distance_after(Sign(), *lines) > 1
    assert distance_after(Sign(memory=True), *lines) < 0.05
    # |w|²/2 plus or minus 10 w1, which cancel: the first entry is always the larger, so plain pruning never sends the second.
    shift = torch.tensor([10.0, 0.0])
    shifts = lambda w: w + shift, lambda w: w - shift, [0.0, 1.0]
    assert distance_after(Prune(ratio=0.5), *shifts) > 0.9
    assert distance_after(Prune(ratio=0.5, memory=True), *shifts) < 0.3


def test_one_bad_gradient_does_not_spoil_the_memory():
    for spec in REMEMBERING:
        defense, memory = client_defenses.build(spec), Memory.fresh(0)
        for bad in (math.nan, math.inf):
            defense.transform({"g": torch.tensor([1.0, bad, 3.0])}, memory)
            assert defense.transform({"g": torch.ones(3)}, memory)["g"].isfinite().all()
