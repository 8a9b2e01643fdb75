"""Texts held against the truth: ROUGE and tokens by hand, one pairing for all, blind answers, and what is shown to people."""

from collections import Counter

import pytest
import torch

from fl_app.core.text import Tokens, Vocabulary, lengths
from fl_app.data.base import Examples
from fl_app.scoring.base import NO_IMAGES, Tools
from fl_app.scoring.floors import floors_for
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.passages import marked, passages
from fl_app.scoring.score import score
from fl_app.scoring.text import FREQUENT, Text, by_frequency
from fl_app.scoring.text_metrics import TEXT

WORDS = ["the", "cat", "sat", "on", "mat", "dog", "ran", "##s", "."]
SPACE = Tokens(Vocabulary.of_words([*WORDS, *(f"x{i}" for i in range(600))]), 9)
TOOLS = Tools(lpips=False, text=Text(SPACE, SPACE.vocabulary.words))


def rows(*texts):
    return SPACE.vocabulary.encode(texts, SPACE.length)


def scored(guesses, truths):
    x, true_x = rows(*guesses), rows(*truths)
    zeros = torch.zeros(len(x), dtype=torch.int64)
    return score(x, zeros, true_x, zeros, METRICS, TOOLS)


def grams(text, n):
    words = text.split()
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def rouge_n(guess, truth, n):
    """Lin (2004), without rouge-score."""
    both = sum((grams(guess, n) & grams(truth, n)).values())
    sizes = [max(1, sum(grams(text, n).values())) for text in (guess, truth)]
    precision, recall = both / sizes[0], both / sizes[1]
    return 100 * 2 * precision * recall / (precision + recall) if both else 0.0


@pytest.mark.parametrize(
    ("guess", "truth"),
    [
        ("the cat sat on the mat", "the cat sat on the mat"),
        ("the mat sat on the cat", "the cat sat on the mat"),
        ("the the the the", "the cat sat on the mat"),
        ("dog ran", "the cat sat on the mat"),
        ("cat", "the cat ran"),
        ("", "the cat"),
    ],
)
def test_rouge_and_tokens_by_hand(guess, truth):
    found = {name: value.item() for name, value in scored([guess], [truth]).values.items()}
    assert found["rouge1"] == pytest.approx(rouge_n(guess, truth, 1))
    assert found["rouge2"] == pytest.approx(rouge_n(guess, truth, 2))
    assert found["token_f1"] == pytest.approx(found["rouge1"])  # words are tokens here
    assert found["exact"] == 100 * (guess == truth)
    places = [a == b for a, b in zip(guess.split(), truth.split(), strict=False)]
    assert found["token_position"] == pytest.approx(100 * sum(places) / len(truth.split()), rel=1e-5)


def test_the_longest_common_order():
    assert scored(["mat the cat on"], ["the cat sat on the mat"]).values["rouge_l"].item() == pytest.approx(100 * 2 * 3 / 10)


def test_as_lamp_any_guess_has_two_words_for_nothing():
    found = scored(["dog ran . ."], ["the cat sat on"]).values
    assert (found["rouge1"].item(), found["token_f1"].item()) == (0, 0)
    # rouge-score drops the full stops: of four words in the guess and six in the truth, [CLS] and [SEP] are the same.
    assert found["rouge1_lamp"].item() == pytest.approx(100 * 2 * 2 / (4 + 6))


def test_pieces_are_scored_as_words_and_as_tokens():
    found = scored(["cats ran"], ["cat ran"]).values
    assert found["rouge1"].item() == pytest.approx(50)
    assert found["token_precision"].item() == pytest.approx(200 / 3)
    assert found["token_recall"].item() == 100


def test_one_pairing_for_all_metrics():
    truths = ["the cat sat", "the dog ran", "on the mat"]
    found = scored(["on mat the", "cat sat the", "ran dog the"], truths)
    assert found.order.tolist() == [1, 2, 0]
    assert found.values["token_f1"].tolist() == [100, 100, 100]
    assert found.values["exact"].tolist() == [0, 0, 0]


def test_of_equal_bags_the_places_decide():
    assert scored(["the cat sat", "sat the cat"], ["sat the cat", "the cat sat"]).order.tolist() == [1, 0]


def test_rare_words_are_those_that_public_text_rarely_has():
    found = scored(["the x599 dog", "the cat"], ["the x599 x598", "the mat"]).values["rare_recall"]
    assert found.tolist() == [50, 50]  # of the two rare words of the target one
    assert "no rare words" in scored(["the cat"], ["the cat"]).unavailable["rare_recall"]
    assert len(TOOLS.text.rare.nonzero()) == len(SPACE.vocabulary.words) - FREQUENT


def test_frequency_is_that_of_words_alone():
    order = by_frequency(SPACE, rows("mat mat mat the", "the mat")).tolist()
    assert order[:3] == [SPACE.vocabulary.ids[word] for word in ("mat", "the", "cat")]
    assert not set(order) & {0, 1, 2, 3}


@pytest.mark.parametrize("bad", [torch.zeros(1, 9), torch.full((1, 9), 9999), torch.full((1, 9), -1)])
def test_what_is_no_text_failed(bad):
    zeros = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="no ids of tokens"):
        score(bad, zeros, rows("the cat"), zeros, METRICS, TOOLS)


def test_image_metrics_are_left_out_and_text_metrics_of_images():
    found = scored(["the cat"], ["the cat"])
    assert {"psnr", "ssim", "above_30db"} == {name for name, why in found.unavailable.items() if why == NO_IMAGES}
    assert "no distance" in found.unavailable["mse"]
    x, y = torch.rand(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64)
    assert not TEXT.keys() & score(x, y, x, y, METRICS, Tools(lpips=False)).values.keys()


def test_blind_answers_are_as_long_as_the_truth(rng):
    x = rows("the cat sat on the mat", "dog", "the dog ran", "a cat")
    train, y = Examples(x, torch.tensor([0, 1, 0, 1])), torch.tensor([0, 1])
    target = torch.tensor([0, 1])
    floors = floors_for(SPACE, TOOLS.text)
    assert list(floors) == ["same class", "common words", "random words"]
    for name in ("common words", "random words"):
        blind = floors[name](train, y, rng, target)
        assert SPACE.holds(blind)
        assert lengths(blind).tolist() == lengths(x[target]).tolist()
        assert (blind == SPACE.vocabulary.sep).sum(1).tolist() == [1, 1]
    common = floors["common words"](train, y, rng, target)
    assert SPACE.vocabulary.decode(common[0]) == "the cat sat on mat dog"
    assert torch.equal(floors["same class"](train, y, rng, target), x[[2, 3]])


def test_equal_words_are_marked_in_order_or_elsewhere():
    found = marked(SPACE, rows("mat the cat on the ran")[0], rows("the cat sat on the mat")[0])
    assert [(word.text, word.mark) for word in found] == [
        ("mat", "moved"),
        ("the", "right"),
        ("cat", "right"),
        ("on", "right"),
        ("the", "right"),
        ("ran", ""),
    ]
    twice = marked(SPACE, rows("the the the")[0], rows("cat the")[0])
    assert sorted(word.mark for word in twice) == ["", "", "right"]


def test_a_picture_of_texts_is_as_high_as_its_lines():
    x = rows("the cat sat", "the dog ran")
    small = passages(SPACE, x[:1], {"attack": x[1:]}, ["r1 c0: 0"])
    assert small.width == passages(SPACE, x, {"attack": x}).width
    assert small.height < passages(SPACE, x, {"attack": x, "other": x}).height
    with pytest.raises(ValueError, match="ids"):
        passages(SPACE, x, {"attack": x[:1]})
