"""The cocktail party attack: whitening, independent sources and their scale, each against what it is by definition."""

import pytest
import torch

from adversary import AttackError
from adversary.exact.cocktail import GAUSSIAN, CocktailParty, _log_cosh, _mixture, _scaled
from fl_app.core.local import LocalRule
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from helpers.attacks import attack, digits, seen_of

PIXELS = 64


def planted(examples=3, seed=0):
    """(inputs, slopes (neurons, examples), an observation of the layer "fc" with both)."""
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.rand(examples, PIXELS, generator=rng)
    slopes = torch.randn(20, examples, generator=rng)
    update = {"fc.weight": slopes @ inputs, "fc.bias": slopes.sum(1)}
    rule = LocalRule(batch_size=examples)
    return inputs, slopes, Observation(params=update, update=update, rule=rule, num_examples=examples, server_round=1)


def test_log_cosh_and_its_mean_over_normal_numbers():
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(_log_cosh(x), x.cosh().log(), rtol=1e-4, atol=1e-6)
    assert _log_cosh(torch.tensor(200.0)).item() == pytest.approx(200 - 0.693147)
    grid = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    density = torch.exp(-grid.square() / 2) / (2 * torch.pi) ** 0.5
    assert torch.trapezoid(density * grid.cosh().log(), grid).item() == pytest.approx(GAUSSIAN, abs=1e-6)


def test_a_mixture_is_white_and_explains_the_gradient():
    _, _, seen = planted()
    mixture = _mixture(seen, "fc")
    torch.testing.assert_close((mixture.left @ mixture.right).float(), seen.update["fc.weight"])
    assert mixture.white.shape == (3, PIXELS)
    assert mixture.white.mean(1).abs().max() < 1e-9
    torch.testing.assert_close(mixture.white @ mixture.white.T / PIXELS, torch.eye(3).double())
    torch.testing.assert_close(mixture.whiten @ (mixture.right - mixture.right.mean(1, keepdim=True)), mixture.white)
    _, _, fewer = planted(2)
    assert len(_mixture(Observation(**{**vars(fewer), "num_examples": 5}), "fc").white) == 2  # by the rank
    assert len(_mixture(Observation(**{**vars(seen), "num_examples": 1}), "fc").white) == 1


def test_sign_and_scale_of_sources_follow_from_the_bias():
    inputs, slopes, seen = planted()
    mixture = _mixture(seen, "fc")
    rows = inputs.double() @ torch.linalg.pinv(mixture.right) @ torch.linalg.inv(mixture.whiten)
    found, by = _scaled(mixture, torch.tensor([[-2.0], [0.5], [3.0]]).double() * rows)
    torch.testing.assert_close(found.float(), inputs, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(by.float(), slopes.T, rtol=1e-3, atol=1e-4)


def unmixed(sources, **settings):
    """Absolute correlations of sources with those that are found in a mixture of them."""
    centred = sources - sources.mean(1, keepdim=True)
    spread, vectors = torch.linalg.eigh(centred @ centred.T / centred.shape[1])
    white = (vectors / spread.sqrt()).T @ centred
    task = Task(torch.nn.Identity(), Images((1, 16, 16)), 2)
    rows = CocktailParty(**settings)._unmix(white[None], task)[0]
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))
    found = rows @ white
    return torch.nn.functional.cosine_similarity(found[:, None], centred, dim=-1).abs()


def test_sources_that_are_no_normal_numbers_are_found_by_that():
    rng = torch.Generator().manual_seed(0)
    sources = torch.stack(
        [torch.rand(256, generator=rng), torch.rand(256, generator=rng).log(), torch.randn(256, generator=rng)]
    )
    alike = unmixed(sources, iterations=200, lr=0.05, tv=0.0, decorrelation=0.3)
    assert (alike.amax(0) > 0.85).all()
    assert sorted(alike.argmax(1).tolist()) == [0, 1, 2]


def test_smooth_sources_are_found_by_that():
    rng = torch.Generator().manual_seed(1)
    smooth = torch.nn.functional.interpolate(torch.randn(1, 1, 4, 4, generator=rng), size=(16, 16), mode="bilinear").flatten()
    sources = torch.stack([smooth, torch.randn(256, generator=rng)])
    alike = unmixed(sources, iterations=200, lr=0.05, tv=3.0, negentropy=0.0, decorrelation=0.0)
    assert (alike[:, 0] > 0.95).all()  # with nothing that keeps them apart, all become the smooth one
    apart = unmixed(sources, iterations=200, lr=0.05, tv=3.0, negentropy=0.0, decorrelation=1.0)
    assert apart.amax(0).min() > 0.9


def test_a_step_goes_down_the_loss_of_the_paper():
    """Correlation of unmixing rows and variation of sources up, distance from normal numbers down, each with its weight."""
    rng = torch.Generator().manual_seed(2)
    white = torch.randn(2, 3, 16, generator=rng)
    white[:, 0] = white[:, 0].sign()
    task = Task(torch.nn.Identity(), Images((1, 4, 4)), 2)
    settings = {"lr": 0.05, "tv": 0.4, "negentropy": 2.0, "decorrelation": 0.1, "sharpness": 3.0}
    first = CocktailParty(iterations=1, **settings)._unmix(white, task)
    second = CocktailParty(iterations=2, **settings)._unmix(white, task)
    for target in range(2):
        rows, moments = torch.eye(3), [torch.zeros(3, 3), torch.zeros(3, 3)]
        for step, found in ((1, first), (2, second)):
            leaf = rows.clone().requires_grad_()
            unit = leaf / leaf.norm(dim=1, keepdim=True)
            sources = unit @ white[target]
            images = sources.view(3, 4, 4)
            alike = (3.0 * (unit @ unit.T - torch.eye(3)).abs()).exp() - 1
            varied = images.diff(dim=1).abs().mean() + images.diff(dim=2).abs().mean()
            entropy = (sources.cosh().log().mean(1) - GAUSSIAN).square().mean()
            (slope,) = torch.autograd.grad(0.1 * alike.mean() + 0.4 * varied - 2.0 * entropy, leaf)
            moments = [0.9 * moments[0] + 0.1 * slope, 0.999 * moments[1] + 0.001 * slope.square()]
            size = (moments[1] / (1 - 0.999**step)).sqrt() + 1e-8
            rows = rows - 0.05 * moments[0] / (1 - 0.9**step) / size
            torch.testing.assert_close(found[target], torch.nn.functional.normalize(rows, dim=1), rtol=1e-3, atol=1e-3)


def test_one_source_is_taken_as_it_is():
    white = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(0))
    task = Task(torch.nn.Identity(), Images((1, 4, 4)), 2)
    assert torch.equal(CocktailParty()._unmix(white, task), torch.ones(2, 1, 1))


def test_targets_of_different_rank_are_unmixed_beside_each_other():
    x, y = digits(2, 2)
    x[1, 1], y[1, 1] = x[1, 0], y[1, 0]  # the second has one image twice
    seen, task = seen_of(x, y, model_text="mlp")
    guess = attack("cocktail_party(iterations=30)", seen, task)
    torch.testing.assert_close(guess.x[1, 0], x[1, 0], rtol=0, atol=1e-3)
    assert guess.y[1, 0] == y[1, 0]
    assert (guess.x[1, 1] == 0.5).all()
    alone = attack("cocktail_party(iterations=30)", seen[:1], task)
    torch.testing.assert_close(alone.x[0], guess.x[0])


def test_features_are_refused_and_the_cost_is_that_of_its_iterations():
    with pytest.raises(AttackError, match="reads features and no image"):
        attack("cocktail_party", *seen_of(*digits(1, 2), model_text="lenet5"))
    rule = LocalRule(batch_size=4)
    assert CocktailParty(iterations=70).cost(4, rule) == pytest.approx(28)
    assert CocktailParty(tv=2.0).shortened(7) == CocktailParty(tv=2.0, iterations=7)
