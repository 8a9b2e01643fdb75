"""Tables: how a CSV file becomes rows, which files are refused in one line, and what lies in scikit-learn's wheel."""

import pytest
import torch

from fl_app import data
from fl_app.core.spec import SpecError
from fl_app.data.base import DataError

GOOD = """age, job, sex, income
39, clerk, 1, <=50K
50, boss, 2, >50K
38, ?, 1, <=50K
20, clerk, 2, >50K
60, boss, 1, <=50K
31, nurse, 2, <=50K
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Writes a CSV file and says how it is named."""
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))

    def write(text=GOOD, settings="label='income'"):
        path = tmp_path / "table.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return f"csv(path='{path}', {settings})"

    return write


def test_columns_of_text_are_categories_and_all_others_numbers(table):
    found = data.load(table(settings="label='income', categorical=['sex'], bounds=[['age', 0, 100]], test_share=0.4"))
    assert [(one.name, one.values, one.low, one.high) for one in found.columns] == [
        ("age", (), 0, 100),
        ("job", ("boss", "clerk", "nurse"), 0, 1),
        ("sex", ("1", "2"), 0, 1),
    ]
    x = torch.cat([found.train.x, found.test.x])
    y = torch.cat([found.train.y, found.test.y])
    assert (len(found.train), len(found.test), found.num_classes) == (3, 2, 2)  # one row has a missing cell
    assert found.space.holds(x)
    told = sorted((*found.space.text(row), label) for row, label in zip(x, y.tolist(), strict=True))
    assert told == [
        ("20", "clerk", "2", 1),
        ("31", "nurse", "2", 0),
        ("39", "clerk", "1", 0),
        ("50", "boss", "2", 1),
        ("60", "boss", "1", 0),
    ]


def test_bounds_that_are_not_said_are_those_of_the_file(table):
    column = data.load(table(settings="label='income', drop=['job']")).columns[0]
    assert (column.low, column.high) == (20, 60)


def test_the_cache_follows_the_file(table):
    first = data.load(table())
    second = data.load(table(GOOD.replace("20,", "21,"), settings="label='income', drop=[]"))
    assert first.name != second.name
    assert not torch.equal(first.train.x.sum(0), second.train.x.sum(0)) or not torch.equal(first.test.x, second.test.x)


@pytest.mark.parametrize(
    ("text", "settings", "why"),
    [
        ("", "label='income'", "must name at least two columns"),
        ("income\n1\n", "label='income'", "must name at least two columns"),
        ("a,a,income\n1,2,3\n", "label='income'", "each once"),
        (GOOD, "label='incme'", "no column 'incme'; did you mean 'income'"),
        (GOOD, "label='income', drop=['jb']", "no column 'jb'"),
        (GOOD, "label='income', drop=['income']", "'income' is the label"),
        (GOOD, "label='income', bounds=[['job', 0, 1]]", "holds what is no number"),
        (GOOD, "label='income', bounds=[['age', 0, 30]]", "holds 20 to 60, beyond its bounds"),
        (GOOD, "label='income', bounds=[['age', 30, 0]]", "needs two bounds, the lower first"),
        (GOOD + "1,2\n", "label='income'", "line 8: 2 cells under 4 columns"),
        (b"a,income\n\xff\xfe,1\n", "label='income'", "no text in UTF-8"),
        ('a,income\n"1,2\n', "label='income'", "line 2"),
        ("a,income\n1,x\n1,y\n", "label='income'", "drop=.*a"),
        ("a,income\n1,x\n2,x\n", "label='income'", "'income' has 1 different values"),
        ("a,income\n?,x\n,y\n", "label='income'", "0 rows have no missing cell"),
        ("a,income\n" + "".join(f"name{i},{i % 2}\n" for i in range(150)), "label='income'", "'a' has 150 different values"),
        ("a,income\n" + "".join(f"{i},{i}\n" for i in range(1200)), "label='income'", "name another label"),
        ("income,b\nx,\x00\ny,1\n", "label='income', drop=['b']", "needs a column beside its label|line"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(table, text, settings, why):
    with pytest.raises((DataError, SpecError), match=why) as found:
        data.load(table(text, settings))
    assert "\n" not in str(found.value)


def test_a_file_that_is_not_there():
    with pytest.raises((DataError, SpecError), match="cannot be read"):
        data.recipe_of("csv(path='nowhere.csv', label='a')")


@pytest.mark.parametrize(
    ("kind", "rows", "floats", "classes"), [("titanic", 1043, 12, 2), ("breast_cancer", 569, 30, 2), ("wine", 178, 13, 3)]
)
def test_tables_inside_the_wheel(kind, rows, floats, classes, tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path))
    data.load.cache_clear()
    found = data.load(f"table(kind='{kind}')")
    assert (len(found.train) + len(found.test), found.input_shape, found.num_classes) == (rows, (floats,), classes)
    assert found.space.holds(found.train.x)
    assert len(found.mean) == floats
    assert found.train.x.min() == 0
    data.load.cache_clear()


def test_numbers_are_those_of_scikit_learn(tmp_path, monkeypatch):
    from sklearn.datasets import load_breast_cancer

    monkeypatch.setenv("THORNS_DATA", str(tmp_path))
    data.load.cache_clear()
    found = data.load("table(kind='breast_cancer')")
    numbers = torch.cat([found.train.x, found.test.x]).double()
    scaled = torch.tensor(load_breast_cancer().data)
    scaled = (scaled - scaled.min(0).values) / (scaled.max(0).values - scaled.min(0).values)
    assert torch.allclose(numbers.sum(0), scaled.sum(0), atol=1e-3)
    data.load.cache_clear()
