"""Objectives of informed attackers, by numbers that can be checked by hand or against torch's distributions."""

import math

import pytest
import torch
from torch.distributions import Laplace, Normal
from torch.nn import functional as F

from adversary.entries import Masked
from adversary.informed.cells import Grid, Pruned, Signs
from adversary.informed.drop_fedsgd import DROPPED, Dropped, KeptOrDropped, off_rank_one
from adversary.informed.gradient_dropout import Mixture
from adversary.informed.noise import NoiseLaw
from adversary.objectives import L2, Cosine, Relative, WrongSigns, cosine, robust
from fl_app.core.local import LocalRule
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images

A = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([2.0])}
B = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([-2.0])}
STAGES = [0.0, 0.25, 0.5, 0.75, 0.99]


@pytest.mark.parametrize(("kind", "law"), [("normal", Normal), ("laplace", Laplace)])
def test_the_law_of_noise_is_its_density(kind, law):
    """Up to a constant: differences of two reconstructions are those of log-probabilities."""
    other = {name: value - 0.3 for name, value in A.items()}

    def density(dummy, factor=1.0):
        return -sum(law(factor * dummy[name], 0.5).log_prob(value).sum() for name, value in B.items())

    plain, clipped = NoiseLaw(scale=0.5, law=kind), NoiseLaw(scale=0.5, law=kind, clip=1.5)
    torch.testing.assert_close(plain(A, B, 0.0) - plain(other, B, 0.0), density(A) - density(other))
    sizes = [sum(value.square().sum() for value in one.values()).sqrt() for one in (A, other)]  # 3, and 2.49
    exact = density(A, 1.5 / sizes[0]) - density(other, 1.5 / sizes[1])
    torch.testing.assert_close(clipped(A, B, 0.0) - clipped(other, B, 0.0), exact)
    wide = NoiseLaw(scale=0.5, law=kind, clip=3.5)
    torch.testing.assert_close(wide(A, B, 0.0), plain(A, B, 0.0))  # nothing is clipped
    # Relative noise: what was sent has the mean square of the gradient times 1 + relative².
    relative = NoiseLaw(relative=0.1, law=kind)(A, B, 0.0)
    gaps = [(B[name] - A[name]) / (0.1 * (B[name].square().mean() / 1.01).sqrt()) for name in B]
    expected = sum((gap.square().sum() / 2 if kind == "normal" else gap.abs().sum()) for gap in gaps)
    torch.testing.assert_close(relative, expected)


@pytest.mark.parametrize("stage", range(7))
def test_kept_or_dropped_is_a_mixture_with_a_mask(stage):
    p, sigma, clip = 0.2, 0.3, 2.0
    masks = {"a": torch.tensor([-1.0, 0.5]), "b": torch.tensor([2.0])}
    dummy = {**A, **{DROPPED + name: value for name, value in masks.items()}}
    law = KeptOrDropped(p=p, sigma=sigma, clip=clip)
    found = law(dummy, B, stage / law.stages)
    kept = {name: A[name] * (1 - masks[name].sigmoid()) for name in A}
    if stage == 0:
        return torch.testing.assert_close(found, 10 * robust(kept, B, 2.0))
    tau = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)[stage - 1] * sigma
    size = math.sqrt(sum(value.square().sum().item() for value in kept.values()))
    total = 0.0
    for name, sent in B.items():
        for value, gradient, logit in zip(sent, A[name], masks[name], strict=True):
            m = logit.sigmoid()
            exact = Normal(gradient * min(1.0, clip / size), tau).log_prob(value) + (1 - m + 1e-6).log()
            noise = Normal(0.0, sigma).log_prob(value) + (m + 1e-6).log()
            prior = m * math.log(p) + (1 - m) * math.log(1 - p)
            total -= torch.logaddexp(exact, noise) + math.log(2 * math.pi) / 2 + prior
    assert law.stages == 7
    return torch.testing.assert_close(found, total / 3)


def test_noise_in_units_of_nothing_is_not_infinite():
    nothing = {"a": torch.zeros(3)}
    assert NoiseLaw(relative=0.1)(nothing, nothing, 0.0) == 0
    assert NoiseLaw(scale=1.0, clip=1.0)(nothing, nothing, 0.0) == 0


def test_masks_start_at_their_prior_and_where_a_layer_of_rank_one_gives_them_away():
    weight = torch.outer(torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.0, 3.0, -1.0, 2.0, 4.0]))
    weight[1, 2], weight[0, 4] = 7.0, -7.0
    wrong = torch.zeros(3, 5, dtype=torch.bool)
    wrong[1, 2] = wrong[0, 4] = True
    assert torch.equal(off_rank_one(weight), wrong)
    small = torch.cat([weight, torch.tensor([[1e-7], [2e-7], [-1e-7]])], 1)  # rounding, beside the size of the others
    assert torch.equal(off_rank_one(small), torch.nn.functional.pad(wrong, (0, 1)))
    seen = Observation(
        params={}, update={"conv": torch.ones(2), "fc.weight": weight}, rule=LocalRule(), num_examples=1, server_round=1
    )
    task, observer = Task(torch.nn.Identity(), Images((1,)), 3), Dropped(p=0.2)
    drawn = observer.draw(seen, task)
    torch.testing.assert_close(drawn["conv"].sigmoid(), torch.tensor([0.2, 0.2]))
    assert torch.equal(drawn["fc.weight"], torch.where(wrong, 8.0, -8.0))
    several = observer.draw(Observation(**{**vars(seen), "num_examples": 2}), task)
    torch.testing.assert_close(several["fc.weight"].sigmoid(), torch.full((3, 5), 0.2))
    assert observer.project({"w": torch.tensor([-9.0, 3.0, 99.0])})["w"].tolist() == [-8.0, 3.0, 8.0]
    assert observer.sent({"w": torch.ones(1)}, {"w": torch.zeros(1)}).keys() == {"w", "dropped/w"}


def test_a_mixture_of_nothing_but_kept_entries():
    every = Mixture(p=1.0, sigma=0.5)
    found = every(A, B, 0.2) - every(B, B, 0.2)
    expected = sum((B[name] - A[name]).square().sum() for name in B) / 2 / 0.5**2 / 3
    torch.testing.assert_close(found, expected)
    assert every(A, B, 0.0) == cosine(A, B)
    assert Mixture(p=0.5)({"w": torch.zeros(3)}, {"w": torch.zeros(3)}, 0.5).isfinite()  # nothing was sent
    # The mean over all entries, at the last width from there on.
    torch.testing.assert_close(every(A, B, 5 / 6), every(A, B, 0.99))


@pytest.mark.parametrize("progress", STAGES)
def test_cells_are_log_probabilities_of_logistic_noise(progress):
    """-log sigma((v - lower) / w) sigma((upper - v) / w), the sum over entries, at a width that falls by stages."""
    tau = {0.0: 0.1, 0.25: 0.03, 0.5: 0.01, 0.75: 0.003, 0.99: 0.003}[progress]
    sent, value = {"a": torch.tensor([0.0, 3.0, -1.0])}, {"a": torch.tensor([0.4, 2.9, -1.7])}

    def outside(lower, upper, unit):
        width = torch.as_tensor(tau * unit)
        low, high = ((value["a"] - torch.tensor(lower)) / width, (torch.tensor(upper) - value["a"]) / width)
        return -(F.logsigmoid(low) + F.logsigmoid(high)).sum()

    inf = math.inf
    cases = {
        Grid(bits=3): ([-0.5, 2.5, -1.5], [0.5, 3.0, -0.5], 1.0),  # levels -3 to 3
        Grid(bits=3, stochastic=True): ([-1.0, 2.0, -2.0], [1.0, 3.0, 0.0], 1.0),
        Grid(bits=1): ([-3.0, 0.0, -3.0], [3.0, 3.0, 2.0], 6.0),
        Pruned(): ([-1.0, 3.0, -1.0], [1.0, 3.0, -1.0], 1.0),
    }
    for law, (lower, upper, unit) in cases.items():
        torch.testing.assert_close(law(value, sent, progress), outside(lower, upper, unit), rtol=1e-4, atol=1e-4)
    signs = {"a": torch.tensor([0.0, 2.0, -2.0])}
    mean = (0.4 + 2.9 + 1.7) / 3
    halves = outside([0.0, 0.0, -inf], [0.0, inf, 0.0], 2.0)
    gap = torch.tensor((mean / 2 - 1) / tau).square() / 2
    torch.testing.assert_close(Signs()(value, signs, progress), halves + gap, rtol=1e-4, atol=1e-4)
    free = Signs(scale="none")
    scaled = {"a": value["a"] / mean}
    torch.testing.assert_close(free(value, signs, progress), Signs.__mro__[1].__call__(free, scaled, signs, progress))


def test_what_was_pruned_lies_below_the_least_that_was_sent():
    sent = {"a": torch.tensor([0.0, 3.0]), "b": torch.tensor([-0.5, 0.0]), "c": torch.zeros(2)}
    whole, own = Pruned().cells(sent), Pruned(scope="tensor").cells(sent)
    assert [whole[name].upper.tolist() for name in "abc"] == [[0.5, 3.0], [-0.5, 0.5], [0.5, 0.5]]
    assert [own[name].upper.tolist() for name in "abc"] == [[3.0, 3.0], [-0.5, 0.5], [math.inf, math.inf]]
    assert [own[name].lower.tolist() for name in "abc"] == [[-3.0, 3.0], [-0.5, -0.5], [-math.inf, -math.inf]]
    assert [own[name].unit.item() for name in "abc"] == [3.0, 0.5, 1.0]


def test_rounds_with_a_memory_compress_what_is_left_over():
    sent = [{"a": torch.tensor([2.0, 0.0])}, {"a": torch.tensor([0.0, 1.0])}, {"a": torch.tensor([1.0, 0.0])}]
    gradients = [{"a": torch.tensor([1.5, 0.4])}, {"a": torch.tensor([0.6, 0.5])}, {"a": torch.tensor([0.2, 0.1])}]
    kept = Pruned(memory=True)
    totals = [[1.5, 0.4], [0.1, 0.9], [0.3, 0.0]]  # gradients so far, less what was sent so far
    parts = [kept({"a": torch.tensor(total)}, one, 0.0) for total, one in zip(totals, sent, strict=True)]
    torch.testing.assert_close(kept.over_rounds(gradients, sent, 0.0), sum(parts), rtol=1e-4, atol=1e-4)
    forgetful = sum(Pruned()(gradient, one, 0.0) for gradient, one in zip(gradients, sent, strict=True))
    torch.testing.assert_close(Pruned().over_rounds(gradients, sent, 0.0), forgetful)


def test_the_relative_distance_counts_each_tensor_alike():
    expected = ((1 + 4) / 16 + 16 / 4) / 2
    assert Relative()(A, B, 0.0).item() == pytest.approx(expected)
    torch.testing.assert_close(L2().residuals(A, B, 0.0), torch.tensor([1.0, -2.0, 4.0]))
    two = Relative().residuals_over_rounds([A, A], [B, A], 0.0)
    assert (len(two), two.square().sum().item()) == (6, pytest.approx(expected / 2))  # the mean of the rounds
    assert Relative().over_rounds([A, A], [B, A], 0.0).item() == pytest.approx(expected / 2)
    masked = Masked(objective=L2())
    torch.testing.assert_close(masked.residuals(A, B, 0.0), torch.tensor([0.0, -2.0, 4.0]))
    assert (masked.squares, Masked(objective=WrongSigns()).squares) == (True, False)
    torch.testing.assert_close(Cosine().residuals(A, B, 0.0).square().sum(), cosine(A, B))


def test_wrong_signs_count_by_their_size_over_all_tensors():
    seen = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([0.2, 0.0])}
    dummy = {"a": torch.tensor([-3.0, -1.0]), "b": torch.tensor([-0.1, 5.0])}
    # Weights 1/4 and 1 in a, 1 and 0 in b; the first entry of each is wrong.
    assert WrongSigns()(dummy, seen, 0.0).item() == pytest.approx((0.25 + 1) / (0.25 + 1 + 1))
    leaf = {name: value.clone().requires_grad_() for name, value in dummy.items()}
    slope = torch.autograd.grad(WrongSigns()(leaf, seen, 0.0), leaf["a"])[0]
    # Straight through the sign, in units of the mean size 2: 2 (s - t) w / 4 / 2, over all weights.
    torch.testing.assert_close(slope, torch.tensor([2 * -2 * 0.25 / 4 / 2 / 2.25, 0.0]))
