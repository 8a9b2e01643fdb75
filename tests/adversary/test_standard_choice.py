"""`standard`: whose answer it takes, and who is not asked about a target."""

from dataclasses import replace

import pytest
import torch

from adversary.evidence import Answer, Evidence
from adversary.learned.ridge import Ridge
from adversary.networks import CINetLBFGS
from adversary.presets import CosineLBFGS, GaussNewton
from adversary.standard import CLASS_MEAN, Standard, _left_out
from helpers.attacks import digits, seen_of


def answer(x, distance, *, certain=False, likely=False):
    return Answer(x, torch.zeros(1, dtype=torch.int64), distance, certain, likely)


@pytest.fixture
def choosing():
    smooth = torch.full((1, 1, 4, 4), 0.5)
    rough = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return Standard().taught({"variation": torch.tensor(0.1), "means": smooth}), smooth, rough


def test_what_explains_the_update_is_taken_whatever_it_looks_like(choosing):
    attack, smooth, rough = choosing
    found = {CLASS_MEAN: answer(smooth, 0.2), "a": answer(smooth, 0.01), "b": answer(rough, 0.02, certain=True)}
    assert attack._choice(found, True) is found["b"]


def test_what_looks_like_no_example_is_not_believed(choosing):
    attack, smooth, rough = choosing
    found = {CLASS_MEAN: answer(smooth, 0.2), "a": answer(rough, 0.01), "b": answer(smooth, 0.04)}
    assert attack._choice(found, True) is found["b"]
    assert attack._choice({CLASS_MEAN: found[CLASS_MEAN], "a": found["a"]}, True) is found[CLASS_MEAN]


def test_a_search_that_explains_nothing_falls_back_to_the_class_mean(choosing):
    attack, smooth, _ = choosing
    found = {CLASS_MEAN: answer(smooth, 0.92), "a": answer(smooth, 0.9)}
    assert attack._choice(found, True) is found[CLASS_MEAN]
    assert attack._choice(found, False) is found["a"], "a defense that is known may hide that much"


def test_the_most_likely_image_outranks_what_fits_the_noise(choosing):
    attack, smooth, _ = choosing
    found = {CLASS_MEAN: answer(smooth, 0.92), "a": answer(smooth, 0.8), "b": answer(smooth, 0.91, likely=True)}
    assert attack._choice(found, False) is found["b"]


def test_without_public_examples_the_update_decides_alone(choosing):
    _, smooth, rough = choosing
    found = {"a": answer(rough, 0.3), "b": answer(smooth, 0.4)}
    assert Standard()._choice(found, True) is found["a"]


def test_who_is_left_out_where(choosing):
    """Gauss-Newton where an image is determined and somebody is near it, untrained networks where it is not."""
    _, smooth, _ = choosing
    (seen,), task = seen_of(*digits(1, 1))
    enough = Evidence.known_to([], seen, task)
    lacking = Evidence.known_to([], replace(seen, update={name: value * 0 for name, value in seen.update.items()}), task)
    near, far = {"a": answer(smooth, 0.04)}, {CLASS_MEAN: answer(smooth, 0.01), "a": answer(smooth, 0.06)}
    newton, network = GaussNewton(), CINetLBFGS()
    assert not _left_out(newton, enough, near)
    assert not _left_out(newton, enough, {})
    assert _left_out(newton, enough, far)
    assert _left_out(newton, lacking, near)
    assert _left_out(network, enough, near)
    assert not _left_out(network, lacking, far)
    assert not any(_left_out(one, which, far) for one in (CosineLBFGS(), Ridge()) for which in (enough, lacking))
    # An attacker who knows the defense may look for more than an image.
    told = newton.matching()
    assert not _left_out(told, enough, far)
    assert _left_out(told, enough, {**far, "b": answer(smooth, 0.9, likely=True)})


def test_what_a_network_draws_is_taken_where_other_images_explain_the_update_as_well(choosing):
    attack, smooth, _ = choosing
    found = {CLASS_MEAN: answer(smooth, 0.2), "a": answer(smooth, 1e-5), "b": replace(answer(smooth, 9e-4), drawn=True)}
    assert attack._choice(found, True) is found["b"]
    assert attack._choice({**found, "b": replace(answer(smooth, 2e-3), drawn=True)}, True) is found["a"]
    likely = {**found, "c": answer(smooth, 0.5, likely=True)}
    assert attack._choice(likely, False) is likely["c"]
