"""Texts for people: the truth in one line, each attack's below it, and the words that both have marked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fl_app.core.text import Tokens
from fl_app.scoring.grids import GREY, INK, LABEL, LINE, MARGIN, PAPER, wrapped
from fl_app.scoring.sheets import HEIGHT, RIGHT

WIDTH = 900
MOVED = (253, 238, 190)
Mark = Literal["right", "moved", ""]
FILL = {"right": RIGHT, "moved": MOVED}


class Word(NamedTuple):
    """A word, and whether the truth has it: in the same order, elsewhere, or not at all."""

    text: str
    mark: Mark = ""


def words(tokens: Tokens, row: Tensor) -> list[str]:
    """The words of a row (length,), pieces joined."""
    return tokens.vocabulary.decode(row.cpu()).split()


def marked(tokens: Tokens, row: Tensor, truth: Tensor) -> list[Word]:
    """The words of a reconstruction; those in order are found as `diff` would, and none of the truth counts twice."""
    ours, theirs = words(tokens, row), words(tokens, truth)
    marks: list[Mark] = [""] * len(ours)
    left = Counter(theirs)
    for block in SequenceMatcher(None, theirs, ours, autojunk=False).get_matching_blocks():
        for place in range(block.b, block.b + block.size):
            marks[place] = "right"
            left[ours[place]] -= 1
    for place, word in enumerate(ours):
        if not marks[place] and left[word] > 0:
            marks[place] = "moved"
            left[word] -= 1
    return [Word(word, mark) for word, mark in zip(ours, marks, strict=True)]


def passages(tokens: Tokens, true_x: Tensor, rebuilt: Mapping[str, Tensor], captions: Sequence[str] = ()) -> Image.Image:
    """A picture of some texts: true_x (n, length), rebuilt {attack: the same, matched}; right words are on green."""
    if true_x.shape[1:] != tokens.shape or any(one.shape != true_x.shape for one in rebuilt.values()):
        raise ValueError(f"ids (n, {tokens.length}) are shown, and the same of each attack, not {tuple(true_x.shape)}")
    font, lines = ImageFont.load_default(12), list[tuple[str, list[Word]]]()
    for i, truth in enumerate(true_x):
        lines.append((captions[i] if captions else "truth", [Word(word) for word in words(tokens, truth)]))
        lines += [(f"  {name}", marked(tokens, one[i], truth)) for name, one in rebuilt.items()]
    label = min(LABEL, max(int(font.getlength(name)) for name, _ in lines)) + MARGIN
    placed = [(name, _placed(said, font, WIDTH - label - 2 * MARGIN)) for name, said in lines]
    height = sum(HEIGHT * (rows[-1][2] + 1 if rows else 1) for _, rows in placed) + 2 * MARGIN
    image = Image.new("RGB", (WIDTH, height), PAPER)
    draw, top = ImageDraw.Draw(image), MARGIN
    for name, rows in placed:
        draw.text((MARGIN, top + 2), wrapped(name, font, label - MARGIN, 1)[0], GREY, font=font)
        for word, left, row in rows:
            x, y = MARGIN + label + left, top + row * HEIGHT
            if word.mark:
                draw.rectangle((x - 2, y, x + font.getlength(word.text) + 2, y + LINE + 1), fill=FILL[word.mark])
            draw.text((x, y + 2), word.text, INK, font=font)
        top += HEIGHT * (rows[-1][2] + 1 if rows else 1)
    return image


def _placed(
    said: Sequence[Word], font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> list[tuple[Word, float, int]]:
    """(word, pixels from the left, line from 0) of words that are broken into lines."""
    found, left, row = [], 0.0, 0
    for word in said:
        wide = font.getlength(word.text)
        if left and left + wide > width:
            left, row = 0.0, row + 1
        found.append((word, left, row))
        left += wide + 5
    return found
