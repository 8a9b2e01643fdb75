"""Edges of what hides updates: entries at the limit and zeros, sums that are no numbers, keys of other parameters."""

from types import SimpleNamespace

import pytest
import torch

from helpers.replies import make
from strategies import ckks
from strategies.ckks import FLOOD, LIMIT, SLOTS, CipherError, Key, Sum, _context, _normal, ciphertexts
from strategies.secagg import SecAgg


@pytest.fixture(scope="module")
def key():
    return Key.make()


def test_zeros_and_entries_at_the_limit_are_sealed_and_opened(key):
    values = torch.tensor([LIMIT, 0.0, -LIMIT, 1.0], dtype=torch.float64)
    total = Sum(4)
    total.add(key.seal(values / 2))
    total.add(key.seal(values / 4))
    assert (key.open(total.sealed(), 4) - 0.75 * values).abs().max() < 6 * FLOOD
    assert key.seal(torch.zeros(3, dtype=torch.float64))
    for wrong in (torch.nan, torch.inf, -torch.inf, LIMIT + 1e-6, -LIMIT - 1e-6):
        with pytest.raises(CipherError, match="not finite, or larger"):
            key.seal(torch.tensor([1.0, wrong], dtype=torch.float64))


@pytest.mark.parametrize(
    ("value", "opens"), [(LIMIT, True), (-LIMIT, True), (0.0, True), (65.0, False), (-65.0, False), (torch.nan, False)]
)
def test_what_opens_to_no_update_is_refused(key, monkeypatch, value, opens):
    """No ciphertext decrypts to exactly these numbers, so that the decryption is made up."""
    monkeypatch.setattr(ckks, "_read", lambda *given: [SimpleNamespace(decrypt=lambda: [value] * SLOTS)])
    if opens:
        found = key.open([b""], 5)
        assert found.shape == (5,)
        assert (found - value).abs().max() < 6 * FLOOD
        return
    with pytest.raises(CipherError, match="opens to no update"):
        key.open([b""], 5)


def test_ciphertexts_that_cannot_be_added_leave_the_sum(monkeypatch):
    class Strange:
        def __add__(self, other):
            raise ValueError("of other parameters")

        def serialize(self):
            return b"kept"

    total = Sum(3)
    monkeypatch.setattr(ckks, "_read", lambda *given: [Strange()])
    total.add([b""])
    with pytest.raises(CipherError, match="cannot be added to the others"):
        total.add([b""])
    assert total.sealed() == [b"kept"]


def test_a_key_of_other_parameters_is_refused():
    other = _context()
    other.global_scale = 2.0**40
    with pytest.raises(CipherError, match="made for other parameters"):
        Key(other)


def test_how_many_ciphertexts_hold_entries():
    assert [ciphertexts(entries) for entries in (1, SLOTS, SLOTS + 1, 3 * SLOTS)] == [1, 1, 2, 3]


def test_draws_of_the_operating_system_are_as_many_as_asked_for_and_never_the_same():
    first, second = _normal(7), _normal(7)
    assert first.shape == (7,)
    assert first.dtype == torch.float64
    assert not torch.equal(first, second)


def test_the_settings_of_secure_aggregation_are_those_of_flowers_workflow():
    flow = SecAgg(make(None)[0], max_examples=4, clip=2.0, threshold=0.7, timeout=9.0).workflow
    assert (flow.num_shares, flow.reconstruction_threshold, flow.max_weight) == (1.0, 0.7, 4.0)
    assert (flow.clipping_range, flow.timeout) == (2.0, 9.0)
