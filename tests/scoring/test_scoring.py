"""Image metrics, matching, floors, classifier metrics, summaries and grids against independent computations."""

import itertools
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity
from torch.nn import functional as F

from fl_app import models
from fl_app.data import Examples
from fl_app.experiment import truth
from fl_app.experiment.assets import assets_of
from fl_app.scoring import classifier, floors, grids, images, matching, perceptual
from fl_app.scoring.base import Tools
from fl_app.scoring.labels import labels_found
from fl_app.scoring.score import Summary, score, success_rate, summarize

SHAPES = [(1, 28, 28), (3, 32, 32), (3, 7, 12), (2, 40, 9)]


def pairs(shape, rng, n=6):
    """Near, far and flat pairs."""
    a = torch.rand(n, *shape, generator=rng)
    strength = torch.linspace(0.001, 1, n).view(-1, 1, 1, 1)
    b = (a + strength * torch.randn(n, *shape, generator=rng)).clamp(0, 1)
    a[-1], b[-2] = 0.5, 0
    return a, b


@pytest.mark.parametrize("shape", SHAPES)
def test_image_metrics_are_those_of_scikit_image(shape, rng):
    a, b = pairs(shape, rng)
    left, right = a.double().numpy(), b.double().numpy()
    both = list(zip(left, right, strict=True))
    assert images.mse(a, b).numpy() == pytest.approx([mean_squared_error(p, q) for p, q in both], abs=1e-12)
    assert images.psnr(a, b).numpy() == pytest.approx([peak_signal_noise_ratio(p, q, data_range=1) for p, q in both])
    expected = [structural_similarity(p, q, data_range=1, channel_axis=0) for p, q in both]
    assert images.ssim(a, b).numpy() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("size", "window"), [((3, 3), 3), ((4, 9), 3), ((5, 6), 5), ((6, 6), 5), ((7, 7), 7), ((8, 8), 7)])
def test_the_window_of_ssim_shrinks_with_the_image(size, window, rng):
    a, b = pairs((1, *size), rng)
    both = zip(a.double().numpy(), b.double().numpy(), strict=True)
    expected = [structural_similarity(p, q, data_range=1, channel_axis=0, win_size=window) for p, q in both]
    assert images.ssim(a, b).numpy() == pytest.approx(expected, abs=1e-10)


def test_identical_images_and_the_cap_of_psnr(rng):
    a = torch.rand(3, 3, 16, 16, generator=rng)
    assert images.mse(a, a).tolist() == [0, 0, 0]
    assert images.psnr(a, a).tolist() == [100, 100, 100]
    assert images.ssim(a, a).numpy() == pytest.approx(1)
    assert images.psnr(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).item() == 0


@pytest.mark.parametrize("metric", [images.mse, images.psnr, images.ssim])
def test_metrics_are_symmetric_and_see_each_pair_alone(metric, rng):
    a, b = pairs((3, 12, 12), rng)
    assert torch.allclose(metric(a, b), metric(b, a))
    assert torch.allclose(metric(a, b), torch.cat([metric(a[i : i + 1], b[i : i + 1]) for i in range(len(a))]))
    with pytest.raises(ValueError, match="one shape"):
        metric(a, b[:-1])


def test_ssim_refuses_what_has_no_window():
    with pytest.raises(ValueError, match="3 x 3"):
        images.ssim(torch.zeros(1, 1, 2, 9), torch.zeros(1, 1, 2, 9))


def test_matching_is_the_best_of_all_permutations(rng):
    guess, true = torch.rand(5, 1, 4, 4, generator=rng), torch.rand(5, 1, 4, 4, generator=rng)
    best = min(itertools.permutations(range(5)), key=lambda p: images.mse(guess[list(p)], true).sum().item())
    assert matching.match(guess, true).tolist() == list(best)


def test_matching_undoes_a_permutation_even_of_near_identical_images(rng):
    true = 0.5 + 1e-3 * torch.rand(40, 3, 8, 8, generator=rng)
    shuffled = torch.stack([torch.randperm(40, generator=rng) for _ in range(3)])
    orders = matching.match_all(true[shuffled], true.expand(3, -1, -1, -1, -1))
    for order, shuffle in zip(orders, shuffled, strict=True):
        assert torch.equal(true[shuffle][order], true)
        assert torch.equal(matching.match(true[shuffle], true), order)
    with pytest.raises(ValueError, match="cannot be paired"):
        matching.match(true[:3], true)


@pytest.fixture
def train(rng):
    y = torch.tensor([0, 1, 2] * 20 + [3])
    return Examples(torch.randint(0, 256, (61, 2, 5, 4), generator=rng).byte(), y)


def test_class_mean_leaves_the_target_out(train, rng):
    excluded, y = torch.tensor([0, 1, 4]), torch.tensor([1, 0, 1])
    means = floors.class_mean(train, y, rng, excluded)
    kept = [i for i in range(61) if i not in (0, 1, 4)]
    expected = [np.mean([train.x[i].numpy() / 255 for i in kept if train.y[i] == label], axis=0) for label in y]
    assert means.numpy() == pytest.approx(np.stack(expected), abs=1e-6)
    assert torch.equal(means, floors.class_mean(train, y, rng, torch.tensor([4, 0, 1, 1])))  # order, repeats: no matter


def test_same_class_is_another_image_of_the_class(train, rng):
    excluded = torch.arange(3, 60)
    y = torch.tensor([2, 0, 1, 1])
    assert torch.equal(floors.same_class(train, y, rng, excluded), train.at(torch.tensor([2, 0, 1, 1]))[0])


def test_a_class_with_nobody_else_falls_back_to_the_others(train, rng):
    excluded, y = torch.tensor([60]), torch.tensor([3])
    everybody = train.at(torch.arange(60))[0]
    assert torch.allclose(floors.class_mean(train, y, rng, excluded)[0], everybody.mean(0), atol=1e-6)
    assert (floors.same_class(train, y, rng, excluded) == everybody).flatten(1).all(1).any()
    for floor in (floors.class_mean, floors.same_class):
        with pytest.raises(ValueError, match="no example is left"):
            floor(train, y, rng, torch.arange(61))


@pytest.mark.parametrize("floor", floors.FLOORS.values(), ids=floors.FLOORS)
def test_floors_look_like_the_truth_and_are_seeded(floor, train):
    y, excluded = torch.tensor([0, 2, 2, 1]), torch.tensor([0, 2, 5, 1])
    first, again, other = (floor(train, y, torch.Generator().manual_seed(seed), excluded) for seed in (1, 1, 2))
    assert (first.shape, first.dtype) == ((4, 2, 5, 4), torch.float32)
    assert 0 <= first.min() <= first.max() <= 1
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (floor is floors.class_mean)


def test_truth_is_what_the_client_trains_on(small):
    assets = assets_of(small)
    x, y = truth.true_examples(assets, 1, 2)
    positions = truth.true_positions(assets, 1, 2)
    assert torch.equal(assets.splits.train.at(positions)[0], x)
    assert torch.equal(assets.splits.train.y[positions], y)
    all_x, all_y = truth.true_aggregate(assets, [2, 1], 2)
    assert torch.equal(all_x[4:], x)
    assert torch.equal(all_y[4:], y)
    assert torch.equal(all_x[:4], truth.true_examples(assets, 2, 2)[0])
    with pytest.raises(ValueError, match="no clients"):
        truth.true_aggregate(assets, [], 1)


def test_classifier_metrics(rng):
    model = models.build("lenet5", (1, 28, 28), 10)
    params = models.parameters_of(model)
    x, other = torch.rand(8, 1, 28, 28, generator=rng), torch.rand(8, 1, 28, 28, generator=rng)
    with torch.no_grad():
        p, q = (model(images).softmax(1).double().numpy() for images in (x, other))
    predicted = torch.from_numpy(p.argmax(1))
    assert classifier.sees_class(model, params, x, predicted).tolist() == [1] * 8
    wrong = torch.where(torch.arange(8) < 2, (predicted + 1) % 10, predicted)
    assert classifier.sees_class(model, params, x, wrong).tolist() == [0, 0, *[1] * 6]
    divergence = classifier.kl_divergence(model, params, x, other)
    assert divergence.numpy() == pytest.approx([stats.entropy(a, b) for a, b in zip(p, q, strict=True)], rel=1e-3)
    assert classifier.kl_divergence(model, params, x, x).tolist() == [0] * 8


def test_label_accuracy_is_the_overlap_of_multisets():
    assert labels_found(torch.tensor([3, 1, 1, 2]), torch.tensor([1, 1, 3, 2])).tolist() == [1, 1, 1, 1]
    assert labels_found(torch.tensor([1, 1, 1, 1]), torch.tensor([1, 2, 3, 1])).tolist() == [1, 0, 0, 1]
    assert labels_found(torch.tensor([1, 2]), torch.tensor([1, 1])).tolist() == [1, 0]  # an answer counts once
    assert labels_found(torch.tensor([9, 8]), torch.tensor([0, 1])).tolist() == [0, 0]
    with pytest.raises(ValueError, match="cannot be held against"):
        labels_found(torch.tensor([1]), torch.tensor([1, 1]))


def test_score_matches_before_it_measures(rng):
    true, y = torch.rand(6, 1, 10, 10, generator=rng), torch.arange(6)
    shuffle = torch.randperm(6, generator=rng)
    rebuilt = (true + 0.05 * torch.randn(true.shape, generator=rng)).clamp(0, 1)
    scores = score(rebuilt[shuffle], y[shuffle], true, y, tools=Tools(lpips=False))
    assert torch.equal(shuffle[scores.order], torch.arange(6))
    for name, metric in (("mse", images.mse), ("psnr", images.psnr), ("ssim", images.ssim)):
        assert torch.equal(scores.values[name], metric(rebuilt, true))
    assert scores.values["label_accuracy"].mean() == 1
    assert scores.values.keys() == {"psnr", "ssim", "mse", "above_30db", "label_accuracy"}  # what was not asked for is left out
    assert scores.unavailable == {}
    assert scores.row()["psnr"] == pytest.approx(images.psnr(rebuilt, true).mean().item())


def test_what_cannot_be_measured_has_a_reason_and_no_number(rng, monkeypatch):
    monkeypatch.setattr(perceptual, "_model_or_reason", lambda net, device: f"no weights for {net}")
    true, y = torch.rand(2, 3, 8, 8, generator=rng), torch.arange(2)
    scores = score(true, y, true, y)
    assert scores.unavailable == {"lpips_alex": "no weights for alex", "lpips_vgg": "no weights for vgg"}
    assert scores.row()["lpips_vgg"] is None
    flat = score(true.flatten(1), y, true.flatten(1), y)
    assert set(flat.unavailable) == {"ssim", "lpips_alex", "lpips_vgg"}
    assert flat.values["psnr"].tolist() == [100, 100]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, 1.1])
def test_a_reconstruction_that_is_no_image_is_refused(bad):
    true, y = torch.zeros(2, 1, 4, 4), torch.arange(2)
    rebuilt = true.clone()
    rebuilt[1, 0, 2, 2] = bad
    with pytest.raises(ValueError, match="not numbers in"):
        score(rebuilt, y, true, y)


def test_summaries_count_what_is_missing():
    values = [1.0, 2.0, 4.0, 4.5]
    rows = [*({"psnr": value} for value in values), None, {"psnr": None}, {"psnr": math.nan}, None]
    summary = summarize(rows, "psnr")
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert summary == pytest.approx(Summary(np.mean(values), low, high, 4, 3, 1))
    assert summarize([None, {"psnr": 3.0}], "psnr") == (3.0, None, None, 1, 1, 0)
    assert summarize([None, None], "psnr") == (None, None, None, 0, 2, 0)
    assert summarize(rows, "ssim") == (None, None, None, 0, 2, 6)  # a target without the metric is counted as such


def test_success_rate_counts_failures():
    values = torch.tensor([10.0, 30.0, 50.0])
    assert success_rate(values) == pytest.approx(2 / 3)
    assert success_rate(values, failed=1) == 0.5
    assert success_rate(values, 10, higher_is_better=False) == pytest.approx(1 / 3)


@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (20, 3, 32, 32), (1, 3, 2, 2), (2, 3, 150, 100)])
def test_a_grid_shows_every_row_and_leaves_no_scraps(shape, rng, tmp_path):
    true = torch.rand(*shape, generator=rng)
    guess = (true * 0.9).clamp(0, 1)
    guess[0] = math.nan
    path = tmp_path / "grids" / "target.png"
    for guesses in ({"dlg": guess}, {"dlg": guess, "a very long name(with=settings, and=more) + another": guess}):
        grids.save_grid(path, true, guesses, [f"class {i}" for i in range(shape[0])])
    assert [file.name for file in path.parent.iterdir()] == ["target.png"]
    with Image.open(path) as picture:
        pixels = np.asarray(picture)
    # The first true image stands in the picture pixel by pixel, scaled up by nearest neighbours.
    factor = max(1, math.ceil(grids.TILE / max(shape[2:])))
    tile = F.interpolate(true[:1], scale_factor=factor, mode="nearest").mul(255).round().byte().expand(1, 3, -1, -1)[0]
    tile = tile.permute(1, 2, 0).numpy()
    band = pixels[grids.MARGIN : grids.MARGIN + len(tile)]
    starts = [left for left in range(band.shape[1] - tile.shape[1] + 1) if np.array_equal(band[:, left], tile[:, 0])]
    assert [np.array_equal(band[:, left : left + tile.shape[1]], tile) for left in starts].count(True) == 1
    assert pixels.shape[0] > 3 * len(tile)


def test_a_grid_refuses_what_does_not_fit(tmp_path):
    true = torch.zeros(2, 1, 8, 8)
    for arguments in [(true[:, 0], {}), (true, {"dlg": true[:1]}), (true, {}, ["one"]), (true.expand(-1, 2, -1, -1), {})]:
        with pytest.raises(ValueError, match=r"shape|captions|grey"):
            grids.save_grid(tmp_path / "x.png", *arguments)
    assert not list(tmp_path.iterdir())
