"""Vocabularies: text to ids and back, what has no room, what is unknown; and which token a language model is told next."""

import pickle

import pytest
import torch

from fl_app.core.local import NOTHING, next_tokens
from fl_app.core.text import SPECIAL, Tokens, Vocabulary, lengths

VOCABULARY = Vocabulary.of_words(["the", "film", "play", "##ing", "##s", ".", "[unused1]"])


def test_text_becomes_ids_and_text_again():
    x = VOCABULARY.encode(["The films playing.", "", "the the the the the the"], 8)
    assert x.tolist() == [[2, 4, 5, 8, 6, 7, 9, 3], [2, 3, 0, 0, 0, 0, 0, 0], [2, 4, 4, 4, 4, 4, 4, 3]]
    assert [VOCABULARY.decode(row) for row in x] == ["the films playing .", "", "the the the the the the"]
    assert VOCABULARY.decode(x[0], special=True) == "[CLS] the films playing . [SEP]"
    assert lengths(x).tolist() == [8, 2, 8]


def test_what_has_no_room_is_cut_and_what_is_unknown_says_so():
    assert VOCABULARY.encode(["the film the film"], 4).tolist() == [[2, 4, 5, 3]]
    assert VOCABULARY.decode(VOCABULARY.encode(["the opera"], 6)[0]) == "the [UNK]"


def test_special_tokens_stand_for_no_text():
    assert VOCABULARY.special == (0, 2, 3, 10)
    assert VOCABULARY.words.tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("tokens", [SPECIAL[1:], ("a", *SPECIAL), (*SPECIAL, "a", "a"), (*SPECIAL[:3], "a")])
def test_what_is_no_vocabulary_is_refused(tokens):
    with pytest.raises(ValueError, match="vocabulary"):
        Vocabulary(tuple(tokens))


def test_a_vocabulary_is_known_by_its_tokens():
    assert Vocabulary(VOCABULARY.tokens) == VOCABULARY
    assert VOCABULARY.digest != Vocabulary(VOCABULARY.tokens[:-1]).digest != Vocabulary(VOCABULARY.tokens, cased=True).digest
    assert len(repr(Tokens(Vocabulary.numbered(30000), 8))) < 80  # it is in the names of folders and in errors
    sent = pickle.loads(pickle.dumps(Tokens(VOCABULARY, 5)))  # to a worker
    assert sent.vocabulary.encode(["film"], 5).tolist() == [[2, 5, 3, 0, 0]]


def test_the_next_token_is_none_at_the_end():
    assert next_tokens(torch.tensor([[2, 5, 3, 0], [2, 5, 6, 3]])).tolist() == [[5, 3, NOTHING, NOTHING], [5, 6, 3, NOTHING]]
