"""Decoders in stages."""

import pytest
import torch
from torch.func import functional_call, vmap

from fl_app.models.generator import Design, build, design_of

DESIGN = Design(shape=(3, 16, 16), classes=4, latent=6, width=2)


@pytest.fixture
def codes(rng):
    return torch.randn(5, 6, generator=rng), torch.nn.functional.one_hot(torch.arange(5) % 4, 4).float()


def test_an_image_is_the_same_from_every_feature_map(codes):
    network = build(DESIGN, 1)
    images = network(*codes)
    assert images.shape == (5, 3, 16, 16)
    assert 0 < images.min() < images.max() < 1
    assert network.stages == 3
    shapes = [(8, 4, 4), (4, 8, 8), (2, 16, 16)]
    for stage, shape in enumerate(shapes, 1):
        maps = network.maps(*codes, stage)
        assert maps.shape == (5, *shape)
        assert torch.equal(network.images(maps, stage), images)
        assert torch.equal(network.onward(network.maps(*codes), 1, stage), maps)


def test_an_image_does_not_depend_on_its_neighbours_and_vmap_equals_a_loop(codes):
    network = build(DESIGN, 1)
    alone = torch.cat([network(z[None], y[None]) for z, y in zip(*codes, strict=True)])
    torch.testing.assert_close(network(*codes), alone)
    weights = {name: torch.stack([value, 2 * value]) for name, value in network.named_parameters()}
    both = vmap(lambda own: functional_call(network, own, codes))(weights)
    torch.testing.assert_close(both[0], network(*codes))
    assert not torch.allclose(both[0], both[1])


def test_the_class_matters_where_it_is_told():
    z, y = torch.zeros(2, 6), torch.eye(4)[:2]
    first, second = build(DESIGN)(z, y)
    assert not torch.allclose(first, second)
    blind = build(Design(shape=(1, 8, 8), latent=6, width=2))
    assert torch.equal(*blind(z, y[:, :0]))


def test_sizes_halve_until_four_or_until_they_are_odd():
    assert Design(shape=(1, 28, 28)).sizes == [(7, 7), (14, 14), (28, 28)]
    assert Design(shape=(3, 32, 32)).sizes == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert Design(shape=(1, 25, 25)).sizes == [(25, 25)]
    assert Design(shape=(1, 2, 8)).sizes == [(2, 8)]


def test_weights_are_drawn_by_the_seed_and_the_global_generator_stays():
    before = torch.random.get_rng_state()
    one, same, other = (build(DESIGN, seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["first.weight"], other["first.weight"])


def test_usual_designs():
    assert design_of((1, 28, 28), 10) == Design(shape=(1, 28, 28), classes=10, latent=64, width=16)
    assert design_of((3, 32, 32), 10).latent == 128
    assert design_of((3, 32, 32), 10, small=True) == Design(shape=(3, 32, 32), classes=10, latent=32, width=8)
