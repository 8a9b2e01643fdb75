"""Text that any test can afford: a plugged-in data set of short sentences, and the files that real ones are made of."""

import csv
import random

WORDS = ["a", "the", "film", "plot", "cast", "is", "was", "not", "good", "bad", "fine", "dull", "great", "poor", "it", "and"]
DATA = '''
import random

import torch

from fl_app.core.text import Vocabulary
from fl_app.data.base import Recipe

WORDS = "a the film plot cast is was not good bad fine dull great poor it and".split()
VOCABULARY = Vocabulary.of_words(WORDS)


def sentences(*, length: int = 10):
    """Praise and its opposite."""
    draw, made = random.Random(0), []
    for i in range(96):
        tone = draw.choice(WORDS[8::2] if i % 2 else WORDS[9::2])
        made.append(" ".join([*draw.sample(WORDS[:8], draw.randint(2, length - 4)), tone]))
    x, y = VOCABULARY.encode(made, length), torch.arange(len(made)) % 2

    def read(folder):
        return {"train_x": x[:64], "train_y": y[:64], "test_x": x[64:], "test_y": y[64:]}

    return Recipe(key=f"sentences-{length}", read=read, num_classes=2, vocabulary=lambda: VOCABULARY)
'''


def numbered(i):
    """A sentence that says a number, to the base of 16 words."""
    return f"{WORDS[i // 256]} {WORDS[i // 16 % 16]} {WORDS[i % 16]}"


def write_reviews(path, number=1030):
    """A file like that of the package with the reviews: IMDb's long ones first, then so many sentences of Rotten Tomatoes."""
    draw = random.Random(1)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["text", "label", "source"])
        for i in range(30):
            words = " ".join(draw.choices(WORDS, k=60))
            lines.writerow([f"{words}<br /><br />{words}.", i % 2, "imdb"])
        for i in range(number):
            lines.writerow([numbered(i), i % 2, "rotten_tomatoes"])
