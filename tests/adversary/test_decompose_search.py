"""Each part of the search for SPEAR's directions, on layers whose slopes are known."""

import pytest
import torch
from torch.nn.functional import normalize

from adversary.exact import decompose as code
from adversary.exact.decompose import _Search, _sparse, _untangled
from helpers.planted import alike, planted, search


def test_mixtures_of_better_directions_are_left_out_of_a_basis():
    one, _ = search()
    unit = torch.eye(4, dtype=torch.float64)
    one.found = torch.stack([unit[0], unit[1], normalize(unit[0] + unit[1], dim=0), unit[2], unit[3]])
    one.score = torch.tensor([9.0, 8.0, 7.0, 0.5, 0.2], dtype=torch.float64)
    assert one._independent(0.0) == [0, 1, 3, 4]
    assert one._independent(0.5) == [0, 1, 3]
    assert one._independent(1.0) == [0, 1]


def test_a_direction_vanishes_where_it_is_small_beside_its_largest():
    one, _ = search(2)
    one.unit = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1e-3]], dtype=torch.float64)
    directions = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert one._vanishing(directions, 1e-3).tolist() == [[True, False, True], [False, True, False]]
    assert one._vanishing(directions, 5e-4).tolist() == [[True, False, False], [False, True, False]]


def test_a_direction_is_refined_on_the_rows_where_it_vanishes_and_counted_by_them():
    """One that hangs on a single row, as a mixture of two that also vanishes on a row of its own, counts for less than one."""
    one, true = search()
    slopes = planted(4)[2]
    near = normalize(true / one.metric, dim=1)
    mixed = one.columns @ true.T
    first, second = true[0], true[1]
    row = ((mixed[:, 0] != 0) & (slopes[:, 1] != 0) & (slopes[:, 0] != 0)).nonzero()[0, 0]
    blend = first - second * mixed[row, 0] / mixed[row, 1]
    starts = torch.cat([near + 1e-6, normalize(blend / one.metric, dim=0)[None]])
    found, score = one._refined(starts)
    torch.testing.assert_close(alike(found[:4], near).diagonal(), torch.ones(4, dtype=torch.float64))
    assert score[:4].tolist() == (slopes[one.alive] == 0).sum(0).tolist()
    both = (slopes[one.alive][:, :2] == 0).all(1).sum().item()
    assert both + 1 > 4
    assert score[4:].tolist() == [pytest.approx((both + 1) / one.alive.sum().item())]


def test_only_what_is_new_is_kept_and_the_most_zeros_first():
    one, true = search()
    near = normalize(true / one.metric, dim=1)
    assert one._keep(near[:2])
    assert not one._keep(near[:2] * -1)
    assert len(one.found) == 2
    assert one._keep(near)
    assert len(one.found) == 4
    assert one.score.tolist() == sorted((planted(4)[2][one.alive] == 0).sum(0).tolist(), reverse=True)
    assert (alike(one.found, true).amax(0) > 1 - 1e-9).all()


def test_columns_are_the_same_by_the_angle_between_them(monkeypatch):
    one, _ = search(2)
    one.metric = torch.ones(2, dtype=torch.float64)
    monkeypatch.setattr(one, "_refined", lambda starts: (starts, torch.ones(len(starts), dtype=torch.float64)))
    for angle, kept in ((1e-2, 2), (1e-4, 1)):
        one.found, one.score = one.found[:0], one.score[:0]
        assert one._keep(torch.tensor([[1.0, 0.0], [-1.0, angle]], dtype=torch.float64))
        assert len(one.found) == kept


def test_no_more_is_kept_than_can_be_tried(monkeypatch):
    one, _ = search()
    rng = torch.Generator().manual_seed(0)
    many, scores = torch.randn(100, 4, generator=rng, dtype=torch.float64), torch.rand(100, generator=rng, dtype=torch.float64)
    monkeypatch.setattr(one, "_refined", lambda starts: (starts, scores))
    one._keep(many)
    assert one.score.tolist() == scores.sort(descending=True).values[:40].tolist()  # four times the dimensions, and 24


def test_a_direction_that_vanishes_on_no_more_rows_than_any_would_is_dropped():
    one, _ = search()
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one.unit = normalize(rows, dim=1)  # no two of which vanish together
    direction = torch.linalg.svd(one.unit[[2, 9, 17]]).Vh[-1:]
    assert one._vanishing(direction, 1e-9).sum() == 3
    assert len(one._refined(direction)[0]) == 0


def test_rows_count_as_zero_in_smaller_and_smaller_steps():
    layer, _, _ = planted(3)
    ladder = _Search(layer, 3, 1e-9, 1e-11, torch.Generator()).ladder
    assert ladder == pytest.approx([10.0**power for power in (-5, -6, -7, -8, -9, -10, -11, -11)], rel=1e-6)
    assert _Search(layer, 3, 1e-2, 1e-4, torch.Generator()).ladder == pytest.approx([1e-3, 1e-4, 1e-4])
    assert _Search(layer, 3, 1e-3, 1e-3, torch.Generator()).ladder == [1e-3]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rows_that_learned_nothing_beside_others_are_left_out(scale):
    layer, _, _ = planted(2)
    layer.weight_gradient[0] *= 1e-12
    layer.weight_gradient[1] *= 1e-7
    one = _Search(layer._replace(weight_gradient=scale * layer.weight_gradient), 2, 1e-9, 1e-11, torch.Generator())
    assert not one.alive[0]
    assert one.alive.sum() == len(one.unit) == len(one.white) == (planted(2)[2] != 0).any(1).sum() - 1
    for rows in (one.unit, one.white):
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows), dtype=torch.float64))
    torch.testing.assert_close(one.columns * one.metric, one.rows)


def test_starts_are_a_half_apart_from_what_is_known(monkeypatch):
    """A quarter starts there, and another is held there; what was found before is untangled."""
    one, true = search()
    given = {}
    monkeypatch.setattr(code, "_sparse", lambda rows, starts, parts: given.update(starts=starts, parts=parts) or starts[:1])
    monkeypatch.setattr(code, "_untangled", lambda rows, mixed, known: given.update(mixed=mixed, known=known) or mixed[:0])
    one.draw()
    assert given["starts"].shape == (128, 4)
    assert len(given["parts"]) == len(given["known"]) == 0
    one.found, one.score = true[:2], torch.tensor([5.0, 0.5], dtype=torch.float64)
    one.draw()
    torch.testing.assert_close(given["known"], true[:1])  # the other hangs on a single row
    assert given["parts"].shape == (32, 4)
    apart = torch.cat([given["parts"], given["starts"][32:64]])
    assert (apart @ true[0]).abs().max() < 1e-9
    assert apart.norm(dim=1).min() > 0.1
    others = torch.cat([given["starts"][:32], given["starts"][64:]])
    assert (others @ true[0]).abs().median() > 0.1


def test_rows_are_likely_off_as_often_as_for_the_examples_found():
    one, true = search()
    slopes = planted(4)[2][one.alive][:, :3]
    shares = (1 + (slopes == 0).sum(1)) / 5
    seen = set()
    for _ in range(12):
        weight = one._likely(true[:3])
        (power,) = [power for power in (0, 1, 2) if torch.allclose(weight, shares.double() ** power)]
        seen.add(power)
    assert seen == {0, 1, 2}


def test_null_spaces_vanish_on_all_but_three_of_as_many_rows_as_dimensions():
    one, _ = search(5)
    basis = one._null_spaces(one.unit, torch.ones(len(one.unit), dtype=torch.float64))
    assert basis.shape[1:] == (5, 3)
    zero = ((one.unit @ basis[:50]).abs().amax(-1) < 1e-9).sum(1)
    assert (zero >= 2).all()
    likely = torch.full((len(one.unit),), 1e-12, dtype=torch.float64)
    likely[[3, 7]] = 1.0
    assert (one.unit[[3, 7]] @ one._null_spaces(one.unit, likely)[:50]).abs().max() < 1e-6
    small, _ = search(2)
    assert small._null_spaces(small.unit, torch.ones(len(small.unit)))[0].tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("examples", [2, 3, 5])
def test_rows_that_are_drawn_lead_to_all_directions(examples):
    one, true = search(examples)
    found = one._on_rows(true[:0])
    assert 0 < len(found) <= 256
    unit = normalize(found, dim=1)
    assert (one._vanishing(unit[unit.norm(dim=1) > 0.5], 1e-6).sum(1) >= examples + 2).float().mean() > 0.9  # by no chance
    assert (alike(found, true / one.metric).amax(0) > 1 - 1e-6).all()


def test_directions_turn_to_where_many_rows_vanish():
    rng = torch.Generator().manual_seed(0)
    wanted = torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64)
    rows = torch.randn(40, 3, generator=rng, dtype=torch.float64)
    rows[:25] -= rows[:25] @ wanted.T * wanted / 6
    starts = torch.randn(20, 3, generator=rng, dtype=torch.float64)
    found = _sparse(normalize(rows, dim=1), starts, starts[:0])
    assert (alike(found, wanted) > 1 - 1e-9).float().mean() > 0.5
    torch.testing.assert_close(found.norm(dim=1), torch.ones(20, dtype=torch.float64))
    parts = torch.tensor([[2.0, -1.0, 0.0]], dtype=torch.float64)  # orthogonal to the one that is wanted
    held = _sparse(normalize(rows, dim=1), starts, parts)
    assert held.shape == (20, 3)
    assert alike(held[:1], wanted) < 0.99 < alike(held[1:], wanted).median()


def test_each_turn_is_to_where_weighted_rows_are_least(monkeypatch):
    """Two turns, wide and narrow, one direction after the other."""
    monkeypatch.setattr(code, "ITERATIONS", 2)
    rng = torch.Generator().manual_seed(5)
    rows, starts = (torch.randn(number, 3, generator=rng, dtype=torch.float64) for number in (30, 6))
    parts = torch.randn(2, 3, generator=rng, dtype=torch.float64)
    found = _sparse(rows, starts, parts)
    for place, direction in enumerate(normalize(starts, dim=1)):
        for small in (1.0, 1e-3):
            off = (rows @ direction).square()
            weight = 1 / (off + small**2 * off.mean())
            spread = rows.T @ (weight[:, None] * rows)
            least = torch.linalg.inv(spread) @ parts[place] if place < 2 else torch.linalg.eigh(spread).eigenvectors[:, 0]
            direction = least / least.norm()
        assert (found[place] @ direction).abs().item() == pytest.approx(1, abs=1e-9)


def test_the_share_that_is_taken_off_is_the_one_that_most_rows_agree_on():
    """Of each known direction the eight shares that are nearest to each other, relative to their size; the best of all."""
    rng = torch.Generator().manual_seed(6)
    rows, mixed, known = (torch.randn(number, 4, generator=rng, dtype=torch.float64) for number in (25, 5, 3))
    known[2] = -2 * mixed[1]  # which is no mixture of itself
    for one, found in zip(mixed, _untangled(rows, mixed, known), strict=True):
        best = (float("inf"), one)
        for other in known:
            if alike(one[None], other[None]) > 1 - 1e-6:
                continue
            shares = sorted(((rows @ one) / (rows @ other)).tolist())
            for first in range(len(shares) - 7):
                spread = (shares[first + 7] - shares[first]) / max(abs(shares[first + 7]), 1e-3)
                best = min(best, (spread, one - shares[first + 4] * other), key=lambda pair: pair[0])
        torch.testing.assert_close(found, best[1])


def test_a_known_direction_is_taken_off_a_mixture():
    rng = torch.Generator().manual_seed(0)
    one, other, third = torch.eye(3, dtype=torch.float64)
    rows = torch.randn(40, 3, generator=rng, dtype=torch.float64)
    rows[:12, 0] = 0  # on these the one vanishes
    mixed = torch.stack([one + 0.3 * other, one - 2 * other])
    for known in (other[None], torch.stack([third, other]), torch.stack([other, mixed[0]])):
        torch.testing.assert_close(_untangled(rows, mixed, known)[0], one)
        torch.testing.assert_close(_untangled(rows, mixed, known)[1], one)
    assert len(_untangled(rows, mixed, known[:0])) == 0
    rows[:, 1] = 0  # where the known one vanishes on all rows, nothing can be said of its share
    torch.testing.assert_close(_untangled(rows, mixed, other[None]), mixed)
    assert len(_untangled(rows, mixed[:0], known)) == 0


def test_draws_are_counted_and_say_whether_something_was_new():
    one, true = search()
    assert one.draw()
    assert one.drawn == 128
    assert (alike(one.found, true).amax(0) > 1 - 1e-9).any()
    for _ in range(3):
        one.draw()
    assert one.drawn == 512
    assert (alike(one.found, true).amax(0) > 1 - 1e-9).all()
