"""Images as outputs of untrained networks: CI-Net's architecture, and what it does where pixels are too many."""

import pytest
import torch
from torch import nn

from adversary import AttackError
from adversary.spaces.untrained import Untrained, _normalised
from fl_app.core.observation import Task
from fl_app.core.space import Images
from fl_app.core.text import Tokens, Vocabulary
from fl_app.scoring.matching import match
from helpers.attacks import attack, digits, psnr, seen_of


def bound(shape=(3, 32, 32), channels=4):
    return Untrained(channels=channels).bind(Task(nn.Identity(), Images(shape), 10))


def modules(channels):
    """The same network of torch's own layers, by the paper's list."""
    layers = [nn.Flatten(), nn.Linear(128, channels * 16, bias=False), nn.Unflatten(1, (channels, 4, 4))]
    layers += [nn.BatchNorm2d(channels), nn.LeakyReLU(0.1)]
    for stage in range(4):
        layers += [nn.Upsample(scale_factor=2)] if stage else []
        for _ in range(2):
            layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers, nn.Conv2d(channels, 3, 1), nn.Sigmoid())


def test_it_is_the_network_of_the_paper(rng):
    networks, channels = bound(), 4
    z = networks.draw(2, 5, rng)
    z = {name: value + 0.1 * torch.randn(value.shape, generator=rng) for name, value in z.items()}
    images = networks.inputs({name: value[None] for name, value in z.items()})
    assert images.shape == (1, 2, 5, 3, 32, 32)
    for seed in range(2):
        net = modules(channels)
        own = {name: value[seed] for name, value in z.items()}
        linear, *convolutions, last = (layer for layer in net if isinstance(layer, nn.Linear | nn.Conv2d))
        norms = [layer for layer in net if isinstance(layer, nn.BatchNorm2d)]
        with torch.no_grad():
            linear.weight.copy_(own["first"].flatten(1).T)
            for i, layer in enumerate(convolutions):
                layer.weight.copy_(own[f"conv{i}"])
            for i, layer in enumerate(norms):
                layer.weight.copy_(own[f"scale{i}"])
                layer.bias.copy_(own[f"shift{i}"])
            last.weight.copy_(own["last"])
            last.bias.copy_(own["bias"])
            torch.testing.assert_close(images[0, seed], net(own["code"]), atol=1e-5, rtol=1e-4)


def test_sizes_are_halved_down_to_four_pixels_or_an_odd_number():
    assert bound((1, 28, 28)).sizes == [(7, 7), (14, 14), (28, 28)]
    assert bound((3, 32, 16)).sizes == [(8, 4), (16, 8), (32, 16)]
    assert bound((3, 9, 9)).sizes == [(9, 9)]
    z = bound((1, 28, 28)).draw(1, 3, torch.Generator())
    assert bound((1, 28, 28)).answer({name: value[None] for name, value in z.items()}).shape == (1, 1, 3, 1, 28, 28)


def test_a_larger_batch_has_a_wider_network():
    """The paper's rule at 32 pixels: 32 channels up to 34 examples, 64 up to 104 and 128 from there on."""
    widths = [bound(channels=0).shapes(examples)["conv0"][0] for examples in (1, 32, 36, 100, 128)]
    assert widths == [32, 32, 64, 64, 128]
    assert bound(channels=7).shapes(500)["conv0"] == (7, 7, 3, 3)


def test_codes_stay_where_they_are(rng):
    networks = bound((1, 4, 4))
    leaves = {name: value[None].requires_grad_() for name, value in networks.draw(1, 2, rng).items()}
    slopes = torch.autograd.grad(networks.inputs(leaves).sum(), list(leaves.values()), materialize_grads=True)
    moved = {name: bool(slope.any()) for name, slope in zip(leaves, slopes, strict=True)}
    assert not moved.pop("code")
    assert moved["first"]
    assert moved["bias"]
    assert networks.penalty(leaves).tolist() == [[0.0]]
    assert networks.residuals(leaves).shape == (1, 1, 0)


def test_norms_are_over_the_batch(rng):
    x = 3 + 2 * torch.randn(6, 2, 5, 5, generator=rng)
    found = _normalised(x, torch.ones(2), torch.full((2,), 100.0))  # so that the ReLU does nothing
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.full((2,), 100.0))
    torch.testing.assert_close(found.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-4, rtol=0)


def test_words_have_no_such_network():
    with pytest.raises(AttackError, match="images of \\(channels, height, width\\)"):
        Untrained().bind(Task(nn.Identity(), Tokens(Vocabulary.numbered(9), 4), 2))


def test_a_batch_is_rebuilt_through_networks():
    x, y = digits(1, 2)
    seen, task = seen_of(x, y)
    guess = attack("ci_net_lbfgs(iterations=60, channels=8)", seen, task)
    found = guess.x[:, match(guess.x[0], x[0])]
    assert psnr(found, x).mean() > psnr(x.mean(1, keepdim=True).expand_as(x), x).mean() + 3
