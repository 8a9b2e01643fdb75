"""Large images: small ones that are enlarged, contrast that models hide, and where a search starts."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adversary import AttackError
from adversary.search import checkpoint
from adversary.search.matching import Matching
from adversary.search.optimizers import Adam
from adversary.search.problem import Problem
from adversary.spaces import Contrast, LowResolution, Pixels, Untrained
from adversary.spaces.contrast import FROM_BLACK, hides_contrast
from adversary.spaces.gaussian import ClassGaussian
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Task
from fl_app.core.space import Images
from fl_app.core.table import Column, Rows
from helpers.attacks import attack, psnr
from helpers.large_images import NORMALIZE, SHAPE, seen_of, smooth, task_of


def test_small_images_are_enlarged_one_by_one(rng):
    task, _ = task_of("lenet")
    space = LowResolution(factor=5, boxed=False).bind(task)
    z = {"v": torch.stack([space.draw(2, 3, rng)["v"] for _ in range(2)])}
    assert z["v"].shape == (2, 2, 3, 3, 7, 7)  # an image whose side is no multiple has a small one that is a little larger
    x = space.inputs(z)
    one = F.interpolate(z["v"][1, 0, 2][None], size=(32, 32), mode="bicubic", align_corners=False)[0]
    torch.testing.assert_close(x[1, 0, 2], one)
    assert torch.equal(space.project(z)["v"], z["v"])
    boxed = LowResolution(factor=5).bind(task).project({"v": z["v"] * 4 - 2})["v"]
    assert boxed.min() == 0
    assert boxed.max() == 1


def test_a_small_image_may_start_grey(rng):
    v = LowResolution(init="grey").bind(task_of("lenet")[0]).draw(1, 1, rng)["v"]
    assert 0 < (v - 0.5).abs().max() < 0.03


def test_a_small_image_goes_on_from_the_mean_of_its_pixels(rng):
    task, _ = task_of("lenet")
    pixels = Pixels().bind(task)
    z = {name: value[None] for name, value in pixels.draw(1, 2, rng).items()}
    v = LowResolution(factor=8).bind(task).continued(z, pixels)["v"]
    torch.testing.assert_close(v[0, 0, 1], pixels.inputs(z)[0, 0, 1].unfold(1, 8, 8).unfold(2, 8, 8).mean((-1, -2)))


def test_without_a_factor_a_small_image_is_the_image(rng):
    task, _ = task_of("lenet")
    space = LowResolution(factor=1).bind(task)
    v = space.draw(1, 1, rng)["v"][None]
    torch.testing.assert_close(space.inputs({"v": v}), v)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("resnet10(width=4, norm='group')", True),
        ("convnet(width=8, norm='group')", False),  # its convolutions have biases, which groups of channels keep
        ("convnet(width=8, activation='sigmoid')", True),
        ("resnet10(width=4)", True),
        ("convnet(width=8, norm='none')", False),
        ("lenet", False),
        ("vit(dim=16, depth=1, heads=2)", False),
    ],
)
@pytest.mark.parametrize("normalize", [NORMALIZE, None], ids=["normalised", "plain"])
def test_normalisation_hides_contrast_and_so_does_the_gradient(text, hidden, normalize):
    task, params = task_of(text, normalize)
    assert hides_contrast(task, params) is hidden
    mean, std = (torch.tensor(one).view(-1, 1, 1) for one in (normalize or ((0.0,) * 3, (1.0,) * 3)))
    u = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(3))
    exact = {name: value.double() for name, value in params.items()}
    one, half, other = (
        local_update(task.model, exact, (mean + std * x).double(), torch.tensor([1]), LocalRule(batch_size=1))
        for x in (u, u / 2, u.flip(-1))
    )
    gaps = [sum((one[name] - that[name]).square().sum() for name in one) for that in (half, other)]
    assert bool(gaps[0] < 0.01 * gaps[1]) is hidden


def test_the_contrast_is_held(rng):
    task, params = task_of("convnet(width=8)")
    target = (seen_of(task, params, smooth(1))[0],)
    space = Contrast(space=Pixels(boxed=False), rms=0.7).over([target], task, None, {})
    z = {name: 5 * value[None] for name, value in space.draw(2, 1, rng).items()}
    mean, std = (torch.tensor(one).view(-1, 1, 1) for one in NORMALIZE)
    u = (space.inputs(z) - mean) / std
    torch.testing.assert_close(u.square().mean((-3, -2, -1)).sqrt(), torch.full((1, 2, 1), 0.7))
    torch.testing.assert_close(space.inputs(z), space.inputs(space.project({name: 3 * value for name, value in z.items()})))


def test_contrast_is_held_from_black_where_a_model_takes_pixels_as_they_are(rng):
    task, _ = task_of("convnet(width=8, norm='group')", None)
    space = Contrast(space=LowResolution(), rms=1.0).bind(task)
    x = space.inputs({name: value[None] for name, value in space.draw(1, 1, rng).items()})
    assert x.square().mean().sqrt().item() == pytest.approx(FROM_BLACK, rel=1e-4)


def test_a_model_that_shows_contrast_is_left_to_the_other_space(rng):
    task, params = task_of("lenet")
    target = (seen_of(task, params, smooth(1))[0],)
    inner = Pixels()
    space = Contrast(space=inner).over([target], task, None, {})
    assert type(space) is type(inner.bind(task))


def test_what_contrast_and_small_images_are_not_for():
    rows = Task(nn.Linear(4, 2), Rows((Column("a", ("x", "y")), Column("b", ("x", "y")))), 2)
    with pytest.raises(AttackError, match="enlarges images"):
        LowResolution().bind(rows)
    with pytest.raises(AttackError, match="contrast is for images"):
        Contrast(space=Pixels()).bind(rows)
    with pytest.raises(AttackError, match="no penalty of their own"):
        Contrast(space=ClassGaussian()).bind(task_of("lenet")[0])
    task, _ = task_of("lenet")
    networks = Untrained(channels=2).bind(task)
    z = {name: value[None] for name, value in networks.draw(1, 1, torch.Generator()).items()}
    with pytest.raises(AttackError, match="it is no phase"):
        Contrast(space=Untrained(channels=2)).bind(task).continued(z, networks)


def test_from_small_to_large_finds_more_in_as_many_steps():
    task, params = task_of("resnet10(width=8, activation='sigmoid')")
    x = smooth(2, seed=4)
    seen = seen_of(task, params, x)
    found = attack("coarse_to_fine(labels=given, coarsest=8, finest=2, iterations=12)", seen, task)
    at_once = "matching(objective=relative, space=pixels(boxed=False), labels=given, optimizer=lbfgs(iterations=36))"
    assert (psnr(found.x, x) > psnr(attack(at_once, seen, task).x, x) + 1.5).all()


@pytest.mark.parametrize("stop", [5, 13])
def test_a_search_goes_on_within_a_phase_bit_for_bit(stop, tmp_path, monkeypatch):
    """Broken off in the first and in the second of three phases."""
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SLOWEST", 0)
    task, params = task_of("convnet(width=4, norm='group')")
    seen, text = seen_of(task, params, smooth(1)), "coarse_to_fine(labels=given, coarsest=8, finest=2, iterations=9)"
    whole, made, plain = attack(text, seen, task), [0], Problem.gradients

    def counted(self, variables):
        made[0] += 1
        if made[0] == stop:
            raise KeyboardInterrupt
        return plain(self, variables)

    monkeypatch.setattr(Problem, "gradients", counted)
    with checkpoint.kept_in(tmp_path):
        with pytest.raises(KeyboardInterrupt):
            attack(text, seen, task)
        again = attack(text, seen, task)
    assert made[0] == 27 + 1
    assert all(torch.equal(one, other) for one, other in zip(whole[:3], again[:3], strict=True))


def test_untrained_networks_of_large_images_have_fewer_channels_there():
    task = Task(nn.Identity(), Images((3, 256, 256)), 4)
    networks = Untrained(channels=32).bind(task)
    shapes = networks.shapes(1)
    assert [shapes[f"conv{i}"][:2] for i in range(6, 14)] == [
        (32, 32),
        (32, 32),
        (16, 32),
        (16, 16),
        (8, 16),
        (8, 8),
        (4, 8),
        (4, 4),
    ]
    assert shapes["last"] == (3, 4, 1, 1)
    z = {name: value[None] for name, value in networks.draw(1, 1, torch.Generator()).items()}
    assert networks.inputs(z).shape == (1, 1, 1, 3, 256, 256)


def test_of_some_draws_the_search_starts_from_the_best():
    task, params = task_of("lenet")
    seen = seen_of(task, params, smooth(2))

    def start(tries, which=(0, 1)):
        chosen = [seen[i] for i in which]
        rngs = [torch.Generator().manual_seed(5 + i) for i in which]
        classes = [one.knowledge.labels for one in chosen]
        problem = Problem(Matching(optimizer=Adam(tries=tries), seeds=2), [(one,) for one in chosen], task, rngs, classes)
        z = problem.draw()
        return z["x"], problem.losses(z)

    draws = [torch.Generator().manual_seed(5 + i) for i in (0, 1)]
    many = torch.stack([torch.stack([torch.randn(2, 1, *SHAPE, generator=rng) for _ in range(6)]) for rng in draws])
    z, losses = start(6)
    _, first = start(1)
    assert (losses <= first).all()
    assert (losses < first).any()
    for target in range(2):
        for seed in range(2):
            assert any(torch.equal(z[target, seed], one) for one in many[target, :, seed])
    torch.testing.assert_close(start(6, (1,))[0][0], z[1])  # alone as in company
    assert Matching(optimizer=Adam(tries=10)).cost(1, LocalRule(batch_size=1)) == 1010


def test_a_share_of_the_slope_is_that_a_step_further_up():
    task, params = task_of("lenet")
    one = seen_of(task, params, smooth(1))[0]

    def problem(further):
        attack = Matching(optimizer=Adam(further=further), seeds=2)
        return Problem(attack, [(one,)], task, [torch.Generator()], [torch.tensor([0])])

    plain = problem(0.0)
    z = plain.draw()
    loss, slope = plain.gradients(z)
    size = slope["x"].flatten(2).norm(dim=-1)[..., None, None, None, None]
    above = plain.gradients({"x": z["x"] + slope["x"] / size})[1]
    mixed = problem(0.3).gradients(z)
    assert torch.equal(mixed[0], loss)
    torch.testing.assert_close(mixed[1]["x"], 0.7 * slope["x"] + 0.3 * above["x"])
    plain, ahead = (Matching(optimizer=Adam(further=share)).cost(1, LocalRule(batch_size=1)) for share in (0.0, 0.3))
    assert ahead == 2 * plain


def test_batches_and_rounds_are_refused_where_labels_are_not_known():
    task, params = task_of("lenet")
    one = replace(seen_of(task, params, smooth(1))[0])
    with pytest.raises(AttackError, match="needs classes before the search"):
        attack("matching(labels=joint, priors=[features(0.1)], optimizer=adam(iterations=1))", [one], task)
