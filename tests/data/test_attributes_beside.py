"""Attributes beside images: read from a file in their folder, or derived from finer classes; and files that are none."""

import pytest
import torch

from fl_app import data
from fl_app.data.splits import split
from helpers.marked import MARKS, marked_folder


@pytest.fixture
def marked(tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    return marked_folder(tmp_path / "images", number=10)


def spec(root):
    return f"imagefolder(path='{root}', size=12)"


def edges(x):
    """Which mark an image shows, (n,): whether its left edge is darker than its top one."""
    return (x[..., 3:, :3].float().mean((1, 2, 3)) < x[..., :3, 3:].float().mean((1, 2, 3))).long()


def test_a_line_belongs_to_its_image_in_every_split(marked):
    loaded = data.load(spec(marked))
    assert [(one.name, one.values) for one in loaded.space.attributes] == [("mark", MARKS), ("size", ("3", "4"))]
    for part in (loaded.train, loaded.test, *split(loaded, "50/25/25", seed=4)):
        assert torch.equal(part.a[:, 0], edges(part.x))
    assert loaded.test.part(slice(1)).a.shape == (1, 2)


def test_the_cache_follows_the_attributes(marked):
    before = data.recipe_of(spec(marked)).key
    text = (marked / "attributes.csv").read_text()
    (marked / "attributes.csv").write_text(text.replace(",left,", ",right,", 1))
    assert data.recipe_of(spec(marked)).key != before
    (marked / "attributes.csv").unlink()
    assert data.recipe_of(spec(marked)).attributes == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace("file,", "name,"), "needs a column 'file'"),
        (lambda text: text.replace("blue/03.png", "blue/0x.png"), r"no line about 'blue/03\.png'"),
        (lambda text: text + "red/01.png,top,3\n", r"two lines about 'red/01\.png'"),
        (lambda text: text.replace("red/01.png,left", "red/01.png,").replace("red/01.png,top", "red/01.png,"), "has no value"),
        (lambda text: text.replace("left", "top"), "the column 'mark' has 1 different values, not 2 to 100: leave the column"),
        (lambda text: text.replace("red/01.png,", "red/01.png,x,"), "line 13: 4 cells under 3 columns"),
        (lambda text: "", "the first line must name at least two columns"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(marked, change, why):
    path = marked / "attributes.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=why):
        data.load(spec(marked))


def test_faces_are_half_faces_and_their_task_says_nothing_of_it():
    faces = data.load("attributed(kind='faces')")
    assert faces.input_shape == (1, 25, 25)
    y, a = (torch.cat([getattr(part, name) for part in (faces.train, faces.test)]) for name in "ya")
    assert int(a.sum()) == 100
    for label in (0, 1):
        assert abs(a[y == label].double().mean() - 0.5) < 0.03


def test_attributes_follow_from_the_finer_classes():
    digits, finer = data.load("attributed(kind='digits')"), data.load("mnist")
    digit, odd, loop = digits.test.a.T
    assert torch.equal(digit, finer.test.y)
    assert torch.equal(digits.test.x, finer.test.x)
    assert torch.equal(odd, digit % 2)
    assert set(digit[loop == 1].tolist()) == {0, 6, 8, 9}
    assert torch.equal(digits.test.y, (digit > 4).long())
