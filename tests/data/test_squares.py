"""Photos of any size: squares of those that are on every machine, whole photos apart between clients and the public."""

import pytest
import torch

from client_defenses.tools.evaluator import EvaluatorError, EvaluatorFacts
from fl_app import data
from fl_app.core.spec import SpecError
from fl_app.data import squares
from fl_app.experiment import evaluators


def test_squares_are_what_they_are_every_time():
    one, again = squares.squares("coffee", 32), squares.squares("coffee", 32)
    assert torch.equal(one, again)
    assert one.shape == (squares.PIECES, 3, 32, 32)
    assert one.dtype == torch.uint8
    assert len(one.flatten(1).unique(dim=0)) == squares.PIECES


def test_the_first_square_is_the_middle_of_the_photo():
    whole = squares.photo("astronaut").float()
    assert torch.equal(
        squares.squares("astronaut", 256)[0], whole.unfold(1, 2, 2).unfold(2, 2, 2).mean((-1, -2)).round().byte()
    )


def test_no_photo_is_in_both_parts():
    assert not squares.PARTS["train"].keys() & squares.PARTS["test"].keys()
    found = data.load("photos(size=16)")
    assert found.space.shape == (3, 16, 16)
    assert len(found.train) == len(squares.PARTS["train"]) * squares.PIECES
    assert set(found.train.y.tolist()) == set(found.test.y.tolist()) == set(range(len(squares.SUBJECTS)))
    contents = [{bytes(x.numpy().data) for x in part.x} for part in (found.train, found.test)]
    assert not contents[0] & contents[1]


def test_a_grey_photo_has_three_channels_alike():
    brick = squares.photo("brick")
    assert torch.equal(brick[0], brick[2])


def test_a_size_beyond_the_photos_is_refused():
    with pytest.raises(SpecError, match="size=512"):
        data.recipe_of("photos(size=512)")


@pytest.mark.parametrize("learned", ["photos", "photos-16/train", "photos-32/train"])
def test_an_evaluation_network_does_not_learn_from_the_clients_photos(learned):
    with pytest.raises(EvaluatorError, match="choose another data set, such as"):
        evaluators.refuse_same(EvaluatorFacts(shape=(3, 16, 16), data=learned), "photos(size=16)")


def test_it_may_learn_from_the_public_photos():
    evaluators.refuse_same(EvaluatorFacts(shape=(3, 16, 16), data="photos-16/test"), "photos(size=16)")
