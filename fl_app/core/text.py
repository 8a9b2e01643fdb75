"""Text as a space: rows of token ids, and the vocabulary that makes ids of text and text of ids."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
"""Tokens that every vocabulary has; the first has the id 0."""
PAD = 0
LEAST_LENGTH = 3
"""[CLS], a word, [SEP]."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a WordPiece tokenizer in the order of their ids, which is all that it is (Devlin et al. 2019)."""

    tokens: tuple[str, ...]
    cased: bool = False

    def __post_init__(self) -> None:
        missing = [name for name in SPECIAL if name not in self.tokens]
        if missing or self.tokens[PAD] != SPECIAL[0]:
            raise ValueError(f"a vocabulary starts with {SPECIAL[0]} and has {', '.join(SPECIAL[1:])} as well")
        if len(set(self.tokens)) < len(self.tokens):
            raise ValueError("a token stands in the vocabulary twice")

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Vocabulary":
        """The vocabulary of these words behind the special tokens."""
        return cls((*SPECIAL, *words))

    @classmethod
    def numbered(cls, size: int) -> "Vocabulary":
        """A vocabulary of so many tokens of which only the number is known."""
        return cls.of_words([f"t{number}" for number in range(len(SPECIAL), size)])

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)}, {self.digest})"

    @cached_property
    def digest(self) -> str:
        """A checksum of all that it is."""
        return hashlib.blake2b(json.dumps([self.tokens, self.cased]).encode(), digest_size=8).hexdigest()

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token -> id."""
        return {token: place for place, token in enumerate(self.tokens)}

    @property
    def unk(self) -> int:
        """What stands for all that the vocabulary lacks."""
        return self.ids["[UNK]"]

    @property
    def cls(self) -> int:
        """What a text starts with."""
        return self.ids["[CLS]"]

    @property
    def sep(self) -> int:
        """What a text ends with."""
        return self.ids["[SEP]"]

    @cached_property
    def special(self) -> tuple[int, ...]:
        """The ids that stand for no text: [PAD], [CLS], [SEP], [unused7], but not [UNK], which stands for a word."""
        marked = (i for i, token in enumerate(self.tokens) if len(token) > 2 and token[0] == "[" and token[-1] == "]")
        return tuple(i for i in marked if i != self.unk)

    @cached_property
    def words(self) -> Tensor:
        """The ids that stand for text, int64 (n,)."""
        kept = torch.ones(len(self), dtype=torch.bool)
        kept[list(self.special)] = False
        kept[self.unk] = False
        return kept.nonzero()[:, 0]

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

        made = Tokenizer(models.WordPiece(self.ids, unk_token="[UNK]", max_input_chars_per_word=100))
        made.normalizer = normalizers.BertNormalizer(lowercase=not self.cased)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece(cleanup=False)
        return made

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts without special tokens, however long."""
        return [one.ids for one in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """Texts -> int64 (n, length): [CLS], as many tokens as there is room for, [SEP], and zeros behind."""
        rows = torch.zeros(len(texts), length, dtype=torch.int64)
        for row, found in zip(rows, self.pieces(texts), strict=True):
            ids = [self.cls, *found[: length - 2], self.sep]
            row[: len(ids)] = torch.tensor(ids)
        return rows

    def decode(self, ids: Tensor, special: bool = False) -> str:
        """One row (length,) as text, pieces of words joined; with `special` [CLS] and [SEP] are shown, [PAD] never."""
        hidden = {PAD} if special else set(self.special)
        return str(self._tokenizer.decode([i for i in ids.tolist() if i not in hidden], skip_special_tokens=False))


@dataclass(frozen=True)
class Tokens:
    """Rows of token ids, int64 (length,), right padded with zeros."""

    vocabulary: Vocabulary
    length: int

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.vocabulary)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return (self.length,)

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest ids."""
        return x.round().clamp(0, self.size - 1).long() if x.is_floating_point() else x.clamp(0, self.size - 1)

    hull = clamp

    def noise(self, number: int, rng: torch.Generator) -> Tensor:
        """Rows of uniform words between [CLS] and [SEP]."""
        words = self.vocabulary.words
        found = words[torch.randint(len(words), (number, self.length), generator=rng)]
        found[:, 0], found[:, -1] = self.vocabulary.cls, self.vocabulary.sep
        return found

    def holds(self, x: Tensor) -> bool:
        """Whether the values are ids of the vocabulary and the shape is right."""
        fits = x.shape[-1:] == self.shape and x.dtype == torch.int64
        return fits and bool(((x >= 0) & (x < self.size)).all())


def lengths(x: Tensor) -> Tensor:
    """Rows (..., length) -> how many of their tokens are no padding, [CLS] and [SEP] included, int64 (...)."""
    return (x != PAD).sum(-1)
