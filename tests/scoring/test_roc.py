"""ROC, AUC and shares with intervals, against scikit-learn and SciPy; and what candidates of several targets come to."""

import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from fl_app.scoring import roc
from fl_app.scoring.membership import MEASURES, Believed, floor, rows_of


@pytest.fixture
def scores(rng):
    return torch.randn(60, generator=rng).add(0.7).mul(4).round(), torch.randn(90, generator=rng).mul(4).round()  # with ties


def both(members, others):
    return torch.cat([torch.ones(len(members)), torch.zeros(len(others))]), torch.cat([members, others])


def test_auc_and_curve_as_scikit_learn_has_them(scores):
    truth, all_ = both(*scores)
    assert roc.auc(*scores) == pytest.approx(roc_auc_score(truth, all_), abs=1e-12)
    false, true, _ = roc_curve(truth, all_, drop_intermediate=False)
    ours = roc.curve(*scores)
    assert ours[0].tolist() == pytest.approx(false.tolist())
    assert ours[1].tolist() == pytest.approx(true.tolist())


@pytest.mark.parametrize(("k", "n"), [(0, 9), (3, 9), (9, 9), (1, 1000)])
def test_intervals_as_scipy_has_them(k, n):
    found, theirs = roc.clopper_pearson(k, n), stats.binomtest(k, n).proportion_ci(0.95, "exact")
    assert (found.value, found.low, found.high) == pytest.approx((k / n, theirs.low, theirs.high))


@pytest.mark.parametrize(("k", "n"), [(1, 0), (-1, 3), (4, 3)])
def test_an_impossible_share_is_refused(k, n):
    with pytest.raises(ValueError, match="there are no"):
        roc.clopper_pearson(k, n)


def test_no_more_others_pass_a_threshold_than_its_rate_allows(scores):
    members, others = scores
    for rate in (0.02, 0.1, 0.5):
        level = roc.threshold_at(others, rate)
        assert int((others > level).sum()) <= rate * len(others)
        assert roc.found_at(members, others, rate).k == int((members > level).sum())
    assert roc.threshold_at(others, 0.01) is None  # one of ninety is more than that
    assert roc.found_at(members, others, 0.01) is None


def test_the_best_threshold_separates_what_can_be_separated():
    level = roc.best_threshold(torch.tensor([3.0, 5.0]), torch.tensor([0.0, 1.0]))
    assert level == 2.0
    assert roc.best_threshold(torch.tensor([3.0]), torch.tensor([5.0])) == 3.0  # no threshold helps


def test_means_over_targets_are_those_of_all_candidates_together(scores):
    members, others = scores
    truth = torch.tensor([1] * 3 + [0] * 9 + [-1], dtype=torch.int8)
    parts = [torch.cat([a, b, torch.tensor([1e9])]) for a, b in zip(members.split(3)[:10], others.split(9), strict=True)]
    rows = rows_of({(1, client): Believed(part, truth) for client, part in enumerate(parts)})
    assert all(row.keys() == MEASURES.keys() for row in rows.values())
    mean = sum(row["auc"] for row in rows.values()) / 10
    assert mean == pytest.approx(roc.auc(members[:30], others))  # what is neither counts nowhere
    assert {row["tpr_at_0.001"] for row in rows.values()} == {None}  # 90 others are too few
    assert all(-1 <= row["advantage"] <= 1 for row in rows.values())


def test_the_advantage_is_taken_at_a_threshold_of_the_other_half():
    truth = torch.tensor([1, 0], dtype=torch.int8)
    halves = {(1, 0): Believed(torch.tensor([2.0, 1.0]), truth), (1, 1): Believed(torch.tensor([0.0, 1.0]), truth)}
    rows = rows_of(halves)
    # The first half's best threshold is 1.5, and the second half's member lies below it; nobody of either half's others above.
    assert rows[1, 1]["advantage"] == 0.0
    alone = rows_of({(1, 0): halves[1, 0]})
    assert alone[1, 0]["advantage"] is None


def test_targets_without_members_or_others_have_no_values():
    nobody = Believed(torch.tensor([1.0]), torch.tensor([-1], dtype=torch.int8))
    assert rows_of({(1, 0): nobody}) == {(1, 0): dict.fromkeys(MEASURES)}
    assert rows_of({}) == {}
    assert floor().keys() == MEASURES.keys()
