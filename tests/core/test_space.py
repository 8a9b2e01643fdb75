"""What an example is: where the borders of a space lie, and that blind draws stay inside."""

import pytest
import torch

from fl_app.core.space import Images
from fl_app.core.text import Tokens, Vocabulary

IMAGES, TOKENS = Images((1, 2, 2)), Tokens(Vocabulary.numbered(5), 3)


def test_images_are_clamped_to_their_range():
    assert IMAGES.clamp(torch.tensor([-0.5, 0.0, 0.3, 1.0, 1.5])).tolist() == pytest.approx([0, 0, 0.3, 1, 1])


def test_tokens_are_clamped_to_the_nearest_id():
    assert TOKENS.clamp(torch.tensor([-2.0, 0.4, 2.6, 4.4, 9.0])).tolist() == [0, 0, 3, 4, 4]
    ids = TOKENS.clamp(torch.tensor([-2, 0, 4, 5]))
    assert (ids.tolist(), ids.dtype) == ([0, 0, 4, 4], torch.int64)
    assert TOKENS.clamp(torch.tensor([0.4])).dtype == torch.int64


@pytest.mark.parametrize(("space", "low", "high"), [(IMAGES, 0, 1), (TOKENS, 2, 4)])
def test_blind_draws_fill_the_space(space, low, high):
    drawn = space.noise(500, torch.Generator().manual_seed(0))
    assert drawn.shape == (500, *space.shape)
    assert space.holds(drawn)
    assert drawn.min().item() == pytest.approx(low, abs=0.01)
    assert drawn.max().item() == pytest.approx(high, abs=0.01)
    assert torch.equal(drawn, space.noise(500, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    ("space", "x", "held"),
    [
        (IMAGES, torch.tensor([0.0, 1.0, 0.5, 0.5]).view(1, 2, 2), True),
        (IMAGES, torch.zeros(3, 7, 1, 2, 2), True),
        (IMAGES, torch.zeros(2, 2, 1), False),
        (IMAGES, torch.zeros(1, 2, 2, dtype=torch.int64), False),
        (IMAGES, torch.tensor([0.0, 1.001, 0, 0]).view(1, 2, 2), False),
        (IMAGES, torch.tensor([0.0, -0.001, 0, 0]).view(1, 2, 2), False),
        (IMAGES, torch.full((1, 2, 2), float("nan")), False),
        (TOKENS, torch.tensor([[0, 4, 2]]), True),
        (TOKENS, torch.tensor([0, 5, 2]), False),
        (TOKENS, torch.tensor([0, -1, 2]), False),
        (TOKENS, torch.tensor([0, 1]), False),
        (TOKENS, torch.tensor([0.0, 1.0, 2.0]), False),
        (TOKENS, torch.tensor([0, 1, 2], dtype=torch.int32), False),
    ],
)
def test_a_space_holds_what_lies_in_it_and_nothing_else(space, x, held):
    assert space.holds(x) is held
