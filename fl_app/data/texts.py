"""Data sets of text: Rotten Tomatoes and CoLA and SST-2 with classes, WikiText-2 for language models."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field

from fl_app.core.sources import Official
from fl_app.core.text import Vocabulary
from fl_app.data.base import Arrays, DataError, Examples, Recipe
from fl_app.data.files import find
from fl_app.data.public_text import Labelled, in_rows, public_texts, reviews
from fl_app.data.vocabularies import TokenizerName, vocabulary_of

Length = Annotated[int, Field(ge=4, le=512)]
Size = Annotated[int, Field(ge=300, le=30000)]
Parts = dict[str, list[Labelled]]
"""Split -> its texts."""
LAMP_SEED, HELD_OUT = 101, 1000
"""Whose shuffle of Rotten Tomatoes is ours as well (numpy's), and how many sentences at its end are for testing."""
UNKNOWN = "\u2047"
"""A sign that is in no vocabulary."""

COLA = Official((("https://nyu-mll.github.io/CoLA/cola_public_1.1.zip", "9f6d88c3558ec424cd9d66ea03589aba"),))
SST2 = Official((("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip", "9f81648d4199384278b86e315dac217c"),))
WIKITEXT2 = Official(
    (("https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip", "542ccefacc6c27f945fb54453812b3cd"),)
)


class Form(NamedTuple):
    """How text becomes ids."""

    length: int
    tokenizer: TokenizerName
    size: int

    def vocabulary(self) -> Vocabulary:
        """The vocabulary, made or fetched if needed."""
        return vocabulary_of(self.tokenizer, self.size)

    def sentences(self, texts: Sequence[Labelled]) -> Examples:
        """One row a text, cut at the length."""
        x = self.vocabulary().encode([one.text for one in texts], self.length)
        return Examples(x, torch.tensor([one.label for one in texts], dtype=torch.int64))

    def rows(self, texts: Sequence[Labelled]) -> Examples:
        """As many rows as a text fills."""
        return in_rows(self.vocabulary(), list(texts), self.length)

    def recipe(
        self,
        name: str,
        parts: Callable[[Path], Parts],
        encode: "Callable[[Form, Sequence[Labelled]], Examples]",
        classes: int,
        sources: tuple[Official, ...] = (),
    ) -> Recipe:
        """The recipe of a data set whose files `parts` reads."""

        def read(folder: Path) -> Arrays:
            found = {split: encode(self, texts) for split, texts in parts(folder).items()}
            found["public"] = self.rows(public_texts())
            return {f"{split}_{axis}": getattr(examples, axis) for split, examples in found.items() for axis in "xy"}

        size = "" if self.tokenizer == "bert" else f"-{self.size}"
        return Recipe(
            key=f"{name}-{self.length}-{self.tokenizer}{size}",
            read=read,
            num_classes=classes,
            sources=sources,
            vocabulary=self.vocabulary,
        )


TEXTS = ("cola", "rotten_tomatoes", "sst2", "wikitext2")
"""The names of these data sets."""


def rotten_tomatoes(*, length: Length = 32, tokenizer: TokenizerName = "imdb", vocabulary: Size = 8000) -> Recipe:
    """Sentences of film reviews, positive or negative (Pang and Lee 2005): the published training split, cut by us.

    In the order of LAMP's shuffle, so that the first 100 are the sentences that LAMP attacks; the last 1,000 are for testing.
    """

    def parts(_: Path) -> Parts:
        texts = reviews()["rotten_tomatoes"]
        order = np.random.RandomState(LAMP_SEED).permutation(len(texts)).tolist()
        shuffled = [texts[i] for i in order]
        return {"train": shuffled[:-HELD_OUT], "test": shuffled[-HELD_OUT:]}

    return Form(length, tokenizer, vocabulary).recipe("rotten_tomatoes", parts, Form.sentences, 2)


def _lines(folder: Path, *names: str) -> list[list[str]]:
    """The cells of a file of tabs without quotes, (number of lines, cells)."""
    path = find(folder, *names)
    try:
        return [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 (byte {error.start})") from None


def _labelled(lines: Sequence[Sequence[str]], text: int, label: int, what: str) -> list[Labelled]:
    """Texts and classes 0 or 1 of some cells."""
    found = []
    for number, cells in enumerate(lines, 1):
        if len(cells) <= max(text, label) or cells[label] not in ("0", "1"):
            raise DataError(f"{what}, line {number}: there must be a text and a class, 0 or 1, between tabs")
        found.append(Labelled(cells[text].strip(), int(cells[label])))
    return found


def cola(*, length: Length = 24, tokenizer: TokenizerName = "imdb", vocabulary: Size = 8000) -> Recipe:
    """Sentences that are good English or not (Warstadt et al. 2019); its published development sets are for testing."""

    def parts(folder: Path) -> Parts:
        names = {"train": [("in_domain_train.tsv", "train.tsv")], "test": [("in_domain_dev.tsv", "dev.tsv")]}
        if list(folder.rglob("out_of_domain_dev.tsv*")):
            names["test"].append(("out_of_domain_dev.tsv",) * 2)
        return {
            split: [one for name in files for one in _labelled(_lines(folder, *name), 3, 1, name[0])]
            for split, files in names.items()
        }

    return Form(length, tokenizer, vocabulary).recipe("cola", parts, Form.sentences, 2, (COLA,))


def sst2(*, length: Length = 32, tokenizer: TokenizerName = "imdb", vocabulary: Size = 8000) -> Recipe:
    """Phrases of film reviews, positive or negative (Socher et al. 2013, as in GLUE); dev.tsv is for testing."""

    def parts(folder: Path) -> Parts:
        files = {"train": "train.tsv", "test": "dev.tsv"}
        return {split: _labelled(_lines(folder, name)[1:], 0, 1, name) for split, name in files.items()}

    return Form(length, tokenizer, vocabulary).recipe("sst2", parts, Form.sentences, 2, (SST2,))


def wikitext2(*, length: Length = 32, tokenizer: TokenizerName = "imdb", vocabulary: Size = 8000) -> Recipe:
    """Articles of Wikipedia for language models (Merity et al. 2017), in rows of one length; there are no classes."""

    def text(folder: Path, part: str) -> list[Labelled]:
        path = find(folder, f"wiki.{part}.tokens", f"wiki.{part}.raw")
        return [
            Labelled(line.replace("<unk>", UNKNOWN), 0)
            for line in path.read_text(encoding="utf-8").split("\n")
            if line.strip() and not line.strip().startswith("= ")  # headings
        ]

    def parts(folder: Path) -> Parts:
        return {"train": text(folder, "train"), "val": text(folder, "valid"), "test": text(folder, "test")}

    return Form(length, tokenizer, vocabulary).recipe("wikitext2", parts, Form.rows, 1, (WIKITEXT2,))
