"""Rows of a table: what stands for a cell, what the nearest row is, and which cells count as right."""

import itertools

import pytest
import torch

from fl_app.core.table import TOLERANCE, Column, Rows, number_column

ROWS = Rows((Column("colour", ("red", "green", "blue")), Column("age", low=10, high=90), Column("sex", ("f", "m"))))


def all_rows(numbers=(0.0, 0.25, 1.0)):
    """Every row with these numbers, by hand."""
    return torch.tensor(
        [
            [*map(float, (i == 0, i == 1, i == 2)), number, float(j == 0), float(j == 1)]
            for i, number, j in itertools.product(range(3), numbers, range(2))
        ]
    )


def test_where_the_floats_of_a_column_are():
    assert ROWS.shape == (6,)
    assert ROWS.places == {"colour": slice(0, 3), "age": slice(3, 4), "sex": slice(4, 6)}
    assert ROWS.categories == [slice(0, 3), slice(4, 6)]


def test_cells_and_rows_are_the_same_thing():
    rows = all_rows()
    assert torch.equal(ROWS.encode(ROWS.cells(rows)), rows)
    assert ROWS.holds(rows)
    assert ROWS.text(rows[3]) == ["red", "30", "m"]


def test_the_nearest_row_is_the_nearest_of_all(rng):
    x = 3 * torch.rand(200, 6, generator=rng) - 1
    x[:, 3] = x[:, 3].clamp(0, 1).mul(4).round().div(4).clamp(max=0.25)  # a number that is among those below
    candidates = all_rows()
    nearest = candidates[torch.cdist(x, candidates).argmin(1)]
    before = x.clone()
    assert torch.equal(ROWS.clamp(x), nearest)
    assert torch.equal(x, before)
    assert torch.equal(ROWS.clamp(nearest), nearest)


def test_a_search_may_pass_between_rows():
    half = torch.full((6,), 0.4)
    assert torch.equal(ROWS.hull(half), half)
    assert not ROWS.holds(half)
    assert torch.equal(ROWS.hull(half * 4), torch.ones(6))


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(6),  # no category
        torch.tensor([1.0, 1.0, 0.0, 0.5, 1.0, 0.0]),  # two of them
        torch.tensor([1.0, 0.0, 0.0, 1.5, 1.0, 0.0]),
        torch.tensor([1.0, 0.0, 0.0, torch.nan, 1.0, 0.0]),
        torch.zeros(5),
        torch.tensor([1, 0, 0, 0, 1, 0]),
    ],
)
def test_what_is_no_row(x):
    assert not ROWS.holds(x)


def test_blind_draws_are_rows_of_all_kinds(rng):
    drawn = ROWS.noise(600, rng)
    assert ROWS.holds(drawn)
    assert drawn.shape == (600, 6)
    assert (drawn[:, :3].mean(0) - 1 / 3).abs().max() < 0.07
    assert torch.equal(ROWS.noise(9, torch.Generator().manual_seed(1)), ROWS.noise(9, torch.Generator().manual_seed(1)))


def test_which_cells_are_right():
    truth = ROWS.encode(torch.tensor([1.0, 0.5, 0.0]))
    near, far = (ROWS.encode(torch.tensor([1.0, 0.5 + gap, 1.0])) for gap in (TOLERANCE, TOLERANCE + 0.001))
    assert ROWS.right(near, truth).tolist() == [True, True, False]
    assert ROWS.right(far, truth).tolist() == [True, False, False]
    assert ROWS.right(near[None], truth[None]).shape == (1, 3)


def test_rows_with_each_value_in_turn():
    row = ROWS.encode(torch.tensor([1.0, 0.5, 0.0]))
    filled = ROWS.filled(row[None], "colour")
    assert filled.shape == (1, 3, 6)
    assert ROWS.cells(filled[0])[:, 0].tolist() == [0, 1, 2]
    assert torch.equal(filled[0, :, 3:], row[3:].expand(3, 3))
    with pytest.raises(ValueError, match="no column of categories 'age'; valid: colour, sex"):
        ROWS.filled(row, "age")


def test_a_number_needs_two_bounds():
    assert number_column("a", [1.0, 3.0]) == Column("a", low=1.0, high=3.0)
    assert number_column("a", [1.0, 3.0], (0.0, 5.0)).high == 5.0
    with pytest.raises(ValueError, match="'a' needs two bounds"):
        number_column("a", [1.0, 1.0])


@pytest.mark.parametrize(
    ("low", "high", "cell", "said"),
    [
        (0.0, 1.0, 0.123456, "0.123"),  # to a thousandth of the range, or better
        (0.0, 0.5, 0.123456, "0.0617"),
        (10.0, 20.0, 0.123456, "11.23"),
        (0.0, 1000.0, 0.123456, "123"),
        (-50_000.0, 50_000.0, 0.123456, "-37654"),
    ],
)
def test_numbers_for_people_are_as_exact_as_their_range_allows(low, high, cell, said):
    assert Rows((Column("a", low=low, high=high),)).text(torch.tensor([cell])) == [said]


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_rows_of_any_batch_are_filled_and_keep_their_type(shape, rng):
    rows = ROWS.noise(6, rng).double()[: torch.Size(shape).numel()].view(*shape, 6)
    filled = ROWS.filled(rows, "sex")
    assert filled.shape == (*shape, 2, 6)
    assert filled.dtype == torch.float64
    for value in (0, 1):
        cells = ROWS.cells(rows)
        cells[..., 2] = value
        assert torch.equal(filled[..., value, :], ROWS.encode(cells))
    assert ROWS.holds(rows)
    assert ROWS.cells(rows).dtype == ROWS.clamp(rows).dtype == torch.float64
