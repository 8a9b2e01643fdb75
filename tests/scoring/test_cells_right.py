"""Rows held against the truth: the share of right cells, blind answers, the sheet for people, and what is left out."""

import pytest
import torch

from fl_app.core.observation import Candidates
from fl_app.core.table import TOLERANCE, Column, Rows
from fl_app.data.base import Examples
from fl_app.scoring import attributes
from fl_app.scoring.base import NO_IMAGES, Measure, Tools
from fl_app.scoring.floors import FLOORS, floors_for
from fl_app.scoring.membership import Believed
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.score import score
from fl_app.scoring.sheets import sheet

ROWS = Rows((Column("age", low=0, high=100), Column("sex", ("f", "m")), Column("job", ("a", "b", "c"))))
TOOLS = Tools(rows=ROWS, lpips=False)


def rows(*cells):
    return ROWS.encode(torch.tensor(cells))


def test_the_share_of_right_cells_whatever_the_order():
    truth = rows([0.2, 0.0, 2.0], [0.9, 1.0, 0.0])
    answer = rows([0.88, 1.0, 1.0], [0.3, 0.0, 2.0])
    found = score(answer, torch.zeros(2, dtype=torch.int64), truth, torch.zeros(2, dtype=torch.int64), METRICS, TOOLS)
    assert found.order.tolist() == [1, 0]
    assert found.values["cells"].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert {"psnr", "ssim", "above_30db"} == {name for name, why in found.unavailable.items() if why == NO_IMAGES}
    assert found.row()["psnr"] is None


def test_images_have_no_cells():
    x, y = torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64)
    found = score(x, y, x, y, METRICS, Tools(lpips=False))
    assert "cells" not in found.values
    assert found.values["psnr"].tolist() == [100, 100]


def test_a_measure_keeps_of_what_it_is():
    measure = METRICS["cells"]
    assert Measure.from_dict(measure.to_dict()).of == "rows"
    older = {key: value for key, value in measure.to_dict().items() if key != "of"}
    assert Measure.from_dict(older).of == "any"
    with pytest.raises(ValueError, match="of must be one of"):
        Measure.from_dict({**measure.to_dict(), "of": "sounds"})


def test_the_most_frequent_cells_of_a_class_by_hand(rng):
    cells = torch.stack([torch.rand(40, generator=rng) ** 2, *(torch.randint(n, (40,), generator=rng) for n in (2, 3))], 1)
    y = torch.randint(2, (40,), generator=rng)
    train, excluded = Examples(ROWS.encode(cells), y), torch.tensor([3, 5, 8])
    floors = floors_for(ROWS)
    assert list(floors) == ["class mode", "same class", "noise"]
    blind = floors["class mode"](train, torch.tensor([0, 1]), rng, excluded)
    kept = torch.ones(40, dtype=torch.bool)
    kept[excluded] = False
    for label in (0, 1):
        own, answer = cells[kept & (y == label)], ROWS.cells(blind[label])
        near = [(own[:, 0] - value).abs().le(TOLERANCE).sum().item() for value in own[:, 0]]
        assert (own[:, 0] - answer[0]).abs().le(TOLERANCE + 1e-6).sum().item() == max(near)
        for column in (1, 2):
            counts = own[:, column].long().bincount()
            assert counts[int(answer[column])] == counts.max()


def test_blind_answers_of_floats(rng):
    x, y = ROWS.noise(30, rng), torch.arange(30) % 2
    blind = FLOORS["class mean"](Examples(x, y), torch.tensor([0]), rng, torch.tensor([0]))
    assert torch.allclose(blind[0], x[2::2].mean(0), atol=1e-6)


def test_a_sheet_marks_what_is_right():
    truth = rows([0.2, 0.0, 2.0])
    shown = sheet(ROWS, truth, {"one": rows([0.2, 1.0, 2.0])}, ["r1 c0: 0"])
    wrong = sheet(ROWS, truth, {"one": rows([0.9, 1.0, 1.0])}, ["r1 c0: 0"])
    green = [sum(pixel == (198, 232, 205) for pixel in image.getdata()) for image in (shown, wrong)]
    assert green[0] > 500
    assert green[1] == 0
    wide = Rows(tuple(Column(str(i)) for i in range(30)))
    assert sheet(wide, torch.rand(1, 30), {}).width < 2000
    with pytest.raises(ValueError, match="a sheet shows rows"):
        sheet(ROWS, torch.rand(1, 4), {})


def believed(scores, truth):
    return Believed(torch.tensor(scores).double(), torch.tensor(truth, dtype=torch.int8))


def test_the_mean_over_targets_is_the_balanced_accuracy():
    from sklearn.metrics import balanced_accuracy_score

    draw = torch.Generator().manual_seed(3)
    found, chosen, actual = {}, [], []
    for client in range(12):
        scores = torch.rand(4, 3, generator=draw)
        true = torch.tensor([0, 0, 0, int(torch.randint(3, (), generator=draw))])
        chosen += scores.argmax(1).tolist()
        actual += true.tolist()
        one_hot = torch.nn.functional.one_hot(true, 3).flatten().tolist()
        found[1, client] = believed(scores.flatten().tolist(), one_hot)
    rows_ = attributes.attribute_rows(found)
    mean = sum(row["attribute_balanced"] for row in rows_.values()) / 12
    assert mean == pytest.approx(balanced_accuracy_score(actual, chosen))
    floor = attributes.attribute_floor(found)
    assert floor["attribute_balanced"] == pytest.approx(1 / len(set(actual)))
    assert floor["attribute_accuracy"] == pytest.approx(actual.count(0) / len(actual))


def test_properties_are_judged_by_sign_and_by_rank():
    found = {(1, i): believed([score_], [true]) for i, (score_, true) in enumerate([(0.5, 1), (-0.2, 1), (-0.4, 0), (0.1, 0)])}
    rows_ = attributes.property_rows(found)
    assert sum(row["property_balanced"] for row in rows_.values()) / 4 == pytest.approx(0.5)
    assert [row["property_auc"] for row in rows_.values()] == [1.0, 0.5, None, None]
    assert attributes.property_floor(found) == {"property_balanced": 0.5, "property_auc": 0.5}


def test_truth_of_questions(small):
    from fl_app.experiment.assets import assets_of
    from fl_app.experiment.grants import candidates_of
    from fl_app.experiment.truth import true_examples

    assets = assets_of(small.changed(dataset="table(kind='titanic')", model="mlp", run_dir=""))
    asked = candidates_of(assets, (1, 0), "attribute:sex")
    x, y = true_examples(assets, 0, 1)
    truth = attributes.completed(assets, (1, 0), asked).view(len(y), 2)
    assert torch.equal(truth.argmax(1), x[:, assets.space.places["sex"]].argmax(1))
    assert truth.sum(1).tolist() == [1] * len(y)
    about = candidates_of(assets, (1, 0), "property:embarked=Q")
    assert attributes.having(assets, (1, 0), about).tolist() == [int(x[:, assets.space.places["embarked"]][:, 1].any())]
    classes = candidates_of(assets, (1, 0), "labels")
    counts = assets.splits.train.y[assets.shares[0]].bincount(minlength=2)
    assert attributes.most_frequent(assets, (1, 0), classes).tolist() == [int(counts.argmax() == i) for i in range(2)]
    assert isinstance(classes, Candidates)
    for question, why in [
        ("attribute:age", "no column of categories 'age'"),
        ("property:sex=x", "has no value 'x'; valid: female, male"),
    ]:
        with pytest.raises(ValueError, match=why):
            candidates_of(assets, (1, 0), question)
    with pytest.raises(ValueError, match="these examples are no rows of one"):
        candidates_of(assets_of(small.changed(run_dir="")), (1, 0), "attribute:sex")
