"""Data sets of text on small files in the real formats, and the vocabulary that is trained on public text and kept."""

import numpy as np
import pytest

from fl_app import data
from fl_app.data.base import DataError
from fl_app.data.vocabularies import vocabulary_of
from helpers.small_text import DATA, numbered, write_reviews

SETTINGS = "length=12, vocabulary=300"
OTHER = """
from dataclasses import replace


def other():
    one, change = sentences(), {change}

    def read(folder):
        return {{name: change(value) if name.endswith("x") else value for name, value in one.read(folder).items()}}

    return replace(one, key="other", read=read)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with small reviews in place of the package's."""
    from fl_app.data import public_text

    monkeypatch.setenv("THORNS_DATA", str(tmp_path))
    for known in (public_text.reviews, vocabulary_of, data.load):
        known.cache_clear()
    write_reviews(tmp_path / "movie-reviews.csv")
    yield tmp_path
    for known in (public_text.reviews, vocabulary_of, data.load):
        known.cache_clear()


def put(cache, name, **files):
    folder = cache / "raw" / f"{name}-12-imdb-300"
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_text(text, encoding="utf-8")


def test_rotten_tomatoes_is_in_the_order_of_lamps_shuffle(cache):
    found = data.load(f"rotten_tomatoes({SETTINGS})")
    np.random.seed(101)
    order = list(range(1030))
    np.random.shuffle(order)  # as LAMP does
    assert [found.vocabulary.decode(row) for row in found.train.x] == [numbered(i) for i in order[:30]]
    assert [found.vocabulary.decode(row) for row in found.test.x] == [numbered(i) for i in order[30:]]
    assert found.train.y.tolist() == [i % 2 for i in order[:30]]
    assert (found.num_classes, found.input_shape) == (2, (12, len(found.vocabulary)))


def test_public_text_is_of_another_source_in_the_same_form(cache):
    found = data.load(f"rotten_tomatoes({SETTINGS})")
    assert found.public.x.shape[1] == 12
    assert (found.public.x[:, 0] == found.vocabulary.cls).all()
    assert ((found.public.x == found.vocabulary.sep).sum(1) == 1).all()
    told = " ".join(found.vocabulary.decode(row) for row in found.public.x)
    assert len(told.split()) == 10 * 121  # every third of 30 reviews, and no word is lost between rows
    assert "br" not in told.split()


def test_the_vocabulary_is_kept_with_its_checksum(cache):
    made = vocabulary_of("imdb", 300)
    path = cache / "vocabulary-imdb-300.json"
    written = path.read_text()
    vocabulary_of.cache_clear()
    assert vocabulary_of("imdb", 300) == made
    assert path.read_text() == written
    path.write_text(written.replace('"film"', '"movie"'))
    vocabulary_of.cache_clear()
    with pytest.raises(DataError, match=r"vocabulary-imdb-300\.json is damaged .*another checksum"):
        vocabulary_of("imdb", 300)


def test_cola_reads_its_own_files_and_glues(cache):
    line = "gj04\t1\t\tthe film is good\ngj04\t0\t*\tthe film good is\n"
    put(cache, "cola", in_domain_train__tsv=line * 2, in_domain_dev__tsv=line, out_of_domain_dev__tsv="x\t1\t\tit was\n")
    found = data.load(f"cola({SETTINGS})")
    assert found.train.y.tolist() == [1, 0, 1, 0]
    assert found.test.y.tolist() == [1, 0, 1]
    assert found.vocabulary.decode(found.test.x[1]) == "the film good is"


def test_sst2_has_a_header(cache):
    put(cache, "sst2", train__tsv='sentence\tlabel\nthe "film \t0\nit is fine \t1\n', dev__tsv="sentence\tlabel\nit is\t1\n")
    found = data.load(f"sst2({SETTINGS})")
    assert (found.train.y.tolist(), found.test.y.tolist()) == ([0, 1], [1])
    assert found.vocabulary.decode(found.train.x[1]) == "it is fine"


def test_wikitext_is_rows_of_one_length_without_classes(cache):
    text = " \n = Title = \n \n the film <unk> is " + "good " * 20 + "\n = = Part = = \n it was \n"
    put(cache, "wikitext2", wiki__train__tokens=text, wiki__valid__tokens="the film\n", wiki__test__tokens="a plot\n")
    found = data.load(f"wikitext2({SETTINGS})")
    assert found.num_classes == 1
    assert [found.vocabulary.decode(row) for row in found.train.x] == [
        "the film [UNK] is" + 6 * " good",
        "good" + 9 * " good",
        "good good good good",
        "it was",
    ]
    assert found.validation is not None


@pytest.mark.parametrize("text", ["gj04\t2\t\tthe film\n", "gj04\t1\n", "\t\t\t\n"])
def test_a_line_that_is_none_of_cola_is_named(cache, text):
    put(cache, "cola", in_domain_train__tsv="a\t1\t\tfine\n" + text, in_domain_dev__tsv="a\t1\t\tfine\n")
    if not text.strip():
        assert len(data.load(f"cola({SETTINGS})").train) == 1
        return
    with pytest.raises(DataError, match=r"in_domain_train\.tsv, line 2"):
        data.load(f"cola({SETTINGS})")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("lambda x: x.float() / 99", "int64 for text"),
        ("lambda x: x + 90", "ids of the vocabulary, from 0 to 19"),
        ("lambda x: -x", "ids of the vocabulary"),
    ],
)
def test_ids_that_are_none_are_refused(outside, monkeypatch, tmp_path, change, why):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    name = outside(DATA + OTHER.format(change=change))
    monkeypatch.setenv("THORNS_ALLOW", f"{name}:other")
    with pytest.raises(DataError, match=why):
        data.load(f"{name}:other")
